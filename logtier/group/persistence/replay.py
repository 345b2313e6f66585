"""Replay of a partition of `__consumer_offsets`: the state of its groups."""

from headwater.logtier.group.consumer.consumer_records import ConsumerKey
from headwater.logtier.group.consumer.consumer_state import ConsumerState
from headwater.logtier.group.events import GroupMetadata
from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.group.persistence.pending_offsets import PendingOffset, PendingOffsets
from headwater.logtier.group.persistence.records import (
    OffsetKey,
    parse_group_value,
    parse_key,
    parse_offset_value,
    parse_value,
)
from headwater.logtier.records.batch import (
    NO_PRODUCER_ID,
    Buffer,
    Record,
    RecordBatchHeader,
    decode_end_transaction_marker,
)
from headwater.logtier.state_topic.replay import StateReplay


class GroupReplay(StateReplay):
    """The groups, offsets and pending transactional offsets of one partition."""

    def __init__(self, partition_name: str, partition: int = 0) -> None:
        super().__init__(partition_name)
        self.groups: dict[str, GroupMetadata] = {}
        self.consumer_groups: dict[str, ConsumerState] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()
        self._partition = partition

    def _apply_control(self, header: RecordBatchHeader, batch: Buffer) -> None:
        marker = decode_end_transaction_marker(batch)
        if marker is None:
            return
        for pending in self.pending.end(self._partition, header.producer_id, header.base_offset):
            if marker.committed:
                offsets = self.offsets.setdefault(pending.group_id, GroupOffsets())
                offsets.put(pending.topic_partition, pending.committed, pending.log_offset)

    def _apply_record(self, record: Record, header: RecordBatchHeader) -> None:
        if record.key is None:
            return
        key = parse_key(record.key)
        if key is None:
            return
        if isinstance(key, OffsetKey):
            self._apply_offset(key, record, header.producer_id if header.is_transactional else NO_PRODUCER_ID)
        elif isinstance(key, ConsumerKey):
            self._apply_consumer(key, record.value)
        elif record.value is None:
            self.groups.pop(key.group_id, None)
        else:
            self.groups[key.group_id] = parse_group_value(record.value)

    def _apply_offset(self, key: OffsetKey, record: Record, producer_id: int) -> None:
        if record.value is not None and producer_id != NO_PRODUCER_ID:
            committed = parse_offset_value(record.value)
            pending = PendingOffset(key.group_id, key.topic_partition, committed, record.offset)
            self.pending.put(self._partition, producer_id, pending)
            return
        offsets = self.offsets.setdefault(key.group_id, GroupOffsets())
        if record.value is None:
            offsets.remove([key.topic_partition], record.offset)
            self.pending.remove(key.group_id, [key.topic_partition], record.offset)
        else:
            offsets.put(key.topic_partition, parse_offset_value(record.value), record.offset)
        if not offsets:
            del self.offsets[key.group_id]

    def _apply_consumer(self, key: ConsumerKey, data: bytes | None) -> None:
        state = self.consumer_groups.get(key.group_id)
        if data is None:
            if state is not None and not state.apply(key.kind, key.name, None):
                del self.consumer_groups[key.group_id]
            return
        value = parse_value(key, data)
        if value is not None:
            if state is None:
                state = self.consumer_groups[key.group_id] = ConsumerState(key.group_id)
            state.apply(key.kind, key.name, value)
