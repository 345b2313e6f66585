"""AssignReplicasToDirs: a broker reports in which log folders its replicas are (KIP-858). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from headwater.logtier.controller.elections import MinIsr
from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.metadata.topic_nodes import PartitionImage, change_topic
from headwater.logtier.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """Where a replica of the sender is: `directory` is the id of a log folder, as in its meta.properties."""

    directory: str
    topic_id: UUID
    partition: int


def plan_assign_directories(
    image: MetadataImage, sender: int, places: Sequence[ReplicaDirectory], min_isr: MinIsr, brokers: Candidates
) -> Plan[ErrorCode]:
    """Decide each replica separately; the caller has checked the broker epoch of the sender.

    A replica that was in a folder that failed, and is in another one now, has begun anew there: it is no eligible
    leader. One that is reported to be in a failed folder leaves the ISR.
    """
    plan: Plan[ErrorCode] = Plan()
    changed: dict[str, tuple[TopicImage, list[PartitionImage]]] = {}
    for each in places:
        topic = image.topic_by_id(each.topic_id)
        if topic is None or not 0 <= each.partition < len(topic.partitions):
            plan.results.append(ErrorCode.unknown_topic_id if topic is None else ErrorCode.unknown_topic_or_partition)
            continue
        _, partitions = changed.setdefault(topic.name, (topic, list(topic.partitions)))
        partition = partitions[each.partition]
        if sender not in partition.replicas:
            plan.results.append(ErrorCode.not_leader_or_follower)
            continue
        process = image.brokers[sender].process
        partitions[each.partition] = _moved(partition, sender, process, each.directory, min_isr(topic), brokers)
        plan.results.append(ErrorCode.none)
    for topic, partitions in changed.values():
        plan.operations.extend(change_topic(topic.name, topic.topic_id, topic.partitions, tuple(partitions)))
    return plan


def _moved(
    partition: PartitionImage,
    sender: int,
    process: BrokerProcess,
    directory: str,
    min_isr: int,
    brokers: Candidates,
) -> PartitionImage:
    before = partition.directory_of(sender)
    if before == directory:
        return partition
    known = partition.directories or ("",) * len(partition.replicas)
    place = partition.replicas.index(sender)
    moved = replace(
        partition,
        directories=(*known[:place], directory, *known[place + 1 :]),
        partition_epoch=partition.partition_epoch + 1,
    )
    has_begun_anew = not process.has_online(before)
    draft = PartitionDraft(moved, min_isr, brokers)
    if has_begun_anew:
        draft.come_back(sender, is_clean=False)
    if not process.has_online(directory):
        draft.lose(sender)
    if has_begun_anew:
        draft.elect()  # If no other had every record, it leads, as a lone replica on a new disk does.
    return draft.result()
