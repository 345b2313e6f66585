"""Finds the broker that coordinates a group or a transactional id, and the last known leaders of their partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["GROUP", "TRANSACTION", "ask_group_coordinator", "find_coordinator", "last_known_leaders"]

# Key types of FindCoordinator.
GROUP: Final = 0
TRANSACTION: Final = 1

# Kafka's default of max.request.partition.size.limit.
_PAGE_PARTITIONS: Final = 2_000

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


def last_known_leaders(cluster: ClusterClient, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Returns the last known leader of each partition that has one, by DescribeTopicPartitions (KIP-966).

    It is that of a partition without a leader. A Headwater broker also keeps it while another broker leads a partition
    of coordinators in place of the coordinator. Topics that do not exist are left out.

    Raises:
        UnsupportedVersionError: the broker is a Kafka before 3.7, which has no last known leaders.
    """
    found: dict[TopicPartition, int] = {}
    cursor: dict[str, Any] | None = None
    while True:
        page = cluster.retry("the states of partitions", partial(_page, cluster, topics, cursor))
        for topic in page.topics:
            for partition in topic.partitions:
                for broker_id in partition.last_known_elr or ():
                    found[str(topic.name), int(partition.partition_index)] = int(broker_id)
        if page.next_cursor is None:
            return found
        following = page.next_cursor
        cursor = {"topic_name": following.topic_name, "partition_index": following.partition_index}


def _page(cluster: ClusterClient, topics: Sequence[str], cursor: Mapping[str, Any] | None) -> Any:
    connection = cluster.any_connection()
    return connection.call(
        kio_request(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            connection.version(ApiKey.DESCRIBE_TOPIC_PARTITIONS),
            {
                "topics": tuple({"name": name} for name in topics),
                "response_partition_limit": _PAGE_PARTITIONS,
                "cursor": cursor,
            },
        )
    )
