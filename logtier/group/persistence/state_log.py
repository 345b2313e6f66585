"""The groups and offsets that this broker coordinates, and the log that makes them durable."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from headwater.logtier.group.consumer.consumer_records import Change, consumer_key, consumer_value
from headwater.logtier.group.events import GroupMetadata
from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.pending_offsets import PendingOffset, PendingOffsets
from headwater.logtier.group.persistence.records import group_key, group_value, offset_key, offset_value
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.state_topic.log import (
    TOMBSTONES_PER_BATCH,
    WRITE_ERRORS,
    MetadataSource,
    StateTopicLog,
    StateTopicReplicas,
)
from headwater.logtier.state_topic.writes import Refused, Wait

_COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **WRITE_ERRORS,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}


class _Marker(NamedTuple):
    partition: int
    producer_id: int
    offset: int
    committed: bool


class GroupStateLog(StateTopicLog):
    """Committed offsets by group, and every write to `__consumer_offsets`.

    Files: the partitions of `__consumer_offsets` that this broker leads. `pending` holds commits of open transactions.
    """

    TOPIC = OFFSETS_TOPIC
    CONTENTS = "groups"

    def __init__(
        self,
        replicas: StateTopicReplicas,
        metadata: MetadataSource,
        timeout_ms: int,
        offsets_written: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`offsets_written` is called with the id of each group whose commit was applied."""
        super().__init__(replicas, metadata, timeout_ms)
        self._offsets_written = offsets_written
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()
        #: Markers that came while their partition was being loaded, or a commit of their producer was being written, by
        #: partition and producer.
        self._early_markers: dict[tuple[int, int], list[_Marker]] = {}
        #: Number of commits being written, by partition and producer.
        self._transactional_writes: Counter[tuple[int, int]] = Counter()

    @staticmethod
    def _described(name: str) -> str:
        return f"group {name}"

    async def load(
        self, partition: int, restoring: Callable[[GroupReplay], Iterator[None]], add_groups: Callable[[], None]
    ) -> Wait | None:
        """Read a partition's log and apply its offsets; return the rest of the load, if it has to wait.

        Args:
            restoring: Restores the groups from the replay in steps, before the partition is active.
            add_groups: Adds the groups when the partition becomes active.
        """
        replay = GroupReplay(f"{OFFSETS_TOPIC}-{partition}", partition)

        def adopt() -> None:
            self.offsets.update(replay.offsets)
            self.pending.merge(replay.pending)
            for key in [each for each in self._early_markers if each[0] == partition]:
                for marker in self._early_markers.pop(key):
                    self._apply_marker(marker)
            add_groups()

        return await self._read(partition, replay, adopt, restoring(replay))

    def forget_all(self) -> None:
        """Drop all state after a deletion of the topic."""
        super().forget_all()
        self.offsets.clear()
        self.pending.clear()
        self._early_markers.clear()

    def _drop(self, partitions: Set[int]) -> None:
        for group_id in [each for each in self.offsets if self.partition_of(each) in partitions]:
            del self.offsets[group_id]
        self.pending.drop(partitions)
        for key in [each for each in self._early_markers if each[0] in partitions]:
            del self._early_markers[key]

    async def write_group(self, group_id: str, metadata: GroupMetadata, now_ms: int) -> None:
        """Make a group's generation durable.

        Raises:
            KafkaError: with a code for JoinGroup or SyncGroup.
        """
        record = Record(group_key(group_id), group_value(metadata), now_ms)
        await self._write(group_id, build_batch([record]), applied=_nothing)

    async def write_changes(
        self,
        group_id: str,
        changes: Sequence[Change],
        now_ms: int,
        *,
        applied: Callable[[], None],
        refused: Refused,
        without_classic: bool = False,
        successor: GroupMetadata | None = None,
    ) -> None:
        """Write a step of a consumer group, atomically.

        Args:
            applied: Called when the step is in the log.
            refused: Called when the write has failed.
            without_classic: Whether the group replaces a classic group, whose record is deleted.
            successor: The classic group that replaces this group.

        Raises:
            KafkaError: with a code for a heartbeat.
        """
        records = [Record(group_key(group_id), None, now_ms)] if without_classic else []
        records += _records(changes, now_ms)
        if successor is not None:
            records.append(Record(group_key(group_id), group_value(successor), now_ms))
        await self._write(group_id, build_batch(records), applied=lambda _: applied(), refused=refused)

    async def write_offsets(
        self, group_id: str, commits: Mapping[TopicPartition, CommittedOffset], now_ms: int
    ) -> None:
        """Write commits atomically and apply them.

        Raises:
            KafkaError: with a code for OffsetCommit.
        """
        records = _offset_records(group_id, commits, now_ms)

        def take_over(first_offset: int) -> None:
            offsets = self.offsets.setdefault(group_id, GroupOffsets())
            for log_offset, (key, committed) in enumerate(commits.items(), start=first_offset):
                offsets.put(key, committed, log_offset)
            self._offsets_written(group_id)

        await self._write(group_id, build_batch(records), applied=take_over, errors=_COMMIT_ERRORS)

    async def write_transactional_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        commits: Mapping[TopicPartition, CommittedOffset],
        now_ms: int,
        verification: Verification | None,
    ) -> None:
        """Write commits of an open transaction; a commit marker applies them.

        Raises:
            KafkaError: with a code for TxnOffsetCommit.
        """
        records = _offset_records(group_id, commits, now_ms)
        batch = build_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL)
        partition = self.active_partition_of(group_id)
        key_of_writes = (partition, producer_id)

        def take_over(first_offset: int) -> None:
            for log_offset, (key, committed) in enumerate(commits.items(), start=first_offset):
                self.pending.put(partition, producer_id, PendingOffset(group_id, key, committed, log_offset))
            for marker in self._early_markers.get(key_of_writes, ()):
                self._apply_marker(marker)
            ended()
            self._offsets_written(group_id)

        def ended(_: object = None) -> None:
            self._transactional_writes[key_of_writes] -= 1
            if not self._transactional_writes[key_of_writes]:
                del self._transactional_writes[key_of_writes]
                self._early_markers.pop(key_of_writes, None)

        self._transactional_writes[key_of_writes] += 1
        await self._write(
            group_id,
            batch,
            applied=take_over,
            refused=ended,
            errors=_COMMIT_ERRORS,
            verification=verification,
            is_coordinator=True,
        )

    def end_transaction(self, partition: int, producer_id: int, marker_offset: int, *, committed: bool) -> None:
        """Apply or drop the commits of a transaction whose marker was appended to a partition of the topic."""
        marker = _Marker(partition, producer_id, marker_offset, committed)
        self._apply_marker(marker)
        key = (partition, producer_id)
        if key in self._transactional_writes or self.is_loading(partition):
            self._early_markers.setdefault(key, []).append(marker)

    def _apply_marker(self, marker: "_Marker") -> None:
        if not self.is_active(marker.partition):
            return
        for pending in self.pending.end(marker.partition, marker.producer_id, marker.offset):
            if marker.committed:
                offsets = self.offsets.setdefault(pending.group_id, GroupOffsets())
                offsets.put(pending.topic_partition, pending.committed, pending.log_offset)

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions with an offset of the group, committed or in an open transaction."""
        return list({*(self.offsets.get(group_id) or ()), *self.pending.of_group(group_id)})

    async def write_tombstones(
        self,
        group_id: str,
        removed: Iterable[TopicPartition],
        now_ms: int,
        *,
        with_group: bool = False,
        changes: Sequence[Change] = (),
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        """Write tombstones of offsets, `with_group` of a classic group's metadata, and of a consumer group's records.

        Many tombstones take several batches, and there is no time limit: call by `to_its_end`. `applied` is called when
        all are committed.

        Raises:
            KafkaError: with a code for DeleteGroups and OffsetDelete.
        """
        keys = list(removed)
        records = [Record(offset_key(group_id, key), None, now_ms) for key in keys]
        if with_group:
            records.append(Record(group_key(group_id), None, now_ms))
        records += _records(changes, now_ms)
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            batch = records[start : start + TOMBSTONES_PER_BATCH]
            take_over = functools.partial(
                self._tombstones_written,
                group_id,
                keys[start : start + TOMBSTONES_PER_BATCH],
                len(batch),
                applied if start + TOMBSTONES_PER_BATCH >= len(records) else None,
            )
            await self._write(group_id, build_batch(batch), applied=take_over, has_timeout=False)
        if not records:
            applied()

    def _tombstones_written(
        self,
        group_id: str,
        removed: Sequence[TopicPartition],
        count: int,
        all_applied: Callable[[], None] | None,
        first_offset: int,
    ) -> None:
        last_offset = first_offset + count - 1
        self.pending.remove(group_id, removed, last_offset)
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            offsets.remove(removed, last_offset)
            if not offsets:
                del self.offsets[group_id]
        if all_applied is not None:
            all_applied()


def _nothing(_: int) -> None:
    """Do nothing: the caller applies the write itself and is never cancelled."""


def _offset_records(group_id: str, commits: Mapping[TopicPartition, CommittedOffset], now_ms: int) -> list[Record]:
    return [Record(offset_key(group_id, key), offset_value(committed), now_ms) for key, committed in commits.items()]


def _records(changes: Iterable[Change], now_ms: int) -> list[Record]:
    return [
        Record(consumer_key(each.key), None if each.value is None else consumer_value(each.value), now_ms)
        for each in changes
    ]
