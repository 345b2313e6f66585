"""Clients that a Python worker keeps from task to task: a small micro-batch is little more than its connections.

A worker runs one task at a time, but a task may read several topics side by side, so a client belongs to who took it
until it is given back.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.logtier.client.cluster import ClientConfig, ClusterClient

__all__ = ["close_kept_clients", "kept_client"]

# Clusters, or users of one, that the queries of an application read from; more are possible, but begin anew each time.
CLIENTS_MAX: Final = 4

_idle: dict[ClientConfig, ClusterClient] = {}


@contextmanager
def kept_client(config: ClientConfig) -> Iterator[ClusterClient]:
    """A client for one task. After an error it is closed: nobody knows what is under way on its connections.

    What it knows of topics may be old: ask for metadata first. A connection that the broker has closed meanwhile is
    opened again by the client's own retries.
    """
    cluster = _idle.pop(config, None) or ClusterClient(config)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    if config in _idle or len(_idle) >= CLIENTS_MAX:
        cluster.close()
    else:
        _idle[config] = cluster


@atexit.register
def close_kept_clients() -> None:
    """Closes what is kept."""
    while _idle:
        _idle.popitem()[1].close()
