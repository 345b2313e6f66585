"""Splits a byte stream into request frames; sans-IO: bytes in, frames out.

A frame is an int32 length and that many bytes (Kafka protocol guide, "Common Request and Response Structure").
"""

import struct

from headwater.logtier.protocol.errors import ProtocolViolationError

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
#: Memory of an idle connection; most requests other than Produce fit.
INITIAL_BUFFER_BYTES = 16 << 10
#: Growth factor of a buffer while its frame arrives: the announced length alone allocates no memory.
BUFFER_GROWTH = 4
#: Room beyond the frame being received, so that a burst of small requests takes one system call.
READ_AHEAD_BYTES = 64 << 10
#: A larger buffer is freed as soon as it is empty, a smaller one when the connection is idle. Requests of a producer's
#: usual size (`max.request.size`, 1 MiB) reuse their buffer.
KEPT_BUFFER_BYTES = (1 << 20) + 2 * READ_AHEAD_BYTES
#: First bytes of a TLS client, read as a length: a handshake record of TLS 1.x.
_TLS_HANDSHAKE = 0x160300
_TLS_MESSAGE = "the client speaks TLS to a listener without TLS, or its data is not a request"
_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"CONN", b"PATC")
#: Size of the smallest request header: key, version, correlation id, client id.
SMALLEST_FRAME_BYTES = 10


class RequestFramer:
    """Collects received bytes and returns whole frames.

    Invariant: `_start <= _end <= len(_buffer)`; the bytes between them are received and not yet returned. The buffer
    never grows beyond one frame of the largest size plus the read-ahead, nor far beyond the bytes received. The last
    returned frame is not overwritten before the next call of `next_frame`, since its reader may hold views of it.

    Args:
        frame_bytes_max: Largest accepted frame (`socket.request.max.bytes`).
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_frame_bytes_max",
        "_frame_bytes_min",
        "_is_frame_in_use",
        "_kept_bytes_max",
        "_limit_name",
        "_start",
        "_view",
    )

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._frame_bytes_min = SMALLEST_FRAME_BYTES
        self._limit_name = "socket.request.max.bytes"
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._is_frame_in_use = False
        self._kept_bytes_max = KEPT_BUFFER_BYTES

    def limit(
        self, frame_bytes_min: int, frame_bytes_max: int, limit_name: str, kept_bytes_max: int = KEPT_BUFFER_BYTES
    ) -> None:
        """Set other limits from the next frame on; `limit_name` is the config of `frame_bytes_max`, for messages.

        A buffer larger than `kept_bytes_max` is freed as soon as it is empty.
        """
        self._kept_bytes_max = kept_bytes_max
        self._frame_bytes_min = frame_bytes_min
        self._frame_bytes_max = frame_bytes_max
        self._limit_name = limit_name

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next received bytes; never empty."""
        received = self._end - self._start
        size = len(self._buffer)
        if not received and not self._is_frame_in_use:
            self._start = self._end = 0
            if size <= self._kept_bytes_max:
                return self._view
            self._replace(INITIAL_BUFFER_BYTES)
            size = INITIAL_BUFFER_BYTES
        wanted = self._size_at_start() if received >= 4 else 0
        if self._end == size or (self._start and size - self._start < wanted):
            capacity = max(size, INITIAL_BUFFER_BYTES)
            if received == capacity:
                capacity = grown(received, wanted) if wanted > received else 2 * received
            self._replace(capacity)
        return self._view[self._end :]

    def received(self, size: int) -> None:
        """Record that `size` bytes were written into the buffer of `get_buffer`."""
        assert 0 < size <= len(self._buffer) - self._end
        self._end += size

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its length, None if it is incomplete; the previous frame becomes invalid.

        Raises:
            ProtocolViolationError: The length is negative, too small for a header, or above the limit.
        """
        start = self._start
        received = self._end - start
        if received < 4:
            self._is_frame_in_use = False
            if not received and len(self._buffer) > self._kept_bytes_max:
                # At once: the buffer no longer counts in any budget, and the client may send nothing further.
                self._replace(INITIAL_BUFFER_BYTES)
            return None
        size = self._size_at_start()
        if received < size:
            self._is_frame_in_use = False
            return None
        self._start = end = start + size
        self._is_frame_in_use = True
        return self._view[start + 4 : end]

    def next_api_key(self) -> int | None:
        """Return the API key of the next frame, which stays; None if it is incomplete, -1 if it will be rejected."""
        try:
            if self._end - self._start < 4 or self._end - self._start < self._size_at_start():
                return None
        except ProtocolViolationError:
            return -1
        key: int
        (key,) = _API_KEY.unpack_from(self._buffer, self._start + 4)
        return key

    @property
    def is_empty(self) -> bool:
        """Whether all received bytes were returned."""
        return self._start == self._end

    @property
    def unfinished_bytes(self) -> int:
        """Buffer size needed to continue an incomplete frame, if it exceeds the initial buffer; otherwise 0.

        The size covers the bytes received and the next growth step, for any announced length.

        Raises:
            ProtocolViolationError: As `next_frame`.
        """
        received = self._end - self._start
        if received < 4:
            return 0
        size = self._size_at_start()
        if received >= size or received < INITIAL_BUFFER_BYTES:
            return 0
        return grown(received, size)

    def shrink(self) -> None:
        """Free a grown buffer if it is empty."""
        if self._end == self._start and len(self._buffer) > INITIAL_BUFFER_BYTES:
            self._replace(INITIAL_BUFFER_BYTES)

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame waits, or a length that will be rejected."""
        if self._end - self._start < 4:
            return False
        try:
            return self._end - self._start >= self._size_at_start()
        except ProtocolViolationError:
            return True

    def _size_at_start(self) -> int:
        """Size of the frame at the start of the buffer, including its length prefix."""
        length: int
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if self._frame_bytes_min <= length <= self._frame_bytes_max:
            return length + 4
        if length < self._frame_bytes_min:
            raise ProtocolViolationError(f"a request claims a size of {length} bytes")
        if length >> 8 & 0xFFFF00 == _TLS_HANDSHAKE:
            raise ProtocolViolationError(_TLS_MESSAGE)
        if bytes(self._view[self._start : self._start + 4]) in _HTTP_METHODS:
            raise ProtocolViolationError("the client speaks HTTP; this is a Kafka listener")
        raise ProtocolViolationError(
            f"a request of {length} bytes is over the limit of {self._frame_bytes_max} ({self._limit_name})"
        )

    def _replace(self, capacity: int) -> None:
        """Move the received bytes to the front of a buffer of `capacity` bytes."""
        received = self._end - self._start
        fresh = bytearray(capacity)
        fresh[:received] = self._view[self._start : self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)
        self._start, self._end = 0, received


def grown(received: int, wanted: int) -> int:
    """Return the buffer size for a frame of `wanted` bytes after `received` bytes filled the previous buffer.

    >>> [grown(received, 1_000_000) for received in (16_384, 65_535, 65_536, 262_144, 999_999)]
    [65536, 65536, 262144, 1048576, 1048576]
    >>> grown(20_000, 30_000)
    65536
    """
    size = INITIAL_BUFFER_BYTES
    while size <= received:
        size *= BUFFER_GROWTH
    return min(size, max(wanted + READ_AHEAD_BYTES, received + 1))
