"""Byte streams as an interface: what a connection is to its handler, and where connections come from."""

import errno
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of an open file, to be sent without being read.

    Attributes:
        owner: Keeps the file open until the slice is sent.
        is_cold: Whether it is not in the page cache, as far as is known.
    """

    fileno: int
    position: int
    size: int
    owner: object
    is_cold: bool = False

    def after(self, sent: int) -> "FileSlice":
        """What is left when so many bytes are sent."""
        return FileSlice(self.fileno, self.position + sent, self.size - sent, self.owner, self.is_cold)


Part = bytes | bytearray | memoryview | FileSlice


class UnreadableError(OSError):
    """The disk does not give a file slice that was to be sent, and the connection ends with that."""

    def __init__(self, part: FileSlice, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.owner = part.owner
        self.cause = error


# What a read of a file fails with, and a write to a socket never: the device, damaged metadata, a file that is gone.
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
    """The error of a `sendfile`, which reads and writes: an UnreadableError if it is the file's and not the peer's.

    >>> blamed(FileSlice(3, 0, 9, None), OSError(errno.EIO, "Input/output error"))
    UnreadableError(5, 'Input/output error')
    >>> blamed(FileSlice(3, 0, 9, None), BrokenPipeError(errno.EPIPE, "Broken pipe"))
    BrokenPipeError(32, 'Broken pipe')
    """
    return UnreadableError(part, error) if error.errno in _ERRORS_OF_FILES else error


class Stream(Protocol):
    """One connection, as its handler sees it."""

    peer_host: str

    @property
    def is_writing(self) -> bool:
        """Whether parts given to `write` are not all sent yet."""

    @property
    def unsent_bytes(self) -> int:
        """How much of what was given to `write` is not sent yet, with what it is wrapped in."""

    def sends_cold(self) -> bool:
        """Whether a cold file slice would be sent, at present, without the event loop waiting for the device."""

    def write(self, parts: Sequence[Part]) -> None:
        """Send the parts in order, now or as soon as the peer takes them."""

    def pause_reading(self) -> None:
        """Take no more bytes from the peer for now."""

    def resume_reading(self) -> None:
        """Take bytes again."""

    def close(self) -> None:
        """End the connection at once; `connection_lost` follows."""


class StreamHandler(Protocol):
    """What a listener makes for each connection."""

    def connection_made(self, stream: Stream) -> None:
        """The connection is there."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def buffer_updated(self, size: int) -> None:
        """`size` bytes were put into the buffer."""

    def secured(self, certificate: bytes | None) -> None:
        """The TLS handshake is over; the peer's certificate in DER, if it showed one. Never called without TLS."""

    def writing_done(self) -> None:
        """Everything given to `write` is sent, after a time when it was not."""

    def connection_lost(self, error: OSError | None) -> None:
        """The connection is gone; called once."""


class Listener(Protocol):
    """An open port."""

    host: str
    port: int

    def accept(self) -> None:
        """Begin to take connections; until then they wait in the backlog."""

    def pause(self, pause_s: float) -> None:
        """Let new connections wait in the backlog for a while."""

    def close(self) -> None:
        """Accept no more."""


class Network(Protocol):
    """Where listeners come from."""

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
            backlog: Connections that the kernel keeps until they are accepted.
            buffer_bytes: The kernel's send and receive buffers of each connection, -1 for its own choice.
            tls: What a new connection is encrypted by; None for plain text.

        Raises:
            OSError: if the port is in use or the address is not ours.
        """
