"""Requests of a broker to the controller: encoded through kio, decoded into plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = [
    "AlterPartitionResult",
    "AlteredPartition",
    "BrokerHeartbeatResult",
    "EnvelopeResult",
    "ProducerIdBlock",
    "ProposedPartition",
    "ReplicaDirectoriesResult",
    "allocate_producer_ids_request",
    "alter_partition_request",
    "assign_replicas_to_dirs_request",
    "broker_heartbeat_request",
    "envelope_request",
]


class ProposedPartition(NamedTuple):
    """A leader's proposal of an ISR (KIP-497).

    Attributes:
        isr: Broker epochs by replica id (KIP-903).
        partition_epoch: The epoch of the state that the proposal changes.
        is_recovering: Whether the leader has yet to recover from an unclean election (KIP-704).
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    isr: Mapping[int, int]
    partition_epoch: int
    is_recovering: bool = False


class AlteredPartition(NamedTuple):
    """The controller's decision about one partition: an error code, or the state after the change."""

    topic_id: UUID
    partition: int
    error_code: int
    leader_id: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    is_recovering: bool


class AlterPartitionResult(NamedTuple):
    """The response to AlterPartition; with an error code of the request there are no partitions."""

    error_code: int
    partitions: list[AlteredPartition]


class BrokerHeartbeatResult(NamedTuple):
    """The response to BrokerHeartbeat."""

    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class ProducerIdBlock(NamedTuple):
    """A block of producer ids that belongs to the broker; without an error code, `length` is at least 1."""

    error_code: int
    first: int
    length: int


class ReplicaDirectoriesResult(NamedTuple):
    """The response to AssignReplicasToDirs: the code of the request, and of each replica by topic id and partition."""

    error_code: int
    replicas: dict[tuple[UUID, int], int]


class EnvelopeResult(NamedTuple):
    """The response to a forwarded request; `data` holds the embedded response with its header, without a length."""

    error_code: int
    data: bytes | None


def alter_partition_request(
    broker_id: int, broker_epoch: int, proposals: Iterable[ProposedPartition]
) -> Request[AlterPartitionResult]:
    """Encode AlterPartition 3: the ISRs that a leader proposes."""
    by_topic: dict[UUID, list[ProposedPartition]] = defaultdict(list)
    for proposal in proposals:
        by_topic[proposal.topic_id].append(proposal)
    return kio_request(
        ApiKey.ALTER_PARTITION,
        3,
        {
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "topics": tuple(
                {"topic_id": topic_id, "partitions": tuple(_proposed(each) for each in partitions)}
                for topic_id, partitions in by_topic.items()
            ),
        },
    ).mapped(_altered)


def _proposed(proposal: ProposedPartition) -> dict[str, Any]:
    return {
        "partition_index": proposal.partition,
        "leader_epoch": proposal.leader_epoch,
        "new_isr_with_epochs": tuple(
            {"broker_id": broker_id, "broker_epoch": epoch} for broker_id, epoch in proposal.isr.items()
        ),
        "leader_recovery_state": int(proposal.is_recovering),
        "partition_epoch": proposal.partition_epoch,
    }


def _altered(response: Any) -> AlterPartitionResult:
    return AlterPartitionResult(
        int(response.error_code),
        [
            AlteredPartition(
                _topic_id(topic),
                part.partition_index,
                int(part.error_code),
                part.leader_id,
                part.leader_epoch,
                tuple(part.isr),
                part.partition_epoch,
                part.leader_recovery_state == 1,
            )
            for topic in response.topics
            for part in topic.partitions
        ],
    )


def broker_heartbeat_request(
    broker_id: int,
    broker_epoch: int,
    metadata_offset: int,
    *,
    want_fence: bool = False,
    want_shut_down: bool = False,
    offline_log_dirs: Sequence[UUID] = (),
    cordoned_log_dirs: Sequence[UUID] = (),
) -> Request[BrokerHeartbeatResult]:
    """Encode BrokerHeartbeat 2: a controlled shutdown, or log folders that failed (KIP-858) or are full."""
    return kio_request(
        ApiKey.BROKER_HEARTBEAT,
        2,
        {
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "current_metadata_offset": metadata_offset,
            "want_fence": want_fence,
            "want_shut_down": want_shut_down,
            "offline_log_dirs": tuple(offline_log_dirs),
            "cordoned_log_dirs": tuple(cordoned_log_dirs),
        },
    ).mapped(
        lambda response: BrokerHeartbeatResult(
            int(response.error_code), response.is_caught_up, response.is_fenced, response.should_shut_down
        )
    )


def allocate_producer_ids_request(broker_id: int, broker_epoch: int) -> Request[ProducerIdBlock]:
    """Encode AllocateProducerIds 0: a block of producer ids for this broker (KIP-730)."""
    return kio_request(ApiKey.ALLOCATE_PRODUCER_IDS, 0, {"broker_id": broker_id, "broker_epoch": broker_epoch}).mapped(
        _producer_ids
    )


def _producer_ids(response: Any) -> ProducerIdBlock:
    block = ProducerIdBlock(int(response.error_code), response.producer_id_start, response.producer_id_len)
    if not block.error_code and (block.first < 0 or block.length < 1):
        raise ValueError(f"a block of {block.length} producer ids from {block.first} on")
    return block


def assign_replicas_to_dirs_request(
    broker_id: int, broker_epoch: int, replicas: Mapping[UUID, Iterable[tuple[UUID, int]]]
) -> Request[ReplicaDirectoriesResult]:
    """Encode AssignReplicasToDirs 0: the replicas (topic id, partition) in each log folder, by directory id."""
    return kio_request(
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        0,
        {
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "directories": tuple(
                {"id_": directory_id, "topics": _by_topic(of_directory)}
                for directory_id, of_directory in replicas.items()
            ),
        },
    ).mapped(_assigned)


def _by_topic(replicas: Iterable[tuple[UUID, int]]) -> tuple[dict[str, Any], ...]:
    by_topic: dict[UUID, list[int]] = defaultdict(list)
    for topic_id, partition in replicas:
        by_topic[topic_id].append(partition)
    return tuple(
        {"topic_id": topic_id, "partitions": tuple({"partition_index": index} for index in indexes)}
        for topic_id, indexes in by_topic.items()
    )


def _assigned(response: Any) -> ReplicaDirectoriesResult:
    return ReplicaDirectoriesResult(
        int(response.error_code),
        {
            (_topic_id(topic), part.partition_index): int(part.error_code)
            for directory in response.directories
            for topic in directory.topics
            for part in topic.partitions
        },
    )


def envelope_request(request: bytes, principal: bytes | None, client_address: bytes) -> Request[EnvelopeResult]:
    """Encode Envelope 0: a client's request, forwarded to the controller (KIP-590).

    Args:
        request: The client's request with its header, without a length.
        principal: The client's principal, serialized.
        client_address: The client's IP address in 4 or 16 bytes.
    """
    return kio_request(
        ApiKey.ENVELOPE,
        0,
        {"request_data": request, "request_principal": principal, "client_host_address": client_address},
    ).mapped(lambda response: EnvelopeResult(int(response.error_code), response.response_data))


def _topic_id(topic: Any) -> UUID:
    """Return the id of a topic, which kio reads as None if it is zero."""
    topic_id: UUID | None = topic.topic_id
    return topic_id or UUID(int=0)
