"""Byte streams as interfaces: connections, their handlers, listeners and the network."""

import errno
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of an open file, sent without a copy into this process.

    Attributes:
        owner: Keeps the file open until the slice is sent.
        is_cold: Whether the slice is known or assumed to be outside the page cache.
    """

    fileno: int
    position: int
    size: int
    owner: object
    is_cold: bool = False

    def after(self, sent: int) -> "FileSlice":
        """Return the rest of the slice after `sent` bytes."""
        return FileSlice(self.fileno, self.position + sent, self.size - sent, self.owner, self.is_cold)


Part = bytes | bytearray | memoryview | FileSlice


class UnreadableError(OSError):
    """A file slice could not be read for sending; the connection ends with this error."""

    def __init__(self, part: FileSlice, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.owner = part.owner
        self.cause = error


# Errors of file reads that socket writes never have: device, damaged metadata, missing file.
_ERRORS_OF_FILES: Final = frozenset(
    (
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENODATA,
        errno.EILSEQ,
        errno.EBADMSG,
        errno.EUCLEAN,
        errno.ESTALE,
        errno.EREMOTEIO,
    )
)


def blamed(part: FileSlice, error: OSError) -> OSError:
    """Attribute an error of `sendfile`: an UnreadableError for an error of the file, unchanged for one of the peer.

    >>> blamed(FileSlice(3, 0, 9, None), OSError(errno.EIO, "Input/output error"))
    UnreadableError(5, 'Input/output error')
    >>> blamed(FileSlice(3, 0, 9, None), BrokenPipeError(errno.EPIPE, "Broken pipe"))
    BrokenPipeError(32, 'Broken pipe')
    """
    return UnreadableError(part, error) if error.errno in _ERRORS_OF_FILES else error


class Stream(Protocol):
    """One connection, as seen by its handler."""

    peer_host: str

    @property
    def is_writing(self) -> bool:
        """Whether parts passed to `write` are unsent."""

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the parts passed to `write`, including the overhead of encryption."""

    def sends_cold(self) -> bool:
        """Whether a cold file slice would at present be sent without a wait of the event loop for the device."""

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order, immediately or as soon as the socket has room."""

    def pause_reading(self) -> None:
        """Stop receiving bytes from the peer."""

    def resume_reading(self) -> None:
        """Resume receiving bytes from the peer."""

    def close(self) -> None:
        """Close the connection immediately; `connection_lost` follows."""


class StreamHandler(Protocol):
    """Handler of one connection, created by the listener."""

    def connection_made(self, stream: Stream) -> None:
        """Handle the start of the connection."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""

    def buffer_updated(self, size: int) -> None:
        """Handle `size` bytes received into the buffer."""

    def secured(self, certificate: bytes | None) -> None:
        """Handle the end of the TLS handshake, with the peer's certificate (DER), if any. Never called without TLS."""

    def writing_done(self) -> None:
        """Handle the end of a wait for room: all parts passed to `write` are sent."""

    def connection_lost(self, error: OSError | None) -> None:
        """Handle the end of the connection; called once."""


class Listener(Protocol):
    """An open port."""

    host: str
    port: int

    def accept(self) -> None:
        """Start accepting connections; until then they wait in the backlog."""

    def pause(self, pause_s: float) -> None:
        """Stop accepting connections for a time; they wait in the backlog."""

    def close(self) -> None:
        """Close the port."""


class Network(Protocol):
    """Factory of listeners."""

    def listen(
        self,
        host: str,
        port: int,
        make_handler: Callable[[], StreamHandler],
        *,
        backlog: int,
        buffer_bytes: tuple[int, int],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> Listener:
        """Open a port.

        Args:
            backlog: Maximum number of connections that wait to be accepted.
            buffer_bytes: Sizes of the send and receive buffers of each connection, -1 for the system's default.
            tls: Returns the TLS context of a new connection; None for plain text.

        Raises:
            OSError: The port is in use, or the address is not an address of this machine.
        """
