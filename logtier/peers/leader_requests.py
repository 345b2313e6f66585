"""Requests of a broker to the leaders of partitions and to coordinators, through kio."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = [
    "FetchedOffsets",
    "LeaderEpochEnd",
    "ListedOffset",
    "NamesById",
    "TransactionMarker",
    "VerificationResult",
    "VerifiedTransaction",
    "add_partitions_to_txn_request",
    "group_offsets_request",
    "list_offsets_request",
    "offset_for_leader_epoch_request",
    "topic_names_request",
    "write_txn_markers_request",
]

_TopicPartition = tuple[str, int]


class LeaderEpochEnd(NamedTuple):
    """The largest epoch up to the requested one, and its end offset; -1 and -1 if the leader knows none."""

    error_code: int
    leader_epoch: int
    end_offset: int


class ListedOffset(NamedTuple):
    """An offset with the leader epoch of its record, -1 if there is none."""

    error_code: int
    offset: int
    leader_epoch: int


class FetchedOffsets(NamedTuple):
    """The committed offsets of a group, and the codes of the group and of the partitions without an answer."""

    offsets: dict[TopicPartition, int]
    error_codes: frozenset[int]


class NamesById(NamedTuple):
    """The names of topics that exist, and the codes of the others, by topic id."""

    names: dict[UUID, str]
    error_codes: dict[UUID, int]


class TransactionMarker(NamedTuple):
    """The end of a transaction, for the partitions of one leader.

    Attributes:
        coordinator_epoch: Leader epoch in which the coordinator loaded its partition of the transaction state.
        transaction_version: The transaction protocol; from 2 on the marker has the next epoch (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: Sequence[_TopicPartition]
    coordinator_epoch: int
    transaction_version: int = 0


class VerifiedTransaction(NamedTuple):
    """Partitions that a producer writes to within its transaction (KIP-890).

    Attributes:
        adds: Whether to add them, and to begin the transaction if needed (transaction.version 2); else to verify only.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[_TopicPartition]
    adds: bool = False


class VerificationResult(NamedTuple):
    """The code of the request, and of each partition by transactional id."""

    error_code: int
    transactions: dict[str, dict[TopicPartition, int]]


def offset_for_leader_epoch_request(
    replica_id: int, wanted: Mapping[_TopicPartition, tuple[int, int]]
) -> Request[dict[TopicPartition, LeaderEpochEnd]]:
    """Encode OffsetForLeaderEpoch 4: (current leader epoch, wanted epoch) by partition (KIP-101, KIP-320)."""
    return kio_request(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {
            "replica_id": replica_id,
            "topics": _topics(
                "topic",
                (
                    (key, {"partition": key[1], "current_leader_epoch": current, "leader_epoch": epoch})
                    for key, (current, epoch) in wanted.items()
                ),
            ),
        },
    ).mapped(
        lambda response: {
            TopicPartition(str(topic.topic), part.partition): LeaderEpochEnd(
                int(part.error_code), part.leader_epoch, part.end_offset
            )
            for topic in response.topics
            for part in topic.partitions
        }
    )


def list_offsets_request(
    replica_id: int, wanted: Mapping[_TopicPartition, tuple[int, int]], *, timeout_ms: int
) -> Request[dict[TopicPartition, ListedOffset]]:
    """Encode ListOffsets 10 of a follower: (current leader epoch, timestamp) by partition.

    Args:
        timeout_ms: Time limit of the leader for a look-up.
    """
    return kio_request(
        ApiKey.LIST_OFFSETS,
        10,
        {
            "replica_id": replica_id,
            "isolation_level": 0,
            "timeout": timedelta(milliseconds=timeout_ms),
            "topics": _topics(
                "name",
                (
                    (key, {"partition_index": key[1], "current_leader_epoch": current, "timestamp": timestamp})
                    for key, (current, timestamp) in wanted.items()
                ),
            ),
        },
    ).mapped(
        lambda response: {
            TopicPartition(str(topic.name), part.partition_index): ListedOffset(
                int(part.error_code), part.offset, part.leader_epoch
            )
            for topic in response.topics
            for part in topic.partitions
        }
    )


def group_offsets_request(
    wanted: Mapping[str, Iterable[_TopicPartition]],
) -> Request[dict[str, FetchedOffsets]]:
    """Encode OffsetFetch 9 of several groups, including offsets that an open transaction is about to replace."""
    return kio_request(
        ApiKey.OFFSET_FETCH,
        9,
        {
            "groups": tuple(
                {
                    "group_id": group_id,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": _indexes(partitions, "partition_indexes"),
                }
                for group_id, partitions in wanted.items()
            ),
            "require_stable": False,
        },
    ).mapped(lambda response: {str(group.group_id): _fetched(group) for group in response.groups})


def _fetched(group: Any) -> FetchedOffsets:
    offsets: dict[TopicPartition, int] = {}
    codes = {int(group.error_code)}
    for topic in group.topics:
        for part in topic.partitions:
            codes.add(int(part.error_code))
            if not group.error_code and not part.error_code and part.committed_offset >= 0:
                offsets[TopicPartition(str(topic.name), part.partition_index)] = int(part.committed_offset)
    return FetchedOffsets(offsets, frozenset(codes - {0}))


def topic_names_request(topic_ids: Iterable[UUID]) -> Request[NamesById]:
    """Encode Metadata 13; the response has the names of the topics that exist, by id."""
    return kio_request(
        ApiKey.METADATA,
        13,
        {
            "topics": tuple({"topic_id": topic_id, "name": None} for topic_id in topic_ids),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    ).mapped(_names_by_id)


def _names_by_id(response: Any) -> NamesById:
    topics = [topic for topic in response.topics if topic.topic_id]
    return NamesById(
        {topic.topic_id: str(topic.name) for topic in topics if not topic.error_code},
        {topic.topic_id: int(topic.error_code) for topic in topics if topic.error_code},
    )


def write_txn_markers_request(
    markers: Iterable[TransactionMarker],
) -> Request[dict[tuple[int, TopicPartition], int]]:
    """Encode WriteTxnMarkers 2 (KIP-98, KIP-1228); the response is an error code by producer id and partition."""
    return kio_request(
        ApiKey.WRITE_TXN_MARKERS,
        2,
        {
            "markers": tuple(
                {
                    "producer_id": marker.producer_id,
                    "producer_epoch": marker.producer_epoch,
                    "transaction_result": marker.is_commit,
                    "topics": _indexes(marker.partitions, "partition_indexes"),
                    "coordinator_epoch": marker.coordinator_epoch,
                    "transaction_version": marker.transaction_version,
                }
                for marker in markers
            )
        },
    ).mapped(
        lambda response: {
            (int(marker.producer_id), TopicPartition(str(topic.name), part.partition_index)): int(part.error_code)
            for marker in response.markers
            for topic in marker.topics
            for part in topic.partitions
        }
    )


def add_partitions_to_txn_request(transactions: Iterable[VerifiedTransaction]) -> Request[VerificationResult]:
    """Encode AddPartitionsToTxn 5 of a leader, which adds partitions to transactions, or verifies them (KIP-890)."""
    return kio_request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        5,
        {
            "transactions": tuple(
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "verify_only": not each.adds,
                    "topics": _indexes(each.partitions, "partitions"),
                }
                for each in transactions
            )
        },
    ).mapped(_verified)


def _verified(response: Any) -> VerificationResult:
    return VerificationResult(
        int(response.error_code),
        {
            str(each.transactional_id): {
                TopicPartition(str(topic.name), part.partition_index): int(part.partition_error_code)
                for topic in each.topic_results
                for part in topic.results_by_partition
            }
            for each in response.results_by_transaction
        },
    )


def _topics(name: str, partitions: Iterable[tuple[_TopicPartition, dict[str, int]]]) -> tuple[dict[str, Any], ...]:
    by_topic: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, _), values in partitions:
        by_topic[topic].append(values)
    return tuple({name: topic, "partitions": tuple(values)} for topic, values in by_topic.items())


def _indexes(partitions: Iterable[_TopicPartition], field: str) -> tuple[dict[str, Any], ...]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        by_topic[topic].append(index)
    return tuple({"name": topic, field: tuple(indexes)} for topic, indexes in by_topic.items())
