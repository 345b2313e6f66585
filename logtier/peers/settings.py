"""Settings of the connections to other brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headwater.logtier.client.connection import RESPONSE_BYTES_MAX

__all__ = ["BrokerAddress", "PeerSettings"]


class BrokerAddress(NamedTuple):
    """Where a broker listens for brokers, in one registration of it.

    Attributes:
        epoch: The broker epoch: a broker that registered again is another process, or has another session.
    """

    host: str
    port: int
    epoch: int = -1

    def __str__(self) -> str:
        """Return host and port.

        >>> str(BrokerAddress("::1", 9092))
        '[::1]:9092'
        """
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings with the meaning of Kafka's configs of the same names.

    Attributes:
        setup_timeout_ms: Time limit of TCP connection, TLS handshake and login together
            (`socket.connection.setup.timeout.ms`).
        refused_backoff_max_ms: Maximum delay after a refused credential: each attempt is logged by the other side.
        idle_ms_max: A connection unused for this time is replaced before the next request: less than
            `connections.max.idle.ms`, after which the other side closes it.
    """

    client_id: str
    request_timeout_ms: int = 30_000
    setup_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    refused_backoff_max_ms: int = 10_000
    idle_ms_max: int = 540_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    response_bytes_max: int = RESPONSE_BYTES_MAX
