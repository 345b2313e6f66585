"""The ports of a cluster on this machine: those that the user named, checked before a process starts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.settings import PORT_MAX


class ClusterPortError(ValueError):
    """A port does not exist or has two uses; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class FixedPort:
    """A port that the user named, directly or as one that follows another."""

    port: int
    use: str
    option: str


def following(first_port: int, place: int) -> int:
    """Return the port of a broker by its place, from 0; a first port of 0, which selects a free one, stays 0.

    >>> [following(9092, place) for place in (0, 1, 2)], following(0, 2)
    ([9092, 9093, 9094], 0)
    """
    return 0 if first_port == 0 else first_port + place


def fixed_ports(brokers: Sequence[int], kafka_port: int, http_port: int, metrics_port: int) -> list[FixedPort]:
    """Return the ports that must be free; those that are 0 or negative are none.

    Args:
        brokers: Ids of the brokers, in the order of their ports.

    Raises:
        ClusterPortError: A port is above PORT_MAX, or two processes would have the same one.

    >>> [each.port for each in fixed_ports((1, 2), 9092, 8082, 0)]
    [9092, 9093, 8082]
    """
    of_brokers = ((kafka_port, "the port", "--kafka-port"), (metrics_port, "the metrics port", "--metrics-port"))
    ports = [
        FixedPort(following(first, place), f"{what} of broker {node_id}", option)
        for first, what, option in of_brokers
        if first > 0
        for place, node_id in enumerate(brokers)
    ]
    if http_port > 0:
        ports.append(FixedPort(http_port, "the port of the REST API", "--http-port"))
    uses: dict[int, FixedPort] = {}
    for each in ports:
        if each.port > PORT_MAX:
            raise ClusterPortError(f"{each.use} would be {each.port}, but {PORT_MAX} is the last; lower {each.option}")
        if (other := uses.setdefault(each.port, each)) is not each:
            raise ClusterPortError(
                f"{each.port} would be {other.use} and {each.use}; choose another {other.option} or {each.option}"
            )
    return ports


def port_in_use(host: str, ports: Sequence[FixedPort]) -> FixedPort | None:
    """Return the first port on which another process listens."""
    for each in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, each.port), family=family).close()
        except OSError as error:
            # What else is wrong, the process that listens there reports.
            if error.errno == errno.EADDRINUSE:
                return each
    return None
