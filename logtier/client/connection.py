"""The sans-IO core of a client connection: requests in, bytes out; bytes in, correlated responses out."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headwater.logtier.client.errors import InvalidResponseError
from headwater.logtier.protocol.wire import skip_tagged_fields

__all__ = ["REQUESTS_IN_FLIGHT_MAX", "RESPONSE_BYTES_MAX", "BrokerConnection", "Request", "Response"]

# Requests bound the largest response (fetch.max.bytes, plus one larger batch); a length beyond this limit comes from a
# broken or hostile peer and is rejected before any allocation.
RESPONSE_BYTES_MAX = 256 << 20
REQUESTS_IN_FLIGHT_MAX = 64
# First bytes of a TLS server's alert for plain text (RFC 8446, 5.1); as a length they mean 352 million.
TLS_ALERT = b"\x15\x03"
CORRELATION_ID_MAX = 0x7FFFFFFF

_T = TypeVar("_T")
_U = TypeVar("_U")
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhi")


@dataclass(frozen=True, slots=True)
class Request(Generic[_T]):
    """One encoded request and the function that decodes its response body.

    `flexible`: whether the headers carry tagged fields (KIP-482). `response_header_tagged` differs for ApiVersions
    only: its response header never has tagged fields. `decode` receives the body without the header.
    """

    api_key: int
    api_version: int
    flexible: bool
    body: bytes
    decode: Callable[[memoryview], _T]
    response_header_tagged: bool

    def mapped(self, convert: Callable[[_T], _U]) -> Request[_U]:
        """Returns the same request with a response converted after decoding; ValueError rejects the response."""
        decode = self.decode
        return Request(
            self.api_key,
            self.api_version,
            self.flexible,
            self.body,
            lambda body: convert(decode(body)),
            self.response_header_tagged,
        )


@dataclass(frozen=True, slots=True)
class Response(Generic[_T]):
    """A decoded response, with its request's correlation id from `send`."""

    correlation_id: int
    value: _T


class BrokerConnection:
    """Frames, correlation and order of one connection; does no I/O and knows no clock.

    Invariant: responses arrive in the order of their requests, as the protocol guarantees: the next response belongs to
    the oldest request in flight. The caller writes incoming bytes straight into `get_buffer()`, the response's own
    memory: the kernel's copy is the only copy of a fetched megabyte.
    """

    def __init__(self, client_id: str, *, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        encoded = client_id.encode()
        self._client_id = struct.pack(">h", len(encoded)) + encoded
        self._response_bytes_max = response_bytes_max
        self._next_correlation_id = 0
        self._in_flight: deque[tuple[int, Request[Any]]] = deque()
        self._size = bytearray(4)
        self._body: bytearray | None = None
        self._view = memoryview(self._size)
        self._filled = 0

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return len(self._in_flight)

    def limit(self, response_bytes_max: int) -> None:
        """Sets another limit, from the next response on."""
        self._response_bytes_max = response_bytes_max

    @property
    def is_between_responses(self) -> bool:
        """Whether no part of a response has been received yet."""
        return self._body is None and not self._filled

    def send(self, request: Request[Any]) -> tuple[int, bytes]:
        """Registers a request; returns its correlation id and the frame to write."""
        assert len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX, "too many requests in flight on one connection"
        correlation_id = self._next_correlation_id
        self._next_correlation_id = 0 if correlation_id == CORRELATION_ID_MAX else correlation_id + 1
        tags = b"\0" if request.flexible else b""
        size = 8 + len(self._client_id) + len(tags) + len(request.body)
        header = _HEADER.pack(size, request.api_key, request.api_version, correlation_id)
        self._in_flight.append((correlation_id, request))
        return correlation_id, b"".join((header, self._client_id, tags, request.body))

    def get_buffer(self) -> memoryview:
        """Returns the memory for the next incoming bytes; never empty."""
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> Response[object] | None:
        """Registers `count` bytes written into `get_buffer()`; returns the response they complete, if any.

        Raises ProtocolViolationError for a length outside the limits, a response without a request, or a body that
        cannot be decoded; the connection is unusable afterwards.
        """
        self._filled += count
        if self._filled < len(self._view):
            return None
        if self._body is None:
            (size,) = _SIZE.unpack(self._size)
            if size < 4 or size > self._response_bytes_max:
                if bytes(self._size).startswith(TLS_ALERT):
                    raise InvalidResponseError(
                        "the broker's listener speaks TLS: set security.protocol to SSL or SASL_SSL"
                    )
                raise InvalidResponseError(
                    f"a response of {size} bytes is outside the limits (4 to {self._response_bytes_max})"
                )
            self._body = bytearray(size)
            self._view = memoryview(self._body)
            self._filled = 0
            return None
        body = self._view
        self._body = None
        self._view = memoryview(self._size)
        self._filled = 0
        return self._correlate(body)

    def _correlate(self, frame: memoryview) -> Response[object]:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._in_flight:
            raise InvalidResponseError(f"a response with correlation id {correlation_id} to no request")
        expected, request = self._in_flight.popleft()
        if correlation_id != expected:
            raise InvalidResponseError(f"a response with correlation id {correlation_id} where {expected} was due")
        position = 4
        try:
            if request.response_header_tagged:
                position = skip_tagged_fields(frame, position)
            return Response(correlation_id, request.decode(frame[position:]))
        except (ValueError, IndexError, OverflowError, struct.error, EOFError) as error:
            raise InvalidResponseError(
                f"the response to API {request.api_key} version {request.api_version} cannot be decoded: {error}"
            ) from error
