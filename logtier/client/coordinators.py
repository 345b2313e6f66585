"""Which broker coordinates a group or a transactional id."""

from __future__ import annotations

from typing import Any, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["GROUP", "TRANSACTION", "find_coordinator"]

# Key types of FindCoordinator.
GROUP: Final = 0
TRANSACTION: Final = 1

_NAMES: Final = {GROUP: "group", TRANSACTION: "transactional id"}


def find_coordinator(cluster: ClusterClient, key_type: int, key: str) -> int:
    """The node to ask; asked once, so that the caller decides about trying again. Raises BrokerError."""
    connection = cluster.any_connection()
    response: Any = connection.call(
        kio_request(
            ApiKey.FIND_COORDINATOR,
            connection.version(ApiKey.FIND_COORDINATOR),
            {"key_type": key_type, "coordinator_keys": (key,)},
        )
    )
    [found] = response.coordinators
    if found.error_code:
        raise broker_error(int(found.error_code), f"the coordinator of {_NAMES[key_type]} {key!r}", found.error_message)
    cluster.refresh_metadata(())  # where it is: it may have come up at another address
    return int(found.node_id)
