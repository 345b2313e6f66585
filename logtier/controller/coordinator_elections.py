"""Leaders of the partitions of coordinators when brokers come and go. Pure.

The state of groups and transactions does not move with leadership yet: a partition's coordinator is the broker that
led it first, and the clients wait while that broker is away. Its place in the ISR stays meanwhile, so that it leads at
once when it returns with all its records. If it may have lost some, because it had not flushed them when its machine
went down, another member of the ISR leads in its place (`PartitionImage.coordinator`) until it has caught up.
"""

from dataclasses import replace

from headwater.logtier.controller.partition_draft import Candidates, PartitionDraft
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage


def without_broker(partition: PartitionImage, broker_id: int, min_isr: int, brokers: Candidates) -> PartitionImage:
    """Return the state after a broker has gone."""
    home = _home(partition)
    if partition.leader == NO_BROKER and partition.isr:
        return partition  # Nothing is committed meanwhile: who is in the ISR has all, also when it returns.
    if broker_id == home == partition.leader:
        return replace(
            partition,
            leader=NO_BROKER,
            last_known_leader=home,
            leader_epoch=partition.leader_epoch + 1,
            partition_epoch=partition.partition_epoch + 1,
        )
    draft = PartitionDraft(partition, min_isr, brokers)
    draft.lose(broker_id)
    draft.wait_for(home)
    return draft.result()


def with_broker(
    partition: PartitionImage, broker_id: int, min_isr: int, brokers: Candidates, *, is_clean: bool
) -> PartitionImage:
    """Return the state after a replica's broker has returned, as in `PartitionDraft.come_back`."""
    home = _home(partition)
    draft = PartitionDraft(partition, min_isr, brokers)
    keeps_its_place = is_clean and broker_id in partition.isr
    if broker_id == home and keeps_its_place and brokers.is_candidate(home, partition.directory_of(home)):
        draft.lead_again(home)
    else:
        if partition.leader != NO_BROKER or not keeps_its_place:
            draft.come_back(broker_id, is_clean=is_clean)
        if not draft.has_eligible:
            if broker_id in (*partition.isr, *partition.elr):
                # The last one that may have had every record: no other has more.
                draft.lead_uncleanly(broker_id)
            draft.lead_uncleanly(home)
        elif brokers.is_candidate(home, partition.directory_of(home)):
            draft.elect()
    if partition.leader == NO_BROKER:
        draft.lose_dead()  # Those that went meanwhile.
    draft.wait_for(home)
    return draft.result()


def _home(partition: PartitionImage) -> int:
    return partition.leader if partition.last_known_leader == NO_BROKER else partition.last_known_leader
