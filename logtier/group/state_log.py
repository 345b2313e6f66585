"""The groups and offsets that this broker coordinates, and the log that makes them durable."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from logtier.group.consumer_records import Change, consumer_key, consumer_value
from logtier.group.events import GroupMetadata
from logtier.group.offsets import CommittedOffset, GroupOffsets
from logtier.group.offsets_topic import OFFSETS_TOPIC, partition_for
from logtier.group.pending_offsets import PendingOffset, PendingOffsets
from logtier.group.records import group_key, group_value, offset_key, offset_value
from logtier.group.replay import Replay
from logtier.log.producer_state import Verification
from logtier.metadata.image import MetadataImage
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import TRANSACTIONAL, Buffer, CorruptRecordsError, Record, build_batch

logger = logging.getLogger(__name__)

#: While a log is loaded, other requests get a turn after so many batches.
BATCHES_PER_TURN = 64
#: Most tombstones of one batch: keeps expiry far below max.message.bytes, whatever the lengths of names.
TOMBSTONES_PER_BATCH = 500


class _AppendInfo(Protocol):
    @property
    def first_offset(self) -> int: ...


class _Log(Protocol):
    def batches(self) -> Iterator[Buffer]: ...


class Replicas(Protocol):
    """What the group coordinator needs of the replica manager."""

    def leader_partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that this broker leads."""

    def log(self, topic_partition: TopicPartition, /) -> _Log:
        """The local log of a partition."""

    async def append_and_wait(
        self,
        topic_partition: TopicPartition,
        records: bytes,
        timeout_ms: int,
        /,
        *,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> _AppendInfo:
        """Append with acks=all. Writes of one partition complete in the order they were made."""


class MetadataSource(Protocol):
    """What the group coordinator reads of the metadata cache."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""


class _PartitionState(Enum):
    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()


class _Marker(NamedTuple):
    partition: int
    producer_id: int
    offset: int
    committed: bool


class StateLog:
    """Committed offsets by group, and every write to `__consumer_offsets`.

    Files: the partitions of `__consumer_offsets` that this broker leads. Invariant: offsets change only by what is in
    the log, in its order, so the live state equals the log's replay. Only the coordinator uses it.
    """

    def __init__(self, replicas: Replicas, metadata: MetadataSource, timeout_ms: int) -> None:
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()
        self._replicas = replicas
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, _PartitionState] = {}
        #: Markers that came while their partition was read, or a commit before them was written.
        self._early_markers: list[_Marker] = []
        self._transactional_writes = 0

    def partition_of(self, group_id: str) -> int:
        """The partition of a group.

        Raises:
            KafkaError: not_coordinator, if the topic does not exist.
        """
        topic = self._metadata.image.topic(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{OFFSETS_TOPIC} does not exist yet")
        return partition_for(group_id, len(topic.partitions))

    def active_partition_of(self, group_id: str) -> int:
        """The partition of a group, if its state is loaded here.

        Raises:
            KafkaError: not_coordinator, coordinator_load_in_progress, coordinator_not_available (a damaged log).
        """
        partition = self.partition_of(group_id)
        state = self._partitions.get(partition)
        if state is _PartitionState.ACTIVE:
            return partition
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator, f"this broker does not coordinate group {group_id}")
        if state is _PartitionState.FAILED:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC}-{partition} cannot be read")
        raise KafkaError(ErrorCode.coordinator_load_in_progress, f"the state of group {group_id} is being loaded")

    @property
    def is_loading(self) -> bool:
        """Whether the state of some groups is still being read."""
        return any(state is _PartitionState.LOADING for state in self._partitions.values())

    def new_partitions(self) -> list[int]:
        """Partitions this broker leads since the last call; they count as loading from now on."""
        found = [each for each in self._replicas.leader_partitions(OFFSETS_TOPIC) if each not in self._partitions]
        self._partitions.update(dict.fromkeys(found, _PartitionState.LOADING))
        return found

    async def load(self, partition: int) -> Replay:
        """Read a partition's log; its offsets are taken over, the groups are the caller's.

        A log that cannot be read to its end is not half used: its groups would silently go back to old offsets.
        """
        key = TopicPartition(OFFSETS_TOPIC, partition)
        replay = Replay(str(key), partition)
        try:
            for count, batch in enumerate(self._replicas.log(key).batches(), start=1):
                replay.apply(batch)
                if count % BATCHES_PER_TURN == 0:
                    await asyncio.sleep(0)
        except (KafkaError, OSError, CorruptRecordsError) as error:
            logger.error("%s cannot be loaded, its groups are not available: %s", key, error)
            self._partitions[partition] = _PartitionState.FAILED
            return Replay(str(key))
        self.offsets.update(replay.offsets)
        self.pending.merge(replay.pending)
        self._partitions[partition] = _PartitionState.ACTIVE
        for marker in self._early_markers:
            self._apply_marker(marker)
        self._forget_early_markers()
        return replay

    def forget_all(self) -> None:
        """The topic is gone, and with it all state."""
        self._partitions.clear()
        self.offsets.clear()
        self.pending.clear()
        self._early_markers.clear()

    async def write_group(self, group_id: str, metadata: GroupMetadata, now_ms: int) -> None:
        """Make a group's generation durable.

        Raises:
            KafkaError: with a code that a JoinGroup or SyncGroup may carry.
        """
        try:
            record = Record(group_key(group_id), group_value(metadata), now_ms)
            await self._append(self.active_partition_of(group_id), [record])
        except KafkaError as error:
            raise KafkaError(_GROUP_ERRORS.get(error.code, error.code), error.message) from error

    async def write_changes(
        self,
        group_id: str,
        changes: Sequence[Change],
        now_ms: int,
        *,
        without_classic: bool = False,
        successor: GroupMetadata | None = None,
    ) -> None:
        """Make a step of a consumer group durable, all of it or nothing.

        Args:
            without_classic: It takes the place of a classic group, which is removed.
            successor: The classic group that takes its place.

        Raises:
            KafkaError: with a code that a heartbeat may carry.
        """
        records = [Record(group_key(group_id), None, now_ms)] if without_classic else []
        records += _records(changes, now_ms)
        if successor is not None:
            records.append(Record(group_key(group_id), group_value(successor), now_ms))
        try:
            await self._append(self.active_partition_of(group_id), records)
        except KafkaError as error:
            raise KafkaError(_GROUP_ERRORS.get(error.code, error.code), error.message) from error

    async def write_offsets(
        self, group_id: str, commits: Mapping[TopicPartition, CommittedOffset], now_ms: int
    ) -> None:
        """Make commits durable, all or none, and take them over.

        Raises:
            KafkaError: with a code that an OffsetCommit may carry.
        """
        try:
            records = [
                Record(offset_key(group_id, key), offset_value(committed), now_ms) for key, committed in commits.items()
            ]
            first_offset = await self._append(self.active_partition_of(group_id), records)
        except KafkaError as error:
            raise KafkaError(_COMMIT_ERRORS.get(error.code, error.code), error.message) from error
        offsets = self.offsets.setdefault(group_id, GroupOffsets())
        for log_offset, (key, committed) in enumerate(commits.items(), start=first_offset):
            offsets.put(key, committed, log_offset)

    async def write_transactional_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        commits: Mapping[TopicPartition, CommittedOffset],
        now_ms: int,
        verification: Verification | None,
    ) -> None:
        """Make commits of an open transaction durable; they are taken over when its marker says so.

        Raises:
            KafkaError: with a code that a TxnOffsetCommit may carry.
        """
        records = [
            Record(offset_key(group_id, key), offset_value(committed), now_ms) for key, committed in commits.items()
        ]
        batch = build_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL)
        self._transactional_writes += 1
        try:
            partition = self.active_partition_of(group_id)
            first_offset = await self._append_batch(partition, batch, verification=verification, is_coordinator=True)
            for log_offset, (key, committed) in enumerate(commits.items(), start=first_offset):
                self.pending.put(partition, producer_id, PendingOffset(group_id, key, committed, log_offset))
            for marker in self._early_markers:
                if marker.producer_id == producer_id:
                    self._apply_marker(marker)
        except KafkaError as error:
            raise KafkaError(_COMMIT_ERRORS.get(error.code, error.code), error.message) from error
        finally:
            self._transactional_writes -= 1
            self._forget_early_markers()

    def end_transaction(self, partition: int, producer_id: int, marker_offset: int, *, committed: bool) -> None:
        """A marker was appended to a partition of the topic: what the transaction has committed counts, or is gone."""
        marker = _Marker(partition, producer_id, marker_offset, committed)
        self._apply_marker(marker)
        self._early_markers.append(marker)
        self._forget_early_markers()

    def _apply_marker(self, marker: "_Marker") -> None:
        if self._partitions.get(marker.partition) is not _PartitionState.ACTIVE:
            return
        for pending in self.pending.end(marker.partition, marker.producer_id, marker.offset):
            if marker.committed:
                offsets = self.offsets.setdefault(pending.group_id, GroupOffsets())
                offsets.put(pending.topic_partition, pending.committed, pending.log_offset)

    def _forget_early_markers(self) -> None:
        if not self._transactional_writes and not self.is_loading:
            self._early_markers.clear()

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """Of which partitions the group has an offset, committed or in an open transaction."""
        return list({*(self.offsets.get(group_id) or ()), *self.pending.of_group(group_id)})

    async def write_tombstones(
        self,
        group_id: str,
        removed: Iterable[TopicPartition],
        now_ms: int,
        *,
        with_group: bool = False,
        changes: Sequence[Change] = (),
    ) -> None:
        """Remove offsets, `with_group` the metadata of a classic group, and what a consumer group consists of, durably.

        Raises:
            KafkaError: with a code that DeleteGroups and OffsetDelete may carry.
        """
        keys = list(removed)
        records = [Record(offset_key(group_id, key), None, now_ms) for key in keys]
        if with_group:
            records.append(Record(group_key(group_id), None, now_ms))
        records += _records(changes, now_ms)
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            batch = records[start : start + TOMBSTONES_PER_BATCH]
            try:
                first_offset = await self._append(self.active_partition_of(group_id), batch)
            except KafkaError as error:
                raise KafkaError(_GROUP_ERRORS.get(error.code, error.code), error.message) from error
            removed_keys, last_offset = keys[start : start + TOMBSTONES_PER_BATCH], first_offset + len(batch) - 1
            self.pending.remove(group_id, removed_keys, last_offset)
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                offsets.remove(removed_keys, last_offset)
                if not offsets:
                    del self.offsets[group_id]

    async def _append(self, partition: int, records: Sequence[Record]) -> int:
        """Append one batch; the offset of its first record."""
        return await self._append_batch(partition, build_batch(records))

    async def _append_batch(self, partition: int, batch: bytes, **transaction: Any) -> int:
        key = TopicPartition(OFFSETS_TOPIC, partition)
        try:
            info = await self._replicas.append_and_wait(key, batch, self._timeout_ms, **transaction)
        except OSError as error:
            logger.error("%s cannot be written: %s", key, error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"{key} cannot be written: {error}") from error
        return info.first_offset


def _records(changes: Iterable[Change], now_ms: int) -> list[Record]:
    return [
        Record(consumer_key(each.key), None if each.value is None else consumer_value(each.value), now_ms)
        for each in changes
    ]


_GROUP_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
_COMMIT_ERRORS = {
    **_GROUP_ERRORS,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}
