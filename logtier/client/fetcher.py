"""Reads one partition's record batches in order; the next fetch is in flight while the last one is decoded."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import (
    BrokerConnectionError,
    BrokerError,
    InvalidResponseError,
    RequestTimeoutError,
    broker_error,
)
from headwater.logtier.client.fetch_codec import CompletedFetch, FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.records.batch import HEADER_BYTES, LAST_OFFSET_DELTA, LOG_OVERHEAD, MAGIC

__all__ = ["FetchConfig", "FetchedRecords", "offset_after", "read_partition"]

# Assumed bytes of an offset before the first fetch, and the minimum size of a fetch: several batches.
OFFSET_BYTES = 256
FETCH_BYTES_MIN = 64 << 10

_BATCH = struct.Struct(">qi")
_DELTA = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Sizes and waiting times of fetches."""

    bytes_max: int = 8 << 20
    bytes_min: int = 1
    wait_ms: int = 500
    # Maximum time without records before the known end of a partition.
    stall_timeout_ms: int = 120_000


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """Record batches of one fetch, and the aborted transactions that a read_committed reader must omit.

    `aborted`: (producer id, first offset) of the aborted transactions that overlap these batches. `next_offset`
    follows the last complete batch.
    """

    data: memoryview
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


def offset_after(records: memoryview, offset: int) -> int:
    """Returns the offset after the last complete batch in fetched records, or `offset` if there is none.

    Uses each batch's last-offset delta instead of its record count: compaction leaves gaps. Ignores a truncated batch
    at the end. Raises ProtocolViolationError for impossible lengths.
    """
    position, size = 0, len(records)
    while size - position >= HEADER_BYTES:
        base_offset, length = _BATCH.unpack_from(records, position)
        if length < HEADER_BYTES - LOG_OVERHEAD:
            raise InvalidResponseError(f"a record batch of length {length} at offset {base_offset}")
        if length > size - position - LOG_OVERHEAD:
            break
        if records[position + MAGIC] != 2:
            raise InvalidResponseError(
                f"a record batch of format {records[position + MAGIC]} at offset {base_offset}; only 2 is read"
            )
        (delta,) = _DELTA.unpack_from(records, position + LAST_OFFSET_DELTA)
        if delta < 0:
            raise InvalidResponseError(f"a negative last-offset delta in the batch at offset {base_offset}")
        offset = max(offset, base_offset + delta + 1)
        position += LOG_OVERHEAD + length
    return offset


def fetch_bytes(offsets: int, fetched_bytes: int, fetched_offsets: int, bytes_max: int) -> int:
    """Estimates the bytes of the next `offsets` offsets from the fetched ones, plus a quarter.

    A fetch of a small range, such as a task of a micro-batch, must not return megabytes of records after the range.

    >>> fetch_bytes(1_000, 0, 0, 8 << 20), fetch_bytes(1_000, 50_000, 100, 8 << 20), fetch_bytes(10, 0, 0, 8 << 20)
    (320000, 625000, 65536)
    >>> fetch_bytes(10**9, 50_000, 100, 8 << 20) == 8 << 20
    True
    """
    wanted = offsets * fetched_bytes // fetched_offsets if fetched_offsets else offsets * OFFSET_BYTES
    return min(bytes_max, max(wanted * 5 // 4, FETCH_BYTES_MIN))


def read_partition(
    cluster: ClusterClient, topic: str, partition: int, start_offset: int, end_offset: int, config: FetchConfig
) -> Generator[FetchedRecords, None, None]:
    """Yields fetched records that cover the offsets from `start_offset` (inclusive) to `end_offset` (exclusive).

    The first and last batch may hold records outside of the range. The next fetch is sent before each yield. Retries
    after lost connections and leader changes; raises OffsetOutOfRangeError if the range is not in the log.
    """
    reader = _PartitionReader(cluster, topic, partition, config)
    try:
        yield from reader.read(start_offset, end_offset)
    finally:
        reader.close()


class _PartitionReader:
    """Reads one partition over a connection of its own, with at most one fetch in flight."""

    def __init__(self, cluster: ClusterClient, topic: str, partition: int, config: FetchConfig) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._config = config
        self._connection: BlockingConnection | None = None
        self._node_id = -1
        self._end_offset = 0
        self._fetched_bytes = 0
        self._fetched_offsets = 0

    def close(self) -> None:
        if self._connection is not None:
            self._cluster.give_back(self._node_id, self._connection)

    def read(self, start_offset: int, end_offset: int) -> Iterator[FetchedRecords]:
        offset = start_offset
        self._end_offset = end_offset
        progress_s = time.monotonic()
        while offset < end_offset:
            fetched = self._fetch(offset)
            following = offset_after(fetched.records, offset)
            if following > offset:
                progress_s = time.monotonic()
                self._fetched_bytes += len(fetched.records)
                self._fetched_offsets += following - offset
                offset = following
            elif time.monotonic() - progress_s > self._config.stall_timeout_ms / 1000:
                raise RequestTimeoutError(
                    f"{self._topic}-{self._partition} gave no record after offset {offset} for "
                    f"{self._config.stall_timeout_ms} ms, though its end is {end_offset}"
                )
            if offset < end_offset:
                self._send_ahead(offset)
            if len(fetched.records):
                yield FetchedRecords(fetched.records, offset, fetched.aborted)

    def _fetch(self, offset: int) -> CompletedFetch:
        return self._cluster.retry(
            f"fetching {self._topic}-{self._partition}", lambda: self._receive(offset), topics=(self._topic,)
        )

    def _send_ahead(self, offset: int) -> None:
        """Sends the next fetch early; `_receive` replaces a connection that breaks here."""
        with contextlib.suppress(BrokerConnectionError, RequestTimeoutError):
            self._send(offset)

    def _send(self, offset: int) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            self._node_id, connection = self._cluster.take_leader_connection(self._topic, self._partition)
            self._connection = connection
        bytes_max = fetch_bytes(
            self._end_offset - offset, self._fetched_bytes, self._fetched_offsets, self._config.bytes_max
        )
        request = fetch_request(
            connection.version(ApiKey.FETCH),
            [FetchPosition(self._topic, self._partition, offset, bytes_max)],
            wait_ms=self._config.wait_ms,
            bytes_min=self._config.bytes_min,
            bytes_max=bytes_max,
            isolation_level=self._cluster.config.isolation_level,
        )
        connection.send(request)

    def _receive(self, offset: int) -> CompletedFetch:
        """Returns the response in flight; sends the fetch again after a lost connection or a leader change."""
        connection = self._connection
        if connection is None or connection.closed or not connection.in_flight:
            self._send(offset)
            connection = self._connection
        assert connection is not None
        response = connection.receive().value
        assert isinstance(response, list)
        for fetched in response:
            if fetched.topic == self._topic and fetched.partition == self._partition:
                break
        else:
            connection.close()
            raise BrokerConnectionError(
                f"{connection.address} answered a fetch without {self._topic}-{self._partition}"
            )
        if fetched.error_code:
            connection.close()
            error: BrokerError = broker_error(
                fetched.error_code, f"fetching {self._topic}-{self._partition} at offset {offset}"
            )
            raise error
        assert isinstance(fetched, CompletedFetch)
        return fetched
