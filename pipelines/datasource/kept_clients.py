"""Clients that a Python worker reuses across tasks: connecting takes most of a small micro-batch's time.

A worker runs one task at a time, but a task may read several topics concurrently, so each client has one user until it
is returned.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.logtier.client.cluster import ClientConfig, ClusterClient

__all__ = ["close_kept_clients", "kept_client"]

# Clusters, or users of a cluster, that an application's queries read from; further ones reconnect in each task.
CLIENTS_MAX: Final = 4

_idle: dict[ClientConfig, ClusterClient] = {}


@contextmanager
def kept_client(config: ClientConfig) -> Iterator[ClusterClient]:
    """A client for one task. After an error it is closed, since its connections' state is unknown.

    Its metadata may be outdated: request metadata first. The client's own retries reopen connections that the broker
    has closed meanwhile.
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
    """Close the kept clients."""
    while _idle:
        _idle.popitem()[1].close()
