"""A blocking socket around the sans-IO connection, for Spark tasks: one thread, one connection for each broker."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Final, TypeVar

from headwater.logtier.client.authentication import authenticate
from headwater.logtier.client.connection import BrokerConnection, Request, Response
from headwater.logtier.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    InvalidResponseError,
    RequestTimeoutError,
    broker_error,
)
from headwater.logtier.client.messages import ApiKey, kio_request, negotiate
from headwater.logtier.client.security import PLAINTEXT, ClientSecurity
from headwater.logtier.client.tls import client_context
from headwater.logtier.security.key_files import tls_reason

__all__ = ["BlockingConnection"]

# Fraction of a session's lifetime after which the client renews the session.
REAUTHENTICATE_AT: Final = 0.85

_T = TypeVar("_T")


class BlockingConnection:
    """One connection to one broker, with the API versions agreed on it.

    Any error closes the connection: after a lost or truncated response the order of the others is unknown. Not
    thread-safe.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        receive_buffer_bytes: int,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Connects, encrypts and authenticates.

        Raises:
            BrokerConnectionError: the broker is unreachable or does not respond in time.
            AuthenticationError: the broker or the client rejects the other's certificate or credentials.
            ConfigError: a file in `security` is unusable.
        """
        self.address = f"{host}:{port}"
        self.closed = False
        self._request_timeout_s = request_timeout_ms / 1000
        self._security = security
        self._reauthenticate_s: float | None = None
        self._core = BrokerConnection(client_id)
        context = client_context(security) if security.uses_tls else None
        self._socket = self._connect(host, port, connect_timeout_ms, receive_buffer_bytes)
        try:
            if context is not None:
                self._socket = self._encrypt(context, host, connect_timeout_ms)
            self._versions = self._first_answer()
            if security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def _connect(self, host: str, port: int, timeout_ms: int, receive_buffer_bytes: int) -> socket.socket:
        try:
            connected = socket.create_connection((host, port), timeout=timeout_ms / 1000)
        except TimeoutError as error:
            raise BrokerConnectionError(f"no connection to {self.address} within {timeout_ms} ms") from error
        except OSError as error:
            raise BrokerConnectionError(f"no connection to {self.address}: {error.strerror or error}") from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer_bytes > 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        except OSError as error:
            connected.close()
            raise BrokerConnectionError(f"the connection to {self.address} cannot be set up: {error}") from error
        return connected

    def _encrypt(self, context: ssl.SSLContext, host: str, timeout_ms: int) -> ssl.SSLSocket:
        try:
            return context.wrap_socket(self._socket, server_hostname=host)
        except TimeoutError as error:
            raise BrokerConnectionError(f"no TLS handshake with {self.address} within {timeout_ms} ms") from error
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(f"{self.address} is not to be trusted: {tls_reason(error)}") from error
        except ssl.SSLEOFError as error:
            raise BrokerConnectionError(f"{self.address} ended the TLS handshake; does it speak TLS?") from error
        except ssl.SSLError as error:
            raise AuthenticationError(f"the TLS handshake with {self.address} failed: {tls_reason(error)}") from error
        except OSError as error:
            raise BrokerConnectionError(
                f"the connection to {self.address} broke in the TLS handshake: {error.strerror or error}"
            ) from error

    def _first_answer(self) -> dict[int, tuple[int, int]]:
        """Returns the versions of the broker's APIs. With TLS 1.3 a broker rejects a client's certificate only now."""
        try:
            return self._api_versions()
        except BrokerConnectionError as error:
            refusal = error.__cause__
            if isinstance(refusal, ssl.SSLError) and not isinstance(refusal, ssl.SSLEOFError):
                raise AuthenticationError(f"{self.address} refuses us: {tls_reason(refusal)}") from refusal
            raise

    def _authenticate(self) -> None:
        """Authenticates or re-authenticates, and records when the session must be renewed (KIP-368)."""
        self._reauthenticate_s = None
        begun_s = time.monotonic()
        lifetime_ms = authenticate(self.call, self.version, self._security, self.address)
        if lifetime_ms > 0:
            self._reauthenticate_s = begun_s + lifetime_ms / 1000 * REAUTHENTICATE_AT

    def _api_versions(self) -> dict[int, tuple[int, int]]:
        # Every broker supports version 0; an unsupported higher version would cost a second request (KIP-511).
        response = self.call(kio_request(ApiKey.API_VERSIONS, 0, {}))
        if response.error_code:
            raise broker_error(int(response.error_code), f"ApiVersions at {self.address}")
        return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}

    def version(self, api_key: int) -> int:
        """Returns the version to use of an API; raises UnsupportedVersionError if broker and client share none."""
        return negotiate(api_key, self._versions)

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return self._core.in_flight

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, request: Request[_T]) -> int:
        """Writes a request; `receive` returns the responses in order.

        An expiring session is renewed first. With requests in flight it is not: the broker then closes the connection
        at the end of the session, and the next connection begins another session.
        """
        renew_s = self._reauthenticate_s
        if renew_s is not None and not self._core.in_flight and time.monotonic() >= renew_s:
            self._renew()
        correlation_id, frame = self._core.send(request)
        try:
            self._socket.settimeout(self._request_timeout_s)
            self._socket.sendall(frame)
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(f"{self.address} took no data for {self._request_timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise BrokerConnectionError(f"the connection to {self.address} broke: {_reason(error)}") from error
        return correlation_id

    def _renew(self) -> None:
        try:
            self._authenticate()
        except BaseException:
            self.close()
            raise

    def receive(self) -> Response[object]:
        """Returns the response to the oldest request in flight; waits at most `request.timeout.ms`.

        Bytes that have arrived by then are still read: a paused process may find the response there.
        """
        assert self._core.in_flight, "nothing was asked"
        deadline = time.monotonic() + self._request_timeout_s
        try:
            while True:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.0))
                count = self._socket.recv_into(self._core.get_buffer())
                if count == 0:
                    raise BrokerConnectionError(f"{self.address} closed the connection")
                response = self._core.buffer_updated(count)
                if response is not None:
                    return response
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError) as error:
            self.close()
            raise RequestTimeoutError(f"{self.address} did not answer within {self._request_timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise BrokerConnectionError(f"the connection to {self.address} broke: {_reason(error)}") from error
        except (BrokerConnectionError, InvalidResponseError):
            self.close()
            raise

    def call(self, request: Request[_T]) -> _T:
        """Sends a request and waits for its response; no other request may be in flight."""
        assert not self._core.in_flight, "a call among pipelined requests would take their responses"
        self.send(request)
        value: _T = self.receive().value  # type: ignore[assignment]
        return value

    def close(self) -> None:
        """Closes the socket; idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()


def _reason(error: OSError) -> str:
    """The reason why a connection broke, with the TLS alert if any."""
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    return str(error.strerror or error)
