"""Elections that an administrator asks for: preferred leaders, and unclean elections (KIP-183, KIP-460). Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.logtier.controller.elections import MinIsr
from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, change_topic
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class LeaderElectionResult:
    """The result of one partition: None, or why no other leader was elected."""

    topic_partition: TopicPartition
    error: KafkaError | None = None


def plan_elect_leaders(
    image: MetadataImage,
    asked: Sequence[TopicPartition] | None,
    min_isr: MinIsr,
    candidates: Candidates,
    *,
    is_unclean: bool,
) -> Plan[LeaderElectionResult]:
    """Elect a leader of each partition; of all partitions (None) only those are answered that needed an election."""
    plan: Plan[LeaderElectionResult] = Plan()
    changed: dict[str, list[PartitionImage]] = {}
    for key in _all(image) if asked is None else dict.fromkeys(asked):
        error = None
        try:
            topic, partition = _find(image, key)
            elected = _elect(partition, min_isr(topic), candidates, is_unclean=is_unclean)
            changed.setdefault(key.topic, list(topic.partitions))[key.partition] = elected
        except KafkaError as refusal:
            error = refusal
        if asked is not None or error is None or error.code is not ErrorCode.election_not_needed:
            plan.results.append(LeaderElectionResult(key, error))
    for name, partitions in changed.items():
        topic = image.topics[name]
        plan.operations.extend(change_topic(name, topic.topic_id, topic.partitions, tuple(partitions)))
    return plan


def plan_giving_way(
    image: MetadataImage, broker_id: int, min_isr: MinIsr, candidates: Candidates
) -> Plan[TopicPartition]:
    """Move leaderships away from a broker that shuts down, and take it out of ISRs (KIP-841).

    The results are the partitions that it still leads although another replica is alive, which may join the ISR yet.
    """
    plan: Plan[TopicPartition] = Plan()
    for topic in image.topics.values():
        partitions = list(topic.partitions)
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.isr:
                continue
            draft = PartitionDraft(partition, min_isr(topic), candidates)
            if partition.leader == broker_id:
                draft.give_way()
                if draft.result().leader == broker_id:
                    others = [each for each in partition.replicas if each != broker_id]
                    if any(candidates.is_candidate(each, partition.directory_of(each)) for each in others):
                        plan.results.append(TopicPartition(topic.name, index))
                    continue
            draft.lose(broker_id)
            partitions[index] = draft.result()
        plan.operations.extend(change_topic(topic.name, topic.topic_id, topic.partitions, tuple(partitions)))
    return plan


def _all(image: MetadataImage) -> Iterator[TopicPartition]:
    return (
        TopicPartition(topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions))
    )


def _find(image: MetadataImage, key: TopicPartition) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic(key.topic)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such topic as {key.topic}")
    if not 0 <= key.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {key.topic}-{key.partition}")
    return topic, topic.partitions[key.partition]


def _elect(partition: PartitionImage, min_isr: int, candidates: Candidates, *, is_unclean: bool) -> PartitionImage:
    is_led_well = partition.leader != NO_BROKER if is_unclean else partition.leader == partition.replicas[0]
    if is_led_well:
        raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
    draft = PartitionDraft(partition, min_isr, candidates)
    if is_unclean:
        draft.elect(unclean=True)
    else:
        draft.prefer(partition.replicas[0])
    elected = draft.result()
    if elected is not partition:
        return elected
    if is_unclean:
        raise KafkaError(ErrorCode.eligible_leaders_not_available, "No replica of the partition can lead it.")
    raise KafkaError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
