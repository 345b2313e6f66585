"""Converts Arrow to record batches: rows are assigned to partitions by key and encoded batch by batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.logtier.records import columns_kernels as kernels
from headwater.logtier.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from headwater.logtier.records.columns import read_only
from headwater.logtier.records.compression import NONE, compress

__all__ = ["BatchEncoder", "EncodedBatch", "warm_encoder"]

BATCH_BYTES = 256 << 10
# Bytes of rows without a key before the next partition: Kafka's default batch.size, as in its producer.
STICKY_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A v2 record batch with base offset 0, without producer fields and CRC, which the producer sets."""

    partition: int
    data: bytearray
    record_count: int


@dataclass(slots=True)
class _Bytes:
    """The buffers of a binary or string column; `valid` has one entry per row."""

    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    valid: npt.NDArray[np.bool_]


def _bytes_column(column: Any) -> _Bytes:
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())
    _bitmap, offsets, data = column.buffers()
    rows = len(column)
    if offsets is None or rows == 0:
        offset_array = read_only(np.zeros(rows + 1, np.int32), np.int32)
    else:
        offset_array = read_only(offsets, np.int32)[column.offset : column.offset + rows + 1]
    return _Bytes(offset_array, read_only(data), _valid(column))


def _valid(column: Any) -> npt.NDArray[np.bool_]:
    if column.null_count == 0:
        valid = np.ones(len(column), np.bool_)
    else:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    valid.flags.writeable = False
    return valid


def _nulls(rows: int) -> _Bytes:
    return _Bytes(
        read_only(np.zeros(rows + 1, np.int32), np.int32),
        read_only(b""),
        read_only(np.zeros(rows, np.bool_), np.bool_),
    )


@dataclass(slots=True)
class _Headers:
    """The buffers of a headers column; a null list counts as empty."""

    offsets: npt.NDArray[np.int32]
    keys: _Bytes
    values: _Bytes


def _headers_column(column: Any) -> _Headers:
    """Convert a headers column; ValueError for a header without a key, which the protocol does not permit."""
    rows = len(column)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    elements = column.flatten()  # of this slice, without the elements of null lists
    keys = elements.field(0) if elements.null_count == 0 else None
    if keys is None or keys.null_count:
        raise ValueError("a header has no key; Kafka's headers need one")
    return _Headers(read_only(offsets, np.int32), _bytes_column(keys), _bytes_column(elements.flatten()[1]))


class BatchEncoder:
    """Encodes rows for one topic.

    The key determines the partition as in Kafka's Java client (murmur2); rows without a key stay with one partition for
    `sticky_bytes`, then continue with the next, starting with a random one. Within a partition the order of the rows is
    kept.
    """

    def __init__(
        self,
        partition_count: int,
        *,
        codec: int = NONE,
        batch_bytes: int = BATCH_BYTES,
        sticky_bytes: int = STICKY_BYTES,
        first_sticky_partition: int | None = None,
    ) -> None:
        assert partition_count > 0
        assert batch_bytes > 0
        self._partition_count = partition_count
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._sticky_bytes = sticky_bytes
        first = random.randrange(partition_count) if first_sticky_partition is None else first_sticky_partition
        self._sticky = np.array([first, 0], np.int64)
        self._out = np.empty(batch_bytes + (64 << 10), np.uint8)

    def encode(self, rows: pa.RecordBatch, *, now_ms: int) -> Iterator[EncodedBatch]:
        """Yield the record batches of the rows, by partition.

        Columns: `value` (binary or string; null is a tombstone), and optionally `key`, `partition` (int, null: by key),
        `timestamp_ms` (int64, default `now_ms`) and `headers`; others are ignored. Raises ValueError for a partition
        that the topic does not have, and for a header without a key.
        """
        count = rows.num_rows
        if count == 0:
            return
        names = set(rows.schema.names)
        key = _bytes_column(rows.column("key")) if "key" in names else _nulls(count)
        value = _bytes_column(rows.column("value"))
        headers = _headers_column(rows.column("headers")) if "headers" in names else None
        timestamps = self._timestamps(rows, now_ms)
        partitions = self._partitions(rows, key, value)
        starts = np.zeros(self._partition_count + 1, np.int64)
        order = np.empty(count, np.int64)
        kernels.order_by_partition(partitions, starts, order)
        for partition in range(self._partition_count):
            start, end = int(starts[partition]), int(starts[partition + 1])
            while start < end:
                encoded, rows_done = self._batch(partition, order, start, end, key, value, timestamps, headers)
                yield encoded
                start += rows_done

    def _timestamps(self, rows: pa.RecordBatch, now_ms: int) -> npt.NDArray[np.int64]:
        if "timestamp_ms" not in rows.schema.names:
            return np.full(rows.num_rows, now_ms, np.int64)
        column = rows.column("timestamp_ms").cast(pa.int64()).fill_null(now_ms)
        return np.array(column.to_numpy(), np.int64)

    def _partitions(self, rows: pa.RecordBatch, key: _Bytes, value: _Bytes) -> npt.NDArray[np.int32]:
        partitions = np.full(rows.num_rows, -1, np.int32)
        if "partition" in rows.schema.names:
            column = rows.column("partition")
            given = np.array(column.cast(pa.int32()).fill_null(-1).to_numpy(), np.int32)
            invalid = (given < 0) & _valid(column) | (given >= self._partition_count)
            if invalid.any():
                raise ValueError(
                    f"partition {int(given[invalid][0])} in the data, but the topic has the partitions 0 to "
                    f"{self._partition_count - 1}"
                )
            partitions = given
        kernels.assign_partitions(
            key.offsets,
            key.data,
            key.valid,
            value.offsets,
            self._partition_count,
            self._sticky,
            self._sticky_bytes,
            partitions,
        )
        return partitions

    def _batch(
        self,
        partition: int,
        order: npt.NDArray[np.int64],
        start: int,
        end: int,
        key: _Bytes,
        value: _Bytes,
        timestamps: npt.NDArray[np.int64],
        headers: _Headers | None,
    ) -> tuple[EncodedBatch, int]:
        with_headers = headers is not None
        if headers is None:
            headers = _Headers(key.offsets, key, value)  # not used, but of the right types
        while True:
            rows, size, max_timestamp = kernels.encode_rows(
                order,
                start,
                end,
                key.offsets,
                key.data,
                key.valid,
                value.offsets,
                value.data,
                value.valid,
                timestamps,
                with_headers,
                headers.offsets,
                headers.keys.offsets,
                headers.keys.data,
                headers.values.offsets,
                headers.values.data,
                headers.values.valid,
                self._out,
                self._batch_bytes - HEADER_BYTES,
            )
            if rows:
                break
            self._out = np.empty(size * 2, np.uint8)  # one record larger than the buffer
        base_timestamp = int(timestamps[order[start]])
        records: memoryview = self._out[:size].data
        payload = records if self._codec == NONE else compress(self._codec, records)
        data = bytearray(HEADER_BYTES + len(payload))
        HEADER.pack_into(
            data,
            0,
            0,
            len(data) - LOG_OVERHEAD,
            NO_PARTITION_LEADER_EPOCH,
            MAGIC_V2,
            0,
            self._codec,
            rows - 1,
            base_timestamp,
            int(max_timestamp),
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            rows,
        )
        data[HEADER_BYTES:] = payload
        return EncodedBatch(partition, data, int(rows)), int(rows)


def warm_encoder() -> None:
    """Compile the encoding kernels, or load them from numba's cache."""
    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    rows = pa.record_batch(
        [
            pa.array([b"key", None], pa.binary()),
            pa.array([b"value", None], pa.binary()),
            pa.array([[{"key": "header", "value": b"value"}], None], headers),
        ],
        names=["key", "value", "headers"],
    )
    for _ in BatchEncoder(1).encode(rows, now_ms=0):
        pass
