"""AlterPartition: a leader asks for another ISR (KIP-497, KIP-704, KIP-841, KIP-903). Pure.

The checks and their order are Kafka's: leaders react to each error in another way. A leader that is ahead of this
controller talks to a deposed one; a leader that is behind keeps its maximal ISR and waits for newer metadata.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from headwater.logtier.controller.elections import MinIsr
from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import PartitionImage, change_topic
from headwater.logtier.protocol.errors import ErrorCode


class IsrMembers(Candidates, Protocol):
    """What the controller knows of brokers that are to join an ISR."""

    def may_join(self, broker_id: int, broker_epoch: int, directory: str, /) -> bool:
        """Whether a broker is alive in this epoch (any, if UNKNOWN_BROKER_EPOCH), neither fenced nor shutting down."""


@dataclass(frozen=True, slots=True)
class PartitionAlteration:
    """What the leader of a partition asks for.

    Attributes:
        isr: The members with their broker epochs.
        is_recovering: Whether the leader, elected uncleanly, still recovers.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    is_recovering: bool = False


@dataclass(frozen=True, slots=True)
class AlterationResult:
    """The state of a partition after an alteration, or the error that refused it."""

    topic_id: UUID
    partition: int
    error_code: ErrorCode = ErrorCode.none
    state: PartitionImage | None = None


def plan_alter_partitions(
    image: MetadataImage,
    sender: int,
    alterations: Sequence[PartitionAlteration],
    min_isr: MinIsr,
    members: IsrMembers,
) -> Plan[AlterationResult]:
    """Decide each alteration separately; the caller has checked the broker epoch of the sender."""
    plan: Plan[AlterationResult] = Plan()
    changed: dict[str, tuple[TopicImage, list[PartitionImage]]] = {}
    for asked in alterations:
        topic = image.topic_by_id(asked.topic_id)
        if topic is None or not 0 <= asked.partition < len(topic.partitions):
            code = ErrorCode.unknown_topic_id if topic is None else ErrorCode.unknown_topic_or_partition
            plan.results.append(AlterationResult(asked.topic_id, asked.partition, code))
            continue
        _, partitions = changed.setdefault(topic.name, (topic, list(topic.partitions)))
        decided = _decide(partitions[asked.partition], sender, asked, min_isr(topic), members)
        if isinstance(decided, ErrorCode):
            plan.results.append(AlterationResult(asked.topic_id, asked.partition, decided))
        else:
            partitions[asked.partition] = decided
            plan.results.append(_result(asked, decided))
    for topic, partitions in changed.values():
        plan.operations.extend(change_topic(topic.name, topic.topic_id, topic.partitions, tuple(partitions)))
    return plan


def _result(asked: PartitionAlteration, decided: PartitionImage) -> AlterationResult:
    """Return the new state. At the end of a reassignment the leader, which may stay, waits for the new epoch."""
    if decided.leader_epoch != asked.leader_epoch:
        return AlterationResult(asked.topic_id, asked.partition, ErrorCode.new_leader_elected)
    return AlterationResult(asked.topic_id, asked.partition, state=decided)


def _decide(
    partition: PartitionImage, sender: int, asked: PartitionAlteration, min_isr: int, members: IsrMembers
) -> PartitionImage | ErrorCode:
    """Return the new state, the present one if it is already as asked, or the error."""
    isr = {member for member, _ in asked.isr}
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        return ErrorCode.not_controller
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if sender != partition.leader or not isr.issubset(partition.replicas) or sender not in isr:
        return ErrorCode.invalid_request
    if asked.is_recovering and not partition.is_recovering:
        return ErrorCode.invalid_request
    if isr == set(partition.isr) and asked.is_recovering == partition.is_recovering:
        return partition
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    if asked.is_recovering and len(isr) > 1:
        return ErrorCode.invalid_request
    if not all(members.may_join(member, epoch, partition.directory_of(member)) for member, epoch in asked.isr):
        return ErrorCode.ineligible_replica
    draft = PartitionDraft(partition, min_isr, members)
    draft.alter(tuple(isr), is_recovering=asked.is_recovering)
    return draft.result()
