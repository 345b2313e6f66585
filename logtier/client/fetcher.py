"""Reads one partition's record batches in order; the next fetch is in flight while the last one is decoded."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import (
    REPLICA_NOT_AVAILABLE,
    BrokerConnectionError,
    BrokerError,
    InvalidResponseError,
    LogTruncationError,
    RequestTimeoutError,
    broker_error,
    error_name,
)
from headwater.logtier.client.fetch_codec import CompletedFetch, FetchPosition, fetch_request
from headwater.logtier.client.leaders.divergence import UNKNOWN_DIVERGENCE, divergence
from headwater.logtier.client.leaders.metadata import NO_EPOCH, NO_NODE
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.records.batch import HEADER_BYTES, LAST_OFFSET_DELTA, LOG_OVERHEAD, MAGIC

__all__ = ["FetchConfig", "FetchedRecords", "offset_after", "read_partition"]

# Assumed bytes of an offset before the first fetch, and the minimum size of a fetch: several batches.
OFFSET_BYTES = 256
FETCH_BYTES_MIN = 64 << 10

_BATCH = struct.Struct(">qi")
_DELTA = struct.Struct(">i")
# The leader epoch, the first field of a batch behind its length.
_EPOCH: Final = struct.Struct(">i")


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
    return read_ahead_to(records, offset)[0]


def read_ahead_to(records: memoryview, offset: int) -> tuple[int, int]:
    """Returns the same, and the leader epoch of that last batch; NO_EPOCH if there is none."""
    position, size, last = 0, len(records), NO_EPOCH
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
        last = position
        position += LOG_OVERHEAD + length
    return offset, NO_EPOCH if last < 0 else _EPOCH.unpack_from(records, last + LOG_OVERHEAD)[0]


def first_of_later_epoch(records: memoryview, leader_epoch: int, end_offset: int) -> int | None:
    """Returns the base offset of the first batch below `end_offset` that has a later leader epoch, None if none has."""
    position, size = 0, len(records)
    while size - position >= HEADER_BYTES:
        base_offset, length = _BATCH.unpack_from(records, position)
        if base_offset >= end_offset or length > size - position - LOG_OVERHEAD:
            return None
        if _EPOCH.unpack_from(records, position + LOG_OVERHEAD)[0] > leader_epoch:
            return int(base_offset)
        position += LOG_OVERHEAD + length
    return None


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
    cluster: ClusterClient,
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    config: FetchConfig,
    planned_epoch: int = NO_EPOCH,
) -> Generator[FetchedRecords]:
    """Yields the batches from `start_offset` (inclusive) to `end_offset` (exclusive).

    The first and last batch may hold records outside of the range. The next fetch is sent before each yield. Retries
    after lost connections and leader changes, and goes on only if the new leader has what was read and planned.

    Args:
        planned_epoch: The leader epoch in which the log reached `end_offset`; NO_EPOCH if it is unknown.

    Raises:
        OffsetOutOfRangeError: The range is not in the log.
        LogTruncationError: Records of the range were lost with a former leader; others may have their offsets.
    """
    reader = _PartitionReader(cluster, topic, partition, config, planned_epoch)
    try:
        yield from reader.read(start_offset, end_offset)
    finally:
        reader.close()


class _PartitionReader:
    """Reads one partition over a connection of its own, with at most one fetch in flight.

    Invariant: a fetch is sent in a leader epoch in which the position and the planned end are validated. In the planned
    epoch they are valid without a request, since the leader checks the epoch of each fetch.
    """

    def __init__(
        self, cluster: ClusterClient, topic: str, partition: int, config: FetchConfig, planned_epoch: int
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._config = config
        self._planned_epoch = planned_epoch
        self._valid_epoch = planned_epoch
        self._read_epoch = NO_EPOCH
        self._connection: BlockingConnection | None = None
        self._node_id = NO_NODE
        self._is_at_replica = False
        self._end_offset = 0
        self._fetched_bytes = 0
        self._fetched_offsets = 0
        if planned_epoch != NO_EPOCH:
            cluster.learn_leader(topic, partition, NO_NODE, planned_epoch)

    def close(self) -> None:
        if self._connection is not None:
            self._cluster.give_back(self._node_id, self._connection)

    def read(self, start_offset: int, end_offset: int) -> Iterator[FetchedRecords]:
        offset = start_offset
        self._end_offset = end_offset
        progress_s = time.monotonic()
        while offset < end_offset:
            fetched = self._fetch(offset)
            following, epoch = read_ahead_to(fetched.records, offset)
            if following > offset:
                self._check_planned(fetched.records)
                self._read_epoch = epoch
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

    # -- positions ---------------------------------------------------------------------------------------------------

    def _check_planned(self, records: memoryview) -> None:
        """Raises LogTruncationError for a batch in the planned range that was appended after planning."""
        if self._planned_epoch in (NO_EPOCH, self._valid_epoch):
            return
        replaced = first_of_later_epoch(records, self._planned_epoch, self._end_offset)
        if replaced is not None:
            raise LogTruncationError(self._topic, self._partition, self._end_offset, self._planned_epoch, replaced)

    def _validate(self, offset: int, leader_epoch: int) -> None:
        """Raises LogTruncationError if the leader of another epoch lacks what was read or planned (KIP-320)."""
        if leader_epoch == self._valid_epoch:
            return
        if self._planned_epoch != NO_EPOCH:
            self._compare(self._end_offset, self._planned_epoch, is_epoch_of_record=False)
        if self._read_epoch != NO_EPOCH:
            self._compare(offset, self._read_epoch, is_epoch_of_record=True)
        self._valid_epoch = leader_epoch

    def _compare(self, offset: int, leader_epoch: int, *, is_epoch_of_record: bool) -> None:
        key = (self._topic, self._partition)
        end = self._cluster.epoch_ends({key: leader_epoch}).get(key)
        if end is None:
            return
        lost = divergence(end, offset, leader_epoch, is_epoch_of_record=is_epoch_of_record)
        if lost is not None:
            known = None if lost == UNKNOWN_DIVERGENCE else lost
            raise LogTruncationError(self._topic, self._partition, offset, leader_epoch, known)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _fetch(self, offset: int) -> CompletedFetch:
        return self._cluster.retry(
            f"fetching {self._topic}-{self._partition}", lambda: self._receive(offset), topics=(self._topic,)
        )

    def _send_ahead(self, offset: int) -> None:
        """Sends the next fetch early; after a failure, `_receive` sends it."""
        with contextlib.suppress(BrokerConnectionError, RequestTimeoutError, BrokerError, LogTruncationError):
            self._send(offset)

    def _choose_node(self) -> int:
        """Returns the broker to ask: the leader, or the replica that it has named."""
        key = (self._topic, self._partition)
        leader = self._cluster.leader(*key)
        replica = self._cluster.preferred_replicas.replica(key, time.monotonic())
        if replica is not None and not self._cluster.has_broker(replica):
            self._cluster.preferred_replicas.drop(key)
            replica = None
        self._is_at_replica = replica is not None and replica != leader
        return leader if replica is None else replica

    def _connect(self, node_id: int) -> BlockingConnection:
        connection = self._connection
        if connection is not None and not connection.closed and self._node_id == node_id:
            return connection
        if connection is not None:
            self._cluster.give_back(self._node_id, connection)
            self._connection = None
        self._node_id = node_id
        self._connection = self._cluster.take_connection(node_id)
        return self._connection

    def _send(self, offset: int) -> None:
        node_id = self._choose_node()
        epoch = self._cluster.leader_epoch(self._topic, self._partition)
        self._validate(offset, epoch)
        connection = self._connect(node_id)
        bytes_max = fetch_bytes(
            self._end_offset - offset, self._fetched_bytes, self._fetched_offsets, self._config.bytes_max
        )
        rack = self._cluster.config.rack
        if rack and not self._cluster.preferred_replicas.states_rack((self._topic, self._partition)):
            rack = ""
        request = fetch_request(
            connection.version(ApiKey.FETCH),
            [FetchPosition(self._topic, self._partition, offset, bytes_max, epoch)],
            wait_ms=self._config.wait_ms,
            bytes_min=self._config.bytes_min,
            bytes_max=bytes_max,
            isolation_level=self._cluster.config.isolation_level,
            rack=rack,
        )
        connection.send(request)

    def _receive(self, offset: int) -> CompletedFetch:
        """Returns the response in flight; sends the fetch again after a lost connection or a leader change."""
        try:
            connection = self._connection
            if connection is None or connection.closed or not connection.in_flight:
                self._send(offset)
                connection = self._connection
            assert connection is not None
            response = connection.receive().value
        except (BrokerConnectionError, RequestTimeoutError):
            self._leave_replica()
            raise
        assert isinstance(response, list)
        for fetched in response:
            if fetched.topic == self._topic and fetched.partition == self._partition:
                break
        else:
            connection.close()
            raise BrokerConnectionError(
                f"{connection.address} answered a fetch without {self._topic}-{self._partition}"
            )
        assert isinstance(fetched, CompletedFetch)
        if fetched.error_code:
            connection.close()
            raise self._failure(fetched, offset)
        if fetched.preferred_read_replica >= 0:
            key = (self._topic, self._partition)
            self._cluster.preferred_replicas.prefer(key, fetched.preferred_read_replica, time.monotonic())
        return fetched

    def _failure(self, fetched: CompletedFetch, offset: int) -> BrokerError:
        """Returns the error of a response. After one of a replica the leader decides, which retries are to ask."""
        if fetched.current_leader is not None:
            self._cluster.learn_leader(self._topic, self._partition, *fetched.current_leader)
        what = f"fetching {self._topic}-{self._partition} at offset {offset}"
        if self._is_at_replica:
            self._leave_replica()
            name = error_name(fetched.error_code)
            return broker_error(REPLICA_NOT_AVAILABLE, f"{what} from replica {self._node_id}, which answered {name}")
        return broker_error(fetched.error_code, what)

    def _leave_replica(self) -> None:
        if self._is_at_replica:
            self._cluster.preferred_replicas.drop((self._topic, self._partition))
