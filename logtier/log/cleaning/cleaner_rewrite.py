"""Cleans one log: finds each key's last offset, then writes the remaining records into new segments.

Runs in the cleaner process. Two passes, as in Kafka: over the dirty part, which yields the offset map, and over
everything before its end. Batches keep their offsets, which leaves gaps; a batch loses records, is removed, or stays
empty to preserve its producer's state.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from headwater.logtier.log.cleaning import cleaner_kernels as kernels
from headwater.logtier.log.cleaning.cleaned_transactions import CleanedTransactions
from headwater.logtier.log.cleaning.cleaner_job import NO_DATA_OFFSET, CleanedGroup, CleanerJob, CleanerResult
from headwater.logtier.log.cleaning.cleaner_policy import SourceSegment, group_segments
from headwater.logtier.log.segment_swap import CLEANED_SUFFIX
from headwater.logtier.log.segments.segment import LOG_SUFFIX, LogSegment, segment_name
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CONTROL,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CRC,
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    decode_end_transaction_marker,
)
from headwater.logtier.records.compression import Buffer, CorruptRecordsError, compress, decompress
from headwater.logtier.runtime.disk import Disk, File

_SLOT_BYTES: Final = 24
_SLOTS_MIN: Final = 1024
# Batches in one table: bounds the memory of tables of small batches.
_ROWS_MAX: Final = 8192
# A cleaned segment always has both indexes, so that file names identify a swap.
_INDEXES_MIN: Final = 2
_BUFFER_BYTES_MIN: Final = 64 * 1024

Throttle = Callable[[int], None]
"""Called with the number of bytes read or written; pauses to enforce the rate limit."""

_Table = Any  # int64, a row a batch


class OffsetMap:
    """The last offset of every key in the dirty part, by a 128-bit hash: 24 bytes a key, as in Kafka.

    `latest_offset` is the last offset covered; the next cleaning covers later records.
    """

    def __init__(self, memory_bytes: int, load_factor: float, offsets_max: int) -> None:
        """`offsets_max` is the maximum number of keys."""
        slots = max(_SLOTS_MIN, min(memory_bytes // _SLOT_BYTES, int(offsets_max / load_factor) + 2))
        self.slots = np.zeros((slots, 3), np.uint64)
        self.seed = np.frombuffer(os.urandom(16), np.uint64)
        self.size = np.zeros(1, np.int64)
        self.size_max = int(slots * load_factor)
        self.latest_offset = -1

    @property
    def utilization(self) -> float:
        """Used share of the slots, 0 to 1."""
        return int(self.size[0]) / len(self.slots)


class _Chunk:
    """Whole batches read together: their bytes and the table of their headers."""

    def __init__(self, data: bytes, table: _Table) -> None:
        self.data = data
        self.array = np.frombuffer(data, np.uint8)
        self.table = table

    def runs(self, table: _Table) -> Iterator[tuple[int, int, bool]]:
        """Split the table into runs of uncompressed batches and single compressed ones: (first, end, compressed)."""
        packed = ((table[:, kernels.ATTRIBUTES] & COMPRESSION_MASK) != 0) & (table[:, kernels.COUNT] > 0)
        first = 0
        for row in np.flatnonzero(packed).tolist():
            if row > first:
                yield first, row, False
            yield row, row + 1, True
            first = row + 1
        if first < len(table):
            yield first, len(table), False

    def unpacked(self, row: _Table) -> tuple[Any, _Table]:
        """Decompress one batch's records: (bytes, the row with positions in these bytes)."""
        payload = memoryview(self.data)[int(row[kernels.RECORDS_START]) : int(row[kernels.RECORDS_END])]
        codec = int(row[kernels.ATTRIBUTES]) & COMPRESSION_MASK
        plain = np.frombuffer(decompress(codec, payload, limit_bytes=DECOMPRESSED_BYTES_MAX), np.uint8)
        table = row.reshape(1, -1).copy()
        table[0, kernels.RECORDS_START] = 0
        table[0, kernels.RECORDS_END] = len(plain)
        return plain, table


class LogCleaning:
    """One cleaning of one log, from its segment files to `.cleaned` files.

    Invariants: source files are only read; every batch's checksum is verified before the batch is used; a group is
    yielded when its files are complete and on the device. After CorruptRecordsError or OSError the caller removes the
    files begun (`segment_swap.remove_cleaned`).
    """

    def __init__(self, job: CleanerJob, disk: Disk, throttle: Throttle) -> None:
        self._job = job
        self._disk = disk
        self._throttle = throttle
        self._map = OffsetMap(job.dedupe_buffer_bytes, job.load_factor, job.end_offset - job.first_dirty_offset)
        self._bytes_read = 0
        self._bytes_written = 0
        self._records_read = 0
        self._records_kept = 0

    def run(self) -> Iterator[CleanedGroup]:
        """Clean the log and yield each group."""
        job = self._job
        self._build_map()
        end_offset = self._map.latest_offset + 1
        sources = [segment for segment in job.segments if segment.base_offset < end_offset]
        transactions = CleanedTransactions(job.aborted)
        for group in group_segments(
            sources,
            segment_bytes=job.segment_bytes,
            index_bytes=job.segment_index_bytes,
            end_offset=job.end_offset,
        ):
            yield self._clean_group(group, transactions)

    def result(self) -> CleanerResult:
        """Return the result after `run` is exhausted."""
        return CleanerResult(
            self._map.latest_offset + 1,
            self._bytes_read,
            self._bytes_written,
            self._records_read,
            self._records_kept,
            self._map.utilization,
        )

    # -- the first pass

    def _build_map(self) -> None:
        job, offset_map = self._job, self._map
        offset_map.latest_offset = job.first_dirty_offset - 1
        # Transactions that ended before are left out: their markers are not part of this pass.
        transactions = CleanedTransactions(each for each in job.aborted if each.last_offset >= job.first_dirty_offset)
        for i, segment in enumerate(job.segments):
            next_base = job.segments[i + 1].base_offset if i + 1 < len(job.segments) else job.end_offset
            if next_base <= job.first_dirty_offset:
                continue
            for chunk in self._chunks(segment):
                self._mark_transactions(chunk, transactions)
                if not self._index_chunk(chunk):
                    return
            # A gap at the segment's end has no records.
            offset_map.latest_offset = next_base - 1

    def _index_chunk(self, chunk: _Chunk) -> bool:
        """Put a chunk's keys into the map; False if it is full."""
        offset_map, table = self._map, chunk.table
        # Neither records of aborted transactions nor markers have keys that count.
        table[(table[:, kernels.ATTRIBUTES] & CONTROL) != 0, kernels.FLAGS] |= kernels.DISCARD_RECORDS
        for first, end, is_packed in chunk.runs(table):
            rows = table[first:end]
            if is_packed and (
                rows[0, kernels.FLAGS] & kernels.DISCARD_RECORDS
                or rows[0, kernels.LAST_OFFSET] < self._job.first_dirty_offset
            ):
                continue
            data, described = self._unpack(chunk, rows[0]) if is_packed else (chunk.array, rows)
            row, code = kernels.index_batches(
                data,
                described,
                self._job.first_dirty_offset,
                offset_map.slots,
                offset_map.seed,
                offset_map.size,
                offset_map.size_max,
            )
            if code == kernels.FULL:
                if first + row > 0:
                    self._reach(int(table[first + row - 1, kernels.LAST_OFFSET]))
                if offset_map.latest_offset < self._job.first_dirty_offset:
                    raise CorruptRecordsError(
                        f"the keys of the batch at offset {table[first + row, kernels.BASE_OFFSET]} do not fit into "
                        "log.cleaner.dedupe.buffer.size"
                    )
                return False
            if code:
                raise _corrupt(table[first + row], code)
        self._reach(int(table[-1, kernels.LAST_OFFSET]))
        return True

    def _reach(self, last_offset: int) -> None:
        self._map.latest_offset = max(self._map.latest_offset, last_offset)

    # -- the second pass

    def _clean_group(self, group: list[SourceSegment], transactions: CleanedTransactions) -> CleanedGroup:
        job = self._job
        cleaned = LogSegment.create(
            self._disk,
            job.directory,
            group[0].base_offset,
            now_ms=group[-1].modified_ms,
            index_interval_bytes=job.index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )
        for source in group:
            for chunk in self._chunks(source):
                self._mark_transactions(chunk, transactions)
                self._mark_retained(chunk.table)
                self._filter_chunk(chunk, cleaned)
        for transaction in transactions.take_kept():
            cleaned.transaction_index.append(transaction)
        cleaned.write_indexes()
        indexes = cleaned.index_files()
        if len(indexes) < _INDEXES_MIN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for file in (*indexes, cleaned.file):
            file.fsync()
        self._disk.fsync_directory(job.directory)
        cleaned.release()
        return CleanedGroup(group[0].base_offset, len(group), cleaned.size, group[-1].modified_ms)

    def _mark_transactions(self, chunk: _Chunk, transactions: CleanedTransactions) -> None:
        """Flag records of aborted transactions, and markers without remaining records."""
        table = chunk.table
        rows = np.flatnonzero((table[:, kernels.ATTRIBUTES] & (CONTROL | TRANSACTIONAL)) != 0)
        for row in rows.tolist():
            entry = table[row]
            producer_id, last_offset = int(entry[kernels.PRODUCER_ID]), int(entry[kernels.LAST_OFFSET])
            attributes = int(entry[kernels.ATTRIBUTES])
            if not attributes & CONTROL:
                if attributes & TRANSACTIONAL and transactions.on_data(producer_id, last_offset):
                    table[row, kernels.FLAGS] |= kernels.DISCARD_RECORDS
                continue
            if transactions.on_control(producer_id, last_offset, _control_type(chunk.data, entry)):
                if not attributes & DELETE_HORIZON:
                    table[row, kernels.FLAGS] |= kernels.START_HORIZON
                elif entry[kernels.BASE_TIMESTAMP] <= self._job.now_ms:
                    table[row, kernels.FLAGS] |= kernels.DISCARD_RECORDS

    def _mark_retained(self, table: _Table) -> None:
        """Flag the batches that stay without records: the last of a producer, and the last of this cleaning."""
        producers = self._job.producers
        if producers:
            rows = np.flatnonzero(table[:, kernels.PRODUCER_ID] >= 0)
            ids = table[rows, kernels.PRODUCER_ID].tolist()
            for row, producer_id in zip(rows.tolist(), ids, strict=True):
                last = producers.get(producer_id)
                if last is None:
                    continue
                if last[0] == NO_DATA_OFFSET:
                    is_last = bool(table[row, kernels.ATTRIBUTES] & CONTROL) and (
                        int(table[row, kernels.PRODUCER_EPOCH]) == last[1]
                    )
                else:
                    is_last = int(table[row, kernels.LAST_OFFSET]) == last[0]
                if is_last:
                    table[row, kernels.FLAGS] |= kernels.RETAIN_EMPTY
        if int(table[-1, kernels.LAST_OFFSET]) + 1 == self._job.end_offset:
            table[-1, kernels.FLAGS] |= kernels.RETAIN_EMPTY

    def _filter_chunk(self, chunk: _Chunk, cleaned: LogSegment) -> None:
        job, offset_map, table = self._job, self._map, chunk.table
        for first, end, is_packed in chunk.runs(table):
            rows = table[first:end]
            data, described = self._unpack(chunk, rows[0]) if is_packed else (chunk.array, rows)
            plain_bytes = int((described[:, kernels.RECORDS_END] - described[:, kernels.RECORDS_START]).sum())
            records = int(described[:, kernels.COUNT].sum())
            if records * 7 > plain_bytes:  # before memory is taken for them
                raise CorruptRecordsError(
                    f"a batch after offset {rows[0, kernels.BASE_OFFSET]} claims too many records"
                )
            out = np.empty(plain_bytes + len(rows) * HEADER_BYTES + records * kernels.GROWTH_BYTES_PER_RECORD, np.uint8)
            results = np.empty((len(rows), kernels.OUT_FIELDS), np.int64)
            row, code = kernels.filter_batches(
                data,
                described,
                offset_map.slots,
                offset_map.seed,
                offset_map.latest_offset,
                job.now_ms,
                job.delete_retention_ms,
                not is_packed,
                out,
                results,
            )
            if code:
                raise _corrupt(table[first + row], code)
            self._records_read += records
            self._records_kept += int(results[:, kernels.OUT_COUNT].sum())
            if is_packed:
                self._write_packed(chunk, rows, out, results, cleaned)
            else:
                self._write_plain(chunk, rows, out, results, cleaned)

    def _write_plain(self, chunk: _Chunk, rows: _Table, out: Any, results: _Table, cleaned: LogSegment) -> None:
        """Complete the headers of rewritten batches, and append all remaining batches."""
        view = memoryview(out)
        for row in np.flatnonzero(results[:, kernels.OUT_KIND] >= kernels.REWRITTEN).tolist():
            _write_header(view, chunk.data, rows[row], results[row])
        staying = results[:, kernels.OUT_KIND] != kernels.DROPPED
        if staying.any():
            sizes = (results[:, kernels.OUT_END] - results[:, kernels.OUT_START])[staying]
            self._append(
                cleaned,
                view[: int(results[-1, kernels.OUT_END])],
                list(
                    zip(
                        rows[staying, kernels.LAST_OFFSET].tolist(),
                        sizes.tolist(),
                        results[staying, kernels.OUT_MAX_TIMESTAMP].tolist(),
                        strict=True,
                    )
                ),
            )

    def _write_packed(self, chunk: _Chunk, rows: _Table, out: Any, results: _Table, cleaned: LogSegment) -> None:
        """Append one compressed batch: unchanged if all its records stay, otherwise recompressed with its codec."""
        result = results[0]
        kind = int(result[kernels.OUT_KIND])
        if kind == kernels.DROPPED:
            return
        if kind == kernels.ORIGINAL:
            batch: Buffer = memoryview(chunk.data)[int(rows[0, kernels.START]) : int(rows[0, kernels.END])]
        elif kind == kernels.EMPTIED:
            batch = memoryview(out)[:HEADER_BYTES]
            _write_header(batch, chunk.data, rows[0], result)
        else:
            records = memoryview(out)[HEADER_BYTES : int(result[kernels.OUT_END])]
            batch = bytes(HEADER_BYTES) + compress(int(rows[0, kernels.ATTRIBUTES]) & COMPRESSION_MASK, records)
            batch = bytearray(batch)
            result[kernels.OUT_END] = len(batch)
            _write_header(memoryview(batch), chunk.data, rows[0], result)
        entry = (int(rows[0, kernels.LAST_OFFSET]), len(batch), int(result[kernels.OUT_MAX_TIMESTAMP]))
        self._append(cleaned, batch, [entry])

    def _append(self, cleaned: LogSegment, data: Buffer, batches: list[tuple[int, int, int]]) -> None:
        cleaned.append_all(data, batches)
        self._bytes_written += len(data)
        self._throttle(len(data))

    # -- reading

    def _unpack(self, chunk: _Chunk, row: _Table) -> tuple[Any, _Table]:
        try:
            return chunk.unpacked(row)
        except CorruptRecordsError as error:
            raise CorruptRecordsError(f"the batch at offset {row[kernels.BASE_OFFSET]} is damaged: {error}") from None

    def _chunks(self, segment: SourceSegment) -> Iterator[_Chunk]:
        """Read a segment's whole batches with verified checksums, in chunks."""
        path = f"{self._job.directory}/{segment_name(segment.base_offset)}{LOG_SUFFIX}"
        file = self._disk.open_read_only(path)
        try:
            yield from self._chunks_of(file, segment, path)
        finally:
            file.close()

    def _chunks_of(self, file: File, segment: SourceSegment, path: str) -> Iterator[_Chunk]:
        position = 0
        next_offset = segment.base_offset
        wanted = max(self._job.io_buffer_bytes, _BUFFER_BYTES_MIN)
        table = np.empty((_ROWS_MAX, kernels.FIELDS), np.int64)
        while position < segment.size_bytes:
            data = file.pread(min(wanted, segment.size_bytes - position), position)
            rows, code = kernels.scan_batches(np.frombuffer(data, np.uint8), table, next_offset)
            if rows == 0:
                size = int.from_bytes(data[8:12], "big") + LOG_OVERHEAD
                if code or not wanted < size <= segment.size_bytes - position:
                    reason = kernels.ERRORS.get(code, "it reaches beyond the end of the file")
                    raise CorruptRecordsError(f"{path}, byte {position}: a batch is damaged: {reason}")
                wanted = size  # a batch that is larger than the buffer
                continue
            found = table[:rows].copy()
            used = int(found[-1, kernels.END])
            _check_checksums(data, found, path, position)
            self._bytes_read += used
            self._throttle(used)
            yield _Chunk(data, found)
            position += used
            next_offset = int(found[-1, kernels.LAST_OFFSET]) + 1


def _check_checksums(data: bytes, table: _Table, path: str, position: int) -> None:
    view = memoryview(data)
    starts = (table[:, kernels.START] + ATTRIBUTES).tolist()
    ends = table[:, kernels.END].tolist()
    for start, end, crc in zip(starts, ends, table[:, kernels.CRC].tolist(), strict=True):
        if crc32c(view[start:end]) != crc:
            at = position + start - ATTRIBUTES
            raise CorruptRecordsError(f"{path}, byte {at}: a batch does not match its checksum")


def _control_type(data: bytes, row: _Table) -> int | None:
    """Return the type of a control batch; None if it was emptied, -1 for an unknown type, which stays."""
    if row[kernels.COUNT] == 0:
        return None
    marker = decode_end_transaction_marker(data[int(row[kernels.START]) : int(row[kernels.END])])
    if marker is None:
        return -1
    return CONTROL_COMMIT if marker.committed else CONTROL_ABORT


def _write_header(out: memoryview, data: bytes, row: _Table, result: _Table) -> None:
    """Write a changed batch's header with its checksum before its records."""
    (offset, _, leader_epoch, magic, _, attributes, last_delta, _, _, producer_id, epoch, sequence, _) = (
        HEADER.unpack_from(data, int(row[kernels.START]))
    )
    start, end = int(result[kernels.OUT_START]), int(result[kernels.OUT_END])
    base_timestamp = int(result[kernels.OUT_BASE_TIMESTAMP])
    if result[kernels.OUT_KIND] == kernels.EMPTIED:
        attributes &= ~(COMPRESSION_MASK | DELETE_HORIZON)
        base_timestamp = NO_TIMESTAMP
    elif result[kernels.OUT_HORIZON]:
        attributes |= DELETE_HORIZON
    HEADER.pack_into(
        out,
        start,
        offset,
        end - start - LOG_OVERHEAD,
        leader_epoch,
        magic,
        0,
        attributes,
        last_delta,
        base_timestamp,
        int(result[kernels.OUT_MAX_TIMESTAMP]),
        producer_id,
        epoch,
        sequence,
        int(result[kernels.OUT_COUNT]),
    )
    out[start + CRC : start + ATTRIBUTES] = crc32c(out[start + ATTRIBUTES : end]).to_bytes(4, "big")


def _corrupt(row: _Table, code: int) -> CorruptRecordsError:
    return CorruptRecordsError(f"the batch at offset {row[kernels.BASE_OFFSET]} is damaged: {kernels.ERRORS[code]}")
