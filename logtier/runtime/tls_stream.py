"""TLS on a non-blocking socket: the same interface as the streams of `network`, with encryption.

TLS must read, encrypt and copy the data, so `sendfile` cannot be used: file slices are read in pieces small enough not
to delay other connections.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from typing import Final, cast

from headwater.logtier.runtime.socket_stream import WOULD_BLOCK, SocketStream
from headwater.logtier.runtime.streams import FileSlice, StreamHandler, blamed

RECEIVED_BYTES: Final = 64 << 10
"""Encrypted bytes received by one call; they are decrypted before the next call."""

ENCRYPTED_BYTES: Final = 128 << 10
"""Plain bytes encrypted by one call; small parts are joined, so that they share a TLS record."""

BYTES_PER_TURN: Final = 512 << 10
"""Plain bytes sent per turn of the loop; their encryption takes a fraction of a millisecond."""

_ALERT_RECORD: Final = 0x15
_HANDSHAKE_RECORD: Final = 0x16


class TlsError(OSError):
    """A TLS failure: a failed handshake, invalid TLS data, or a peer without TLS; OpenSSL's error is its cause."""


class TlsStream(SocketStream):
    """One connection. `connection_made` precedes the handshake; `secured` follows it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        peer_host: str,
        handler: StreamHandler,
        context: ssl.SSLContext,
        received: bytearray,
        server_hostname: str | None = None,
    ) -> None:
        """Start the connection.

        Args:
            received: Buffer for encrypted bytes; streams share it, since it is empty between turns of the loop.
            server_hostname: Name or address that the peer's certificate must be valid for; None on the server's side.
        """
        super().__init__(loop, connected, peer_host, handler)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_server = server_hostname is None
        self._peer = "client" if self._is_server else "server"
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=server_hostname
        )
        self._received = received
        self._encrypted = memoryview(b"")
        self._begun = False
        self._secured = False
        self._decrypting = False
        self._begin()
        if not self._is_server and not self._closed:
            self._shake_hands()

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the parts passed to `write`, including the overhead of encryption."""
        return super().unsent_bytes + len(self._encrypted) + self._outgoing.pending

    def resume_reading(self) -> None:
        """Resume receiving bytes, first the bytes already received."""
        if not self._reading and not self._closed:
            super().resume_reading()
            if self._secured and not self._decrypting and (self._incoming.pending or self._tls.pending()):
                self._loop.call_soon(self._decrypt)

    def close(self) -> None:
        """Close the connection immediately."""
        if not self._closed and self._secured and not self._encrypted:
            # close_notify shows the peer that the connection was not truncated; no reply is required.
            with contextlib.suppress(ssl.SSLError, OSError):
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
                self._socket.send(self._outgoing.read())
        self._lose(None)

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(self._received)
        except WOULD_BLOCK:
            return
        except OSError as error:
            self._lose(error)
            return
        if not size:
            self._lose(None)
            return
        if not self._begun:
            self._begun = True
            if self._is_server and self._received[0] != _HANDSHAKE_RECORD:
                self._lose(TlsError("the client does not speak TLS, which this listener asks for"))
                return
            if self._received[0] not in (_HANDSHAKE_RECORD, _ALERT_RECORD):
                self._lose(TlsError("the server does not speak TLS on this port"))
                return
        self._incoming.write(memoryview(self._received)[:size])
        if self._secured or self._shake_hands():
            self._decrypt()

    def _shake_hands(self) -> bool:
        """Begin or continue the handshake; whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert informs the peer of the reason
            self._lose(_failure("the TLS handshake failed", error))
            return False
        self._secured = True
        self._flush()
        if not self._closed:
            self._handler.secured(self._tls.getpeercert(binary_form=True))
        return not self._closed

    def _decrypt(self) -> None:
        """Pass decrypted bytes to the handler until it pauses reading."""
        if self._decrypting:
            return
        self._decrypting = True
        try:
            while self._reading and not self._closed:
                buffer = self._handler.get_buffer()
                size = self._read_into(buffer)
                if not size:
                    break
                self._handler.buffer_updated(size)
        finally:
            self._decrypting = False
        if not self._closed and self._outgoing.pending:
            self._send()

    def _read_into(self, buffer: memoryview) -> int:
        """Decrypt the received bytes into the buffer; close the connection at its end."""
        filled = 0
        try:
            while filled < len(buffer):
                size = cast("int", self._tls.read(len(buffer) - filled, buffer[filled:]))
                if not size:
                    # close_notify: the earlier bytes are still answered, if the peer reads the answers.
                    if not filled:
                        self._lose(None)
                    break
                filled += size
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._lose(_failure(f"what the {self._peer} sent is no TLS", error))
            return 0
        return filled

    def _send(self) -> None:
        """Encrypt and send until the socket is full; the rest waits until the socket is writable."""
        budget = BYTES_PER_TURN
        try:
            while self._send_encrypted() and self._pending and budget > 0:
                plain = self._gather()
                budget -= len(plain)
                view = memoryview(plain)
                while view:
                    view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            self._lose(_failure("what is sent cannot be encrypted", error))
            return
        except OSError as error:
            self._lose(error)
            return
        self._arm_writer(bool(self._pending) or bool(self._encrypted))

    def _send_encrypted(self) -> bool:
        """Send encrypted bytes; whether all are sent."""
        if not self._encrypted and self._outgoing.pending:
            self._encrypted = memoryview(self._outgoing.read())
        while self._encrypted:
            try:
                self._encrypted = self._encrypted[self._socket.send(self._encrypted) :]
            except WOULD_BLOCK:
                return False
            if not self._encrypted and self._outgoing.pending:
                self._encrypted = memoryview(self._outgoing.read())
        return True

    def _gather(self) -> bytes:
        """Return the next plain bytes, from one or several parts."""
        pending = self._pending
        gathered: list[bytes | bytearray | memoryview] = []
        room = ENCRYPTED_BYTES
        while pending and room > 0:
            first = pending[0]
            if isinstance(first, FileSlice):
                try:
                    piece = os.pread(first.fileno, min(first.size, room), first.position)
                except OSError as error:
                    raise blamed(first, error) from None
                if not piece:
                    raise OSError("the file is shorter than the slice that was to be sent")
                taken, size = len(piece), first.size
                gathered.append(piece)
                if taken < size:
                    pending[0] = first.after(taken)
            else:
                taken, size = min(len(first), room), len(first)
                gathered.append(memoryview(first)[:taken])
                if taken < size:
                    pending[0] = memoryview(first)[taken:]
            if taken == size:
                pending.popleft()
            room -= taken
        return b"".join(gathered)

    def _flush(self) -> None:
        """Send the bytes of the handshake."""
        try:
            sent = self._send_encrypted()
        except OSError as error:
            self._lose(error)
            return
        self._arm_writer(not sent)

    def _lose(self, error: OSError | None) -> None:
        self._encrypted = memoryview(b"")
        super()._lose(error)


def _failure(event: str, error: ssl.SSLError) -> TlsError:
    failure = TlsError(f"{event}: {_reason(error)}")
    failure.__cause__ = error
    return failure


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's message without the position in its source.

    >>> _reason(ssl.SSLError(1, "[SSL: NO_SHARED_CIPHER] no shared cipher (_ssl.c:1007)"))
    'no shared cipher'
    """
    verified = getattr(error, "verify_message", "")
    text = str(error.strerror or error).partition(" (_ssl")[0]
    return verified or text.rpartition("] ")[2]
