"""Finds the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["GROUP", "TRANSACTION", "ask_group_coordinator", "find_coordinator"]

# Key types of FindCoordinator.
GROUP: Final = 0
TRANSACTION: Final = 1

_NAMES: Final = {GROUP: "group", TRANSACTION: "transactional id"}


def find_coordinator(cluster: ClusterClient, key_type: int, key: str) -> int:
    """Returns the coordinator's node by one request; the caller decides about retries. Raises BrokerError."""
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
    cluster.refresh_metadata(())  # the coordinator's node: a restarted broker may have another address
    return int(found.node_id)


def ask_group_coordinator(
    cluster: ClusterClient,
    group: str,
    what: str,
    api_key: int,
    values: Mapping[str, Any],
    code_of: Callable[[Any], int],
    expected: Collection[int] = (),
) -> Any:
    """Sends a request to a group's coordinator, looked up for each call: calls are rare, and coordinators move.

    Returns the response if its code is 0 or one of `expected`. Raises BrokerError, after retries for retriable codes.
    """

    def attempt() -> Any:
        connection = cluster.connection(find_coordinator(cluster, GROUP, group))
        answer = connection.call(kio_request(api_key, connection.version(api_key), values))
        code = code_of(answer)
        if code and code not in expected:
            raise broker_error(code, what)
        return answer

    return cluster.retry(what, attempt)
