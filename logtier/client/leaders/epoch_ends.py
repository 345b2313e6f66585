"""Validates positions after a change of leaders: what the new leader's log has of a leader epoch (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import BrokerError, UnsupportedVersionError
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["UNKNOWN_DIVERGENCE", "EpochEnd", "divergence", "epoch_ends"]

#: The leader knows neither the epoch nor an earlier one.
UNKNOWN_DIVERGENCE = -1
_CONSUMER = -1


class EpochEnd(NamedTuple):
    """The greatest leader epoch at or below the one asked for, and its end offset; -1 and -1 if there is none."""

    leader_epoch: int
    end_offset: int


def divergence(end: EpochEnd, offset: int, leader_epoch: int, *, is_epoch_of_record: bool) -> int | None:
    """Returns the offset from which on a leader's log lacks records; None if all before `offset` are there.

    Args:
        end: The leader's answer for `leader_epoch`.
        is_epoch_of_record: Whether the record before `offset` has this epoch: a log without the epoch lacks the record.

    >>> divergence(EpochEnd(3, 100), 100, 3, is_epoch_of_record=True) is None
    True
    >>> divergence(EpochEnd(3, 90), 100, 3, is_epoch_of_record=True)
    90
    >>> divergence(EpochEnd(2, 120), 100, 3, is_epoch_of_record=True)
    99
    >>> divergence(EpochEnd(2, 120), 100, 3, is_epoch_of_record=False) is None
    True
    >>> divergence(EpochEnd(-1, -1), 100, 3, is_epoch_of_record=True) == UNKNOWN_DIVERGENCE
    True
    """
    if end.leader_epoch < 0 or end.end_offset < 0:
        return UNKNOWN_DIVERGENCE
    if end.end_offset < offset:
        return end.end_offset
    return offset - 1 if is_epoch_of_record and end.leader_epoch < leader_epoch else None


def epoch_ends(cluster: ClusterClient, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """Returns the end of a leader epoch in each partition's log, by its present leader.

    Empty if a broker has no such API for clients: positions cannot be validated then.
    """

    def ask_at(
        node_id: int, asked: Mapping[TopicPartition, tuple[int, int]], found: dict[TopicPartition, EpochEnd]
    ) -> BrokerError | None:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), (leader_epoch, current) in asked.items():
            by_topic.setdefault(topic, []).append(
                {"partition": partition, "current_leader_epoch": current, "leader_epoch": leader_epoch}
            )
        connection = cluster.connection(node_id)
        topics = tuple({"topic": name, "partitions": tuple(parts)} for name, parts in by_topic.items())
        version = connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        values = {"replica_id": _CONSUMER, "topics": topics}
        return _take(connection.call(kio_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, values)), found)

    def _take(response: Any, found: dict[TopicPartition, EpochEnd]) -> BrokerError | None:
        failure: BrokerError | None = None
        for topic in response.topics:
            for part in topic.partitions:
                key = (str(topic.topic), int(part.partition))
                if part.error_code:
                    failure = cluster.failed(key, int(part.error_code), "the end of a leader epoch of")
                else:
                    found[key] = EpochEnd(int(part.leader_epoch), int(part.end_offset))
        return failure

    try:
        return cluster.ask_leaders("the ends of leader epochs", epochs, ask_at)
    except UnsupportedVersionError:
        return {}
