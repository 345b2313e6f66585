"""What the log of `__consumer_offsets` says: the state of its groups, from the first record to the last."""

import logging

from logtier.group.events import GroupMetadata
from logtier.group.offsets import GroupOffsets
from logtier.group.records import (
    CorruptCoordinatorRecordError,
    OffsetKey,
    parse_group_value,
    parse_key,
    parse_offset_value,
)
from logtier.records.batch import Buffer, CorruptRecordsError, Record, RecordBatchHeader, decode_records

logger = logging.getLogger(__name__)


class Replay:
    """The state that one partition's log adds up to, batch by batch.

    Invariant: after the last batch it equals the live state of the coordinator that wrote them. A record that cannot be
    read is logged and passed over: one group's damage must not take the others with it.
    """

    def __init__(self, partition_name: str) -> None:
        self.groups: dict[str, GroupMetadata] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self._partition_name = partition_name

    def apply(self, batch: Buffer) -> None:
        """Take in one batch."""
        try:
            if RecordBatchHeader.parse(batch).is_control:
                return
            records = decode_records(batch)
        except CorruptRecordsError as error:
            logger.error("%s: a batch cannot be read and is passed over: %s", self._partition_name, error)
            return
        for record in records:
            try:
                self._apply_record(record)
            except CorruptCoordinatorRecordError as error:
                logger.error("%s: offset %d is passed over: %s", self._partition_name, record.offset, error)

    def _apply_record(self, record: Record) -> None:
        if record.key is None:
            return
        key = parse_key(record.key)
        if key is None:
            return
        if isinstance(key, OffsetKey):
            offsets = self.offsets.setdefault(key.group_id, GroupOffsets())
            if record.value is None:
                offsets.remove([key.topic_partition], record.offset)
            else:
                offsets.put(key.topic_partition, parse_offset_value(record.value), record.offset)
            if not offsets:
                del self.offsets[key.group_id]
        elif record.value is None:
            self.groups.pop(key.group_id, None)
        else:
            self.groups[key.group_id] = parse_group_value(record.value)
