"""How clients reach a Kafka endpoint: addresses, client properties, and a quick reachability check.

Every librdkafka client of the product (administration, produce, consume) starts from `client_properties`. No client
prints librdkafka's own log lines, and all clients share one timeout.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

SERVERS_MAX = 100
"""Maximum number of bootstrap servers in one list; each costs a connection attempt."""

REACH_TIMEOUT_MS = 3_000
"""Timeout of a TCP connection to one bootstrap server before the next is tried."""


class BootstrapServersError(ValueError):
    """A list of bootstrap servers that cannot be parsed; the message names the entry and the expected form."""


class BrokerUnreachableError(ConnectionError):
    """No bootstrap server accepted a connection; the message names each server with its reason."""


def parse_bootstrap_servers(text: str) -> list[tuple[str, int]]:
    """Split Kafka's `host:port,host:port` into pairs.

    >>> parse_bootstrap_servers("localhost:9092, [::1]:9093")
    [('localhost', 9092), ('::1', 9093)]
    >>> parse_bootstrap_servers("PLAINTEXT://10.0.0.1:9092")
    [('10.0.0.1', 9092)]
    >>> parse_bootstrap_servers("k")
    Traceback (most recent call last):
        ...
    headwater.api.connection.BootstrapServersError: 'k' has no port: write it as host:port, for example k:9092
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise BootstrapServersError("the list of bootstrap servers is empty: write it as host:port[,host:port]")
    if len(entries) > SERVERS_MAX:
        raise BootstrapServersError(f"{len(entries)} bootstrap servers are more than {SERVERS_MAX}")
    servers = []
    for entry in entries:
        address = entry.removeprefix("PLAINTEXT://")
        host, separator, port = address.rpartition(":")
        if not separator or not host:
            raise BootstrapServersError(f"{entry!r} has no port: write it as host:port, for example {entry}:9092")
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
            raise BootstrapServersError(f"{entry!r} has port {port!r}: a port is a number from 1 to 65535")
        servers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return servers


class Outage:
    """Remembers why a broker refuses connections: librdkafka reports the reason to a callback only, and retries."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    def __call__(self, error: Any) -> None:
        """Record a librdkafka error."""
        if error.name() in ("_AUTHENTICATION", "_SSL"):
            # "sasl_ssl://host:port/bootstrap: reason (after 3ms in state ...)"
            self.refusal = error.str().rpartition("/bootstrap: ")[2].partition(" (after ")[0]


def client_properties(
    bootstrap_servers: str, request_timeout_ms: int, security: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the librdkafka properties common to all clients; `security` holds the connection's security properties.

    `log_level` 0 silences librdkafka's own lines on stderr: the caller reports each failure once.
    """
    return {
        **(security or {}),
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,
        "socket.timeout.ms": request_timeout_ms,
        "socket.connection.setup.timeout.ms": max(1_000, request_timeout_ms),
        # Only dual-stack `localhost` names profit from more; a refused address is tried again soon.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
    }


def require_reachable(bootstrap_servers: str, timeout_ms: int = REACH_TIMEOUT_MS) -> None:
    """Return as soon as one bootstrap server accepts a connection.

    librdkafka retries a refused connection until its whole timeout has passed and then reports "timed out"; a plain
    connection attempt fails at once, with the reason.

    Raises:
        BootstrapServersError: the list cannot be parsed.
        BrokerUnreachableError: no server accepted a connection.
    """
    failures = []
    for host, port in parse_bootstrap_servers(bootstrap_servers):
        try:
            socket.create_connection((host, port), timeout=timeout_ms / 1000).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise BrokerUnreachableError("; ".join(failures))
