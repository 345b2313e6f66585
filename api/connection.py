"""How this side reaches a Kafka endpoint: addresses, client properties, and a quick "is anybody there?".

Every librdkafka client of the product (administration, produce, consume) starts from `client_properties`, so that none
of them prints librdkafka's own log lines and all of them give up after the same time.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

SERVERS_MAX = 100
"""Bootstrap servers in one list; a longer list is a mistake, and each costs a connection attempt."""

REACH_TIMEOUT_MS = 3_000
"""How long one bootstrap server may take to accept a TCP connection before the next one is tried."""


class BootstrapServersError(ValueError):
    """A list of bootstrap servers that cannot be read; the message says which entry and what it should look like."""


class BrokerUnreachableError(ConnectionError):
    """No bootstrap server accepted a connection; the message names each with its reason."""


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
    """Remembers why a broker refuses connections: librdkafka tells that to a callback only, and tries again."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    def __call__(self, error: Any) -> None:
        """Take one of librdkafka's errors."""
        if error.name() in ("_AUTHENTICATION", "_SSL"):
            # "sasl_ssl://host:port/bootstrap: reason (after 3ms in state ...)"
            self.refusal = error.str().rpartition("/bootstrap: ")[2].partition(" (after ")[0]


def client_properties(
    bootstrap_servers: str, request_timeout_ms: int, security: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return librdkafka properties every client here starts from; `security` says how to connect.

    `log_level` 0 silences librdkafka's own lines on stderr: what goes wrong is reported once, by the caller.
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

    librdkafka retries a refused connection until its whole timeout has passed and then says "timed out"; a plain
    connection attempt tells at once, and why.

    Raises:
        BootstrapServersError: the list cannot be read.
        BrokerUnreachableError: none accepted a connection.
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
