"""Starts, cancels and lists reassignments of partitions: which brokers have the replicas (KIP-455)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from headwater.logtier.client.administration import ask_controller, partitions_by_topic, refusal
from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerError,
    UnsupportedVersionError,
)
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment

__all__ = [
    "NO_REASSIGNMENT_IN_PROGRESS",
    "alter_partition_reassignments",
    "list_partition_reassignments",
]

NO_REASSIGNMENT_IN_PROGRESS: Final = 85

#: The first version with allow_replication_factor_change (KIP-860).
_WITH_FACTOR_OPTION: Final = 1


def alter_partition_reassignments(
    cluster: ClusterClient,
    assignments: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> dict[TopicPartition, BrokerError | None]:
    """Starts or replaces the reassignment of each partition, or cancels it.

    Replicas are moved after the call: `list_partition_reassignments` tells which ones are under way.

    Args:
        cluster: The cluster; any broker forwards the request to the controller.
        assignments: The brokers that shall have a partition's replicas, the preferred leader first; None cancels the
            partition's reassignment, which gives it back its former replicas.
        allow_replication_factor_change: Whether an assignment may have another number of replicas than the partition.

    Returns:
        The refusal of each partition; None where the change is made. After a lost connection the request is repeated:
        a cancellation that took effect then answers NO_REASSIGNMENT_IN_PROGRESS.

    Raises:
        BrokerError: The whole request is refused, such as for a missing permission (ALTER on the cluster).
        UnsupportedVersionError: A replication factor has to be kept, but the brokers do not know the option.
    """
    results: dict[TopicPartition, BrokerError | None] = {}

    def ask() -> None:
        version = cluster.any_connection().version(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        if not allow_replication_factor_change and version < _WITH_FACTOR_OPTION:
            raise UnsupportedVersionError("the broker is too old to keep the replication factor")
        topics = _by_topic({key: assignments[key] for key in assignments if key not in results})
        values = {"allow_replication_factor_change": allow_replication_factor_change, "topics": topics}
        response = ask_controller(cluster, ApiKey.ALTER_PARTITION_REASSIGNMENTS, values, "reassigning partitions")
        failure: BrokerError | None = None
        for topic in response.responses:
            for part in topic.partitions:
                key = (str(topic.name), int(part.partition_index))
                error = refusal(part, f"reassigning {key[0]}-{key[1]}")
                if error is not None and error.retriable and error.code != UNKNOWN_TOPIC_OR_PARTITION:
                    failure = error
                else:
                    results[key] = error
        if failure is not None:
            raise failure

    if assignments:
        cluster.retry("reassigning partitions", ask)
    return results


def list_partition_reassignments(
    cluster: ClusterClient, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, OngoingReassignment]:
    """Returns the reassignments under way, by default of all partitions; partitions that do not exist are left out.

    Raises BrokerError, also for a missing permission (DESCRIBE on the cluster).
    """
    by_topic = partitions_by_topic(partitions or ())
    wanted = tuple({"name": name, "partition_indexes": tuple(found)} for name, found in by_topic.items())
    values = {"topics": None if partitions is None else wanted}

    def ask() -> dict[TopicPartition, OngoingReassignment]:
        response = ask_controller(cluster, ApiKey.LIST_PARTITION_REASSIGNMENTS, values, "listing reassignments")
        return {
            (str(topic.name), int(part.partition_index)): OngoingReassignment(
                _brokers(part.replicas), _brokers(part.adding_replicas), _brokers(part.removing_replicas)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    return cluster.retry("listing reassignments", ask)


def _by_topic(assignments: Mapping[TopicPartition, Sequence[int] | None]) -> tuple[dict[str, Any], ...]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), replicas in sorted(assignments.items(), key=lambda each: each[0]):
        part = {"partition_index": partition, "replicas": None if replicas is None else tuple(replicas)}
        by_topic.setdefault(topic, []).append(part)
    return tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items())


def _brokers(ids: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in ids)
