"""Offsets committed in open transactions, not readable before the transaction's marker. Pure."""

from collections.abc import Collection, Iterable, Iterator, Set
from typing import NamedTuple

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.protocol.topic_partition import TopicPartition


class PendingOffset(NamedTuple):
    """One commit and its record's offset in `__consumer_offsets`."""

    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset
    log_offset: int


class PendingOffsets:
    """Commits of open transactions, by partition of `__consumer_offsets` and producer.

    A transaction with commits in two of those partitions has a marker in each. Invariant: a commit is pending from its
    record to the next marker of its transaction, or to its tombstone.
    """

    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        self._by_producer: dict[tuple[int, int], dict[tuple[str, TopicPartition], PendingOffset]] = {}
        #: group -> number of producers with a pending commit, by partition
        self._by_group: dict[str, dict[TopicPartition, int]] = {}

    def __iter__(self) -> Iterator[PendingOffset]:
        return iter([pending for offsets in self._by_producer.values() for pending in offsets.values()])

    def put(self, partition: int, producer_id: int, pending: PendingOffset) -> None:
        """Add a commit that is in the log; it replaces the producer's earlier one for the partition."""
        offsets = self._by_producer.setdefault((partition, producer_id), {})
        key = (pending.group_id, pending.topic_partition)
        if key not in offsets:
            counts = self._by_group.setdefault(pending.group_id, {})
            counts[pending.topic_partition] = counts.get(pending.topic_partition, 0) + 1
        offsets[key] = pending

    def end(self, partition: int, producer_id: int, marker_offset: int) -> list[PendingOffset]:
        """Remove and return the commits before the marker that ends the producer's transaction."""
        offsets = self._by_producer.get((partition, producer_id))
        if offsets is None:
            return []
        ended = [pending for pending in offsets.values() if pending.log_offset < marker_offset]
        for pending in ended:
            self._discard(partition, producer_id, pending)
        return ended

    def remove(self, group_id: str, topic_partitions: Collection[TopicPartition], log_offset: int) -> None:
        """Remove commits whose tombstones are in the log at `log_offset` or before."""
        if group_id not in self._by_group:
            return
        for (partition, producer_id), offsets in list(self._by_producer.items()):
            for topic_partition in topic_partitions:
                pending = offsets.get((group_id, topic_partition))
                if pending is not None and pending.log_offset <= log_offset:
                    self._discard(partition, producer_id, pending)

    def has(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Whether an open transaction has committed an offset of this partition for the group."""
        counts = self._by_group.get(group_id)
        return counts is not None and topic_partition in counts

    def of_group(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions with a pending commit of the group."""
        return self._by_group.get(group_id, {}).keys()

    def groups(self) -> Iterable[str]:
        """Return all groups with pending commits."""
        return list(self._by_group)

    def merge(self, other: "PendingOffsets") -> None:
        """Add the pending commits of a loaded partition."""
        for (partition, producer_id), offsets in other._by_producer.items():
            for pending in offsets.values():
                self.put(partition, producer_id, pending)

    def drop(self, partitions: Set[int]) -> None:
        """Remove the commits in partitions of `__consumer_offsets` that this broker no longer leads."""
        for key in [each for each in self._by_producer if each[0] in partitions]:
            for pending in list(self._by_producer[key].values()):
                self._discard(*key, pending)

    def clear(self) -> None:
        """Remove all commits after a deletion of the topic."""
        self._by_producer.clear()
        self._by_group.clear()

    def _discard(self, partition: int, producer_id: int, pending: PendingOffset) -> None:
        offsets = self._by_producer[partition, producer_id]
        del offsets[pending.group_id, pending.topic_partition]
        if not offsets:
            del self._by_producer[partition, producer_id]
        counts = self._by_group[pending.group_id]
        counts[pending.topic_partition] -= 1
        if not counts[pending.topic_partition]:
            del counts[pending.topic_partition]
            if not counts:
                del self._by_group[pending.group_id]
