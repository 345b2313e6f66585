"""The reading task: fetches ranges of offsets and decodes them into Arrow."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from headwater.logtier.client.errors import (
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from headwater.logtier.client.fetcher import read_partition
from headwater.logtier.client.leaders.metadata import NO_EPOCH
from headwater.pipelines.columns import HEADERS_SEEN
from headwater.pipelines.datasource.errors import client_errors, report_loss
from headwater.pipelines.datasource.json_fields import warm_parser
from headwater.pipelines.datasource.kept_clients import kept_client
from headwater.pipelines.datasource.offsets import OffsetRange, group_ranges, split_ranges
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.time_bounds import LateBatch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangePartition", "plan_tasks", "read_range"]


@dataclass
class RangePartition(InputPartition):
    """One task's part of a read: ranges of one or several partitions."""

    ranges: tuple[OffsetRange, ...]

    def __repr__(self) -> str:
        return " ".join(f"{part.topic}-{part.partition}[{part.start}, {part.end})" for part in self.ranges)


def plan_tasks(ranges: Iterable[OffsetRange], options: ReadOptions) -> list[RangePartition]:
    """The tasks for some ranges: large ranges are split and small ranges grouped by the options."""
    pieces = split_ranges(ranges, options.partitions_min, options.records_per_partition_max)
    return [RangePartition(group) for group in group_ranges(pieces, options.records_per_task_min)]


def read_range(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of one task as Arrow batches; empty for Spark's placeholder of an empty plan.

    Offsets that are no longer in the log are a data loss: an error, or with failOnDataLoss=false the remaining records
    are read.
    """
    if not isinstance(partition, RangePartition):
        assert type(partition) is InputPartition, f"{partition!r} is no plan of this source"
        return
    with client_errors(), kept_client(options.client) as cluster:
        looked_up: set[str] = set()
        for part in partition.ranges:
            yield from _RangeReader(cluster, part, options, looked_up).read()


class _RangeReader:
    """Reads one range once, from `_position` up to `_end`, which grows if the range continues behind its end.

    `looked_up` are the topics whose metadata this task has requested.
    """

    def __init__(self, cluster: ClusterClient, part: OffsetRange, options: ReadOptions, looked_up: set[str]) -> None:
        self._cluster = cluster
        self._part = part
        self._options = options
        self._looked_up = looked_up
        self._position = part.start
        self._end = part.end
        self._late = None if part.reach is None else LateBatch(part.reach)
        self._attempts = 0
        self._planned_epoch = part.leader_epoch
        self._log_end: int | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        part = self._part
        try:
            if self._made_anew():
                self._lost(f"topic {part.topic!r} was deleted and made anew since this read was planned")
                return
            yield from self._read_to(self._end)
            if part.reach is not None:
                # A fetch returns whole batches: some of those behind the end may have been passed over already.
                self._position, self._end = part.end, self._limited(part.reach.end)
                # Usually the next batch ends the read: a fetch of few bytes comes first.
                yield from self._read_to(self._position + 1)
                yield from self._read_to(self._end)
        except (UnknownTopicError, UnknownPartitionError):
            self._lost(f"{part.topic}-{part.partition} is gone at offset {self._position}, before {self._end}")

    def _read_to(self, fetch_end: int) -> Iterator[pa.RecordBatch]:
        """Fetch up to an offset. Yields also what its last batch holds behind it, up to the end of the read."""
        while self._position < min(fetch_end, self._end):
            try:
                yield from self._decode(min(fetch_end, self._end))
            except OffsetOutOfRangeError:
                self._skip_lost()
            except LogTruncationError as error:
                self._skip_truncated(error)

    def _lost(self, what: str) -> None:
        report_loss(what, fail=self._options.fail_on_data_loss)

    def _made_anew(self) -> bool:
        if self._part.topic not in self._looked_up:
            self._cluster.partitions(self._part.topic)
            self._looked_up.add(self._part.topic)
        found = self._cluster.topic_id(self._part.topic)
        return None not in (found, self._part.topic_id) and found != self._part.topic_id

    def _skip_lost(self) -> None:
        """Move a position outside the log to the next offset in the log."""
        part = self._part
        key = (part.topic, part.partition)
        first = self._cluster.list_offsets({key: EARLIEST})[key]
        end = self._cluster.list_offsets({key: LATEST})[key]
        if self._position < first:
            going_on = min(first, self._end)
            self._lost(
                f"{part.topic}-{part.partition}: the offsets {self._position} to {going_on - 1} were deleted "
                "(by retention) before they were read"
            )
            self._position = going_on
        elif self._position > end and self._attempts >= self._options.offset_attempts:
            self._lost(f"{part.topic}-{part.partition} ends at offset {end}, but {self._position} was reached before")
            self._position = self._end
        elif self._attempts >= self._options.offset_attempts:
            raise OffsetOutOfRangeError(1, f"fetching {part.topic}-{part.partition} at offset {self._position}")
        else:  # a newly elected leader may not know its high watermark yet
            self._attempts += 1
            self._cluster.forget_leader(part.topic)
            time.sleep(self._options.offset_retry_ms / 1000)

    def _skip_truncated(self, error: LogTruncationError) -> None:
        """Go on where the new leader's log departs from the planned one, with the records that it has by now."""
        self._lost(str(error))
        self._planned_epoch = NO_EPOCH
        key = (self._part.topic, self._part.partition)
        if error.divergent_offset is not None:
            self._position = min(self._position, max(self._part.start, error.divergent_offset))
        self._log_end = self._cluster.list_offsets({key: LATEST})[key]
        self._end = self._limited(self._end)

    def _limited(self, end: int) -> int:
        """An end within a log that was truncated."""
        return end if self._log_end is None else min(end, self._log_end)

    def _decode(self, fetch_end: int) -> Iterator[pa.RecordBatch]:
        fields = self._options.json_fields
        decode_columns = _load_decoder(with_json=fields is not None)
        part = self._part
        fetching = read_partition(
            self._cluster,
            part.topic,
            part.partition,
            self._position,
            fetch_end,
            self._options.fetch,
            self._planned_epoch,
        )
        with contextlib.closing(fetching):
            for fetched in fetching:
                ends_at = self._ends_at(fetched.data)
                records = decode_columns(
                    fetched.data,
                    part.topic,
                    part.partition,
                    start_offset=self._position,
                    end_offset=self._end if ends_at is None else ends_at,
                    include_headers=self._options.include_headers,
                    headers_seen=HEADERS_SEEN if self._options.tell_headers else None,
                    aborted=fetched.aborted,
                )
                yield from records if fields is None else map(fields.added_to, records)
                self._position = fetched.next_offset
                if ends_at is not None:
                    self._end = ends_at
                    return

    def _ends_at(self, records: memoryview) -> int | None:
        """The offset at which a range with a reach ends, if these records tell it."""
        if self._late is None:
            return None
        found = self._late.end_within(records, self._position)
        return None if found is None or found <= self._part.end else min(found, self._end)


@cache
def _load_decoder(*, with_json: bool) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Import the column decoder once per worker, and with it the parser of JSON.

    Spark's daemon collects garbage after every task of a reused worker; over numba's and Arrow's many objects this
    takes 80 ms, more than reading a small range. These objects live as long as the worker, so they are excluded from
    collection.
    """
    from headwater.logtier.records.columns import decode_columns, warm_decoder

    warm_decoder()
    if with_json:
        warm_parser()
    gc.collect()
    gc.freeze()
    return decode_columns
