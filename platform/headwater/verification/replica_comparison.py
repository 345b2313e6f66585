"""Compares the record batches of two replicas of a partition. Pure.

Followers append the leader's batches unchanged, so that replicas are equal byte by byte, the leader epoch of each batch
included. Cleaners are an exception: each broker compacts its own copy at its own time. Between replicas of a compacted
topic, equal bytes are equal; where they differ, records are compared:

- A record that both have is equal: key, value, headers, timestamp, leader epoch, producer, and sequence number.
- A record that only one has was replaced: its key has a later record (`UnmatchedRecords`). Not compared are records
  that a cleaner removes without a later one: tombstones, records of aborted transactions and markers, records without a
  key, and batches without records. A later record of an aborted transaction counts as a later record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headwater.logtier.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    CorruptRecordsError,
    Record,
    RecordBatchHeader,
    check_batch,
    decode_end_transaction_marker,
    decode_records,
    iterate_batches,
)
from headwater.verification.unmatched_records import Unmatched, UnmatchedRecords

#: The bits of a batch's attributes that a cleaner may change.
_CLEANED_BITS: Final = COMPRESSION_MASK | DELETE_HORIZON

_FIELDS: Final = (
    ("partition_leader_epoch", "leader epoch"),
    ("last_offset_delta", "last offset"),
    ("producer_id", "producer id"),
    ("producer_epoch", "producer epoch"),
    ("base_sequence", "base sequence"),
)


class ReplicaBatch(NamedTuple):
    """A whole batch of one replica, with its header."""

    base_offset: int
    last_offset: int
    data: bytes


class ReplicaDifference(NamedTuple):
    """The first offset at which two replicas differ, and how; `brokers` are the two."""

    offset: int
    reason: str
    brokers: tuple[int, int]


def whole_batches(records: memoryview) -> list[ReplicaBatch]:
    """Return the whole batches of fetched records; CorruptRecordsError if they are not batches."""
    return [
        ReplicaBatch(header.base_offset, header.last_offset, bytes(data)) for header, data in iterate_batches(records)
    ]


class ReplicaPair:
    """Compares two replicas, window after window in the order of offsets.

    Args:
        first, second: The brokers, for reasons.
        is_compacted: Whether cleaners may have removed records.
    """

    def __init__(
        self, first: int, second: int, *, is_compacted: bool, unmatched: UnmatchedRecords | None = None
    ) -> None:
        self.brokers = (first, second)
        self._is_compacted = is_compacted
        self.unmatched = UnmatchedRecords() if unmatched is None else unmatched

    def compare(self, first: Sequence[ReplicaBatch], second: Sequence[ReplicaBatch]) -> ReplicaDifference | None:
        """Return the first difference between all batches of an interval of offsets, None if there is none."""
        for one, other in _aligned(first, second):
            difference = self._compare_batches(one, other)
            if difference is not None:
                return difference
        return None

    def explain(self, batches: Iterable[ReplicaBatch]) -> None:
        """Look for later records of unmatched keys, in batches after those that were compared."""
        for batch in batches:
            if not len(self.unmatched):
                return
            self._see(batch)

    def _compare_batches(self, one: ReplicaBatch | None, other: ReplicaBatch | None) -> ReplicaDifference | None:
        if one is not None and other is not None:
            if one.data == other.data:
                if len(self.unmatched):
                    self._see(one)
                return None
            if self._is_compacted:
                return self._compare_cleaned(one, other)
            return ReplicaDifference(*_how_they_differ(one, other, self.brokers), self.brokers)
        present = one if one is not None else other
        assert present is not None
        keeper, lacking = self.brokers if other is None else self.brokers[::-1]
        if self._is_compacted:
            return self._note_unmatched(present, _decode(present), keeper, lacking)
        last = f"-{present.last_offset}" if present.last_offset > present.base_offset else ""
        reason = f"broker {lacking} lacks the batch of offset {present.base_offset}{last}, which broker {keeper} has"
        return ReplicaDifference(present.base_offset, reason, self.brokers)

    def _compare_cleaned(self, one: ReplicaBatch, other: ReplicaBatch) -> ReplicaDifference | None:
        fields = _different_field(one, other)
        records, others = _decode(one), _decode(other)
        if fields is not None or records is None or others is None or not (_is_sound(one) and _is_sound(other)):
            return ReplicaDifference(*_how_they_differ(one, other, self.brokers), self.brokers)
        by_offset = {record.offset: record for record in others}
        if any(by_offset.get(record.offset, record) != record for record in records):
            return ReplicaDifference(*_how_they_differ(one, other, self.brokers), self.brokers)
        first, second = self.brokers
        offsets = {record.offset for record in records}
        self._note_records(
            one,
            [(record, first, None if record.offset in by_offset else second) for record in records]
            + [(record, second, first) for record in others if record.offset not in offsets],
        )
        return None

    def _note_unmatched(
        self, batch: ReplicaBatch, records: list[Record] | None, keeper: int, lacking: int
    ) -> ReplicaDifference | None:
        if records is None or not _is_sound(batch):
            reason = f"the batch at offset {batch.base_offset} of broker {keeper} cannot be decoded or is damaged"
            return ReplicaDifference(batch.base_offset, reason, self.brokers)
        self._note_records(batch, [(record, keeper, lacking) for record in records])
        return None

    def _note_records(self, batch: ReplicaBatch, found: Iterable[tuple[Record, int, int | None]]) -> None:
        """Note the records of a batch, each with a broker that has it, and the one that lacks it, if it does."""
        header = RecordBatchHeader.parse(batch.data)
        if header.is_control:
            self._see(batch)
            return
        producer_id = header.producer_id if header.is_transactional else -1
        for record, keeper, lacking in sorted(found, key=lambda each: each[0].offset):
            if record.key is None:
                continue
            if lacking is None or record.value is None:
                self.unmatched.see(record.key)
            else:
                self.unmatched.add(record.key, Unmatched(record.offset, keeper, lacking, producer_id))

    def _see(self, batch: ReplicaBatch) -> None:
        """Note the keys of a batch, or the end of a transaction; equal batches that cannot be decoded say nothing."""
        header = RecordBatchHeader.parse(batch.data)
        if header.is_control:
            with contextlib.suppress(CorruptRecordsError):
                marker = decode_end_transaction_marker(batch.data)
                if marker is not None:
                    self.unmatched.end_transaction(header.producer_id, committed=marker.committed)
            return
        for record in _decode(batch) or ():
            if record.key is not None:
                self.unmatched.see(record.key)


def _aligned(
    first: Sequence[ReplicaBatch], second: Sequence[ReplicaBatch]
) -> Iterator[tuple[ReplicaBatch | None, ReplicaBatch | None]]:
    """Yield the batches of two replicas side by side, None where one of them has no batch of that base offset."""
    i = j = 0
    while i < len(first) or j < len(second):
        one = first[i] if i < len(first) else None
        other = second[j] if j < len(second) else None
        if one is not None and other is not None and one.base_offset != other.base_offset:
            one, other = (one, None) if one.base_offset < other.base_offset else (None, other)
        i += one is not None
        j += other is not None
        yield one, other


def _is_sound(batch: ReplicaBatch) -> bool:
    try:
        check_batch(batch.data)
    except CorruptRecordsError:
        return False
    return True


def _decode(batch: ReplicaBatch) -> list[Record] | None:
    try:
        return decode_records(batch.data)
    except CorruptRecordsError:
        return None


def _different_field(one: ReplicaBatch, other: ReplicaBatch) -> str | None:
    """Name a field of the headers that differs and that no cleaner changes."""
    first, second = RecordBatchHeader.parse(one.data), RecordBatchHeader.parse(other.data)
    for field, name in _FIELDS:
        if getattr(first, field) != getattr(second, field):
            return f"the {name} differs, {getattr(first, field)} and {getattr(second, field)}"
    if (first.attributes ^ second.attributes) & ~_CLEANED_BITS:
        return f"the attributes differ, {first.attributes:#x} and {second.attributes:#x}"
    return None


def _how_they_differ(one: ReplicaBatch, other: ReplicaBatch, brokers: tuple[int, int]) -> tuple[int, str]:
    """Return the offset and the reason of a difference between two batches of one base offset."""
    for batch, broker in zip((one, other), brokers, strict=True):
        if not _is_sound(batch):
            return one.base_offset, f"the checksum of the batch is wrong on broker {broker}"
    field = _different_field(one, other)
    if field is not None:
        return one.base_offset, f"{field} on brokers {brokers[0]} and {brokers[1]}"
    records, others = _decode(one), _decode(other)
    if records is None or others is None:
        return one.base_offset, f"the batch of broker {brokers[0] if records is None else brokers[1]} cannot be decoded"
    by_offset = {record.offset: record for record in others}
    for record in records:
        twin = by_offset.get(record.offset)
        if twin is not None and twin != record:
            return record.offset, f"the {_part(record, twin)} of the record differs"
    lone = by_offset.keys() ^ {record.offset for record in records}
    if lone:
        keeper, lacking = brokers if min(lone) not in by_offset else brokers[::-1]
        return min(lone), f"broker {lacking} lacks the record, which broker {keeper} has"
    return one.base_offset, "the batches have equal records in different bytes, such as another compression"


def _part(record: Record, twin: Record) -> str:
    return next(
        name
        for field, name in (("key", "key"), ("value", "value"), ("headers", "headers"), ("timestamp_ms", "timestamp"))
        if getattr(record, field) != getattr(twin, field)
    )
