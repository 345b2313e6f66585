"""AlterPartitionReassignments: partitions move to other brokers, or a move is cancelled (KIP-455, KIP-860). Pure.

The move itself has three stages, all of them in the state of the partition: it gets the new replicas beside the present
ones; the leader proposes the new ones for the ISR as they catch up (AlterPartition); the change that brings the last of
them ends the reassignment (`partition_draft`). A controller that takes over goes on with what is stored.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.logtier.controller.elections import MinIsr, changed_topics
from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.store import Operation
from headwater.logtier.metadata.topic_nodes import PartitionImage, change_topic
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class WantedReplicas:
    """The brokers that shall have a partition, the preferred leader first; None to cancel its reassignment."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """The result of one partition: None, or why nothing was changed."""

    topic_partition: TopicPartition
    error: KafkaError | None = None


def plan_reassignments(
    image: MetadataImage,
    asked: Sequence[WantedReplicas],
    min_isr: MinIsr,
    candidates: Candidates,
    *,
    may_change_factor: bool = True,
) -> Plan[ReassignmentResult]:
    """Begin, replace or cancel reassignments, each partition separately; the operations may take effect one by one.

    Args:
        may_change_factor: Whether a partition may get another number of replicas (KIP-860).
    """
    plan: Plan[ReassignmentResult] = Plan()
    changed: dict[str, list[PartitionImage]] = {}
    for each in asked:
        name, index = each.topic_partition
        error = None
        try:
            topic = _find(image, each.topic_partition)
            partitions = changed.setdefault(name, list(topic.partitions))
            draft = PartitionDraft(partitions[index], min_isr(topic), candidates)
            partitions[index] = (
                _cancelled(partitions[index], draft)
                if each.replicas is None
                else _reassigned(image, partitions[index], each.replicas, draft, may_change_factor=may_change_factor)
            )
        except KafkaError as refusal:
            error = refusal
        plan.results.append(ReassignmentResult(each.topic_partition, error))
    for name, partitions in changed.items():
        topic = image.topics[name]
        plan.operations.extend(change_topic(name, topic.topic_id, topic.partitions, tuple(partitions)))
    return plan


def plan_completions(image: MetadataImage, candidates: Candidates, min_isr: MinIsr) -> list[Operation]:
    """Return the operations that end the reassignments for which nothing but a broker or a config was missing.

    They may take effect one by one.
    """

    def completed(_: TopicImage, partition: PartitionImage, minimum: int) -> PartitionImage:
        return partition if partition.reassignment is None else PartitionDraft(partition, minimum, candidates).result()

    reassigned = (topic for topic in image.topics.values() if any(each.reassignment for each in topic.partitions))
    return changed_topics(reassigned, completed, min_isr)


def _find(image: MetadataImage, key: TopicPartition) -> TopicImage:
    topic = image.topic(key.topic)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {key.topic[:249]}.")
    if not 0 <= key.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {key.topic}:{key.partition}.")
    return topic


def _reassigned(
    image: MetadataImage,
    partition: PartitionImage,
    target: tuple[int, ...],
    draft: PartitionDraft,
    *,
    may_change_factor: bool,
) -> PartitionImage:
    if not target:
        raise _invalid("an empty replica list")
    for broker_id, count in sorted(Counter(target).items()):
        if broker_id not in image.registrations:
            raise _invalid(f"broker {broker_id}, but no such broker is registered")
        if count > 1:
            raise _invalid(f"the broker {broker_id} more than once")
    factor = len(partition.target)
    if len(target) != factor and not may_change_factor:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {factor} to {len(target)}.",
        )
    if target == partition.target and target != partition.replicas:
        return partition  # under way: asked for a second time, it goes on
    draft.reassign(target)
    return draft.result()


def _cancelled(partition: PartitionImage, draft: PartitionDraft) -> PartitionImage:
    """Return the state with the former replicas; a cancellation never takes the ISR below its minimum."""
    if partition.reassignment is None:
        raise KafkaError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    former = partition.reassignment.former
    draft.reassign(former)
    cancelled = draft.result()
    if cancelled.reassignment is not None:
        in_sync = [each for each in former if each in partition.isr]
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Too few of the former replicas {[*former]} are in sync, {in_sync}: without the added ones, committed "
            "records could be lost. Try again when the former replicas have caught up, or let the reassignment end.",
        )
    return cancelled


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {what}.")
