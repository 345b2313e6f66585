"""The stream reader: micro-batches between offsets, with admission control and available-now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from logtier.client.cluster import LATEST, ClusterClient
from logtier.client.waiter import DataWaiter
from pipelines.datasource.errors import OptionError, SourceError, client_errors
from pipelines.datasource.offsets import (
    OffsetRange,
    Offsets,
    TopicPartition,
    from_source_offset,
    limit_by_backlog,
    split_ranges,
    to_source_offset,
)
from pipelines.datasource.options import OffsetSpec, ReadOptions
from pipelines.datasource.planning import Planner
from pipelines.datasource.reading import RangePartition, read_range

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader"]

# An idle query asks every 10 ms (spark.sql.streaming.pollingDelay). It is kept waiting here until data comes, but not
# longer, because stopping a query waits for the call.
IDLE_WAIT_MS = 500
# New partitions of the subscribed topics are looked for this often.
DISCOVERY_INTERVAL_S = 1.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Lives in Spark's planner process for the life of the query; its copies in tasks only `read`.

    Source offsets are those of Spark's Kafka source: {"topic": {"0": next offset}}.
    """

    def __init__(self, options: ReadOptions) -> None:
        if options.ending is not None:
            raise OptionError("options endingOffsets, endingOffsetsByTimestamp, endingTimestamp: a stream has no end")
        self._options = options
        self._cluster: ClusterClient | None = None
        self._waiter: DataWaiter | None = None
        self._partitions: list[TopicPartition] = []
        self._discovered_s = float("-inf")
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    # -- offsets -----------------------------------------------------------------------------------------------------

    def _planner(self) -> Planner:
        if self._cluster is None:
            self._cluster = ClusterClient(self._options.client)
            self._waiter = DataWaiter(self._cluster)
        return Planner(self._cluster, self._options)

    def _ends(self) -> Offsets:
        """The end offsets of all partitions now, newly made ones included."""
        planner = self._planner()
        if time.monotonic() - self._discovered_s > DISCOVERY_INTERVAL_S:
            # A topic that was deleted under the stream is a data loss to report, not a name that is wrong.
            self._partitions = planner.partitions(missing_is_empty=self._latest is not None)
            self._discovered_s = time.monotonic()
        self._latest = planner.latest(self._partitions) if self._partitions else {}
        return self._latest

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query starts: startingOffsets, latest unless given."""
        with client_errors():
            planner = self._planner()
            self._partitions = planner.partitions()
            spec = self._options.starting or OffsetSpec(everywhere=LATEST)
            start = planner.resolve(spec, self._partitions, starting=True)
            start = planner.clamp_to_log(start)
            if spec.offsets:
                start = planner.clamp_to_end(start)
            return to_source_offset(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """maxOffsetsPerTrigger, if given."""
        limit = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of an available-now run."""
        with client_errors():
            self._target = dict(self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch; `start` itself if there is nothing to read, after a short wait for data."""
        with client_errors():
            known = from_source_offset(start)
            end = self._reachable(known)
            if end == known and self._target is None:
                assert self._waiter is not None
                self._waiter.wait(known, IDLE_WAIT_MS)
                end = self._reachable(known)
            if end == known:
                return start
            if isinstance(limit, ReadMaxRows):
                begin = self._with_new_partitions(known, end)
                end = limit_by_backlog(begin, end, limit.max_rows)
            elif not isinstance(limit, ReadAllAvailable):
                raise SourceError(f"the read limit {type(limit).__name__} is not supported; use maxOffsetsPerTrigger")
            return to_source_offset(end)

    def _reachable(self, known: Offsets) -> Offsets:
        """The end that the next micro-batches lead to; partitions that are gone, or shrank, are a data loss."""
        end = dict(self._ends() if self._target is None else self._target)
        for key, offset in known.items():
            topic, partition = key
            if key not in end:
                self._planner().lost(f"{topic}-{partition} is gone since offset {offset}; its further records are lost")
            elif end[key] < offset:
                self._planner().lost(
                    f"{topic}-{partition} ends at offset {end[key]}, but {offset} was reached before: the topic was "
                    "made anew, and records of it are lost"
                )
        return end

    def _with_new_partitions(self, known: Offsets, end: Offsets) -> Offsets:
        """Start offsets for every partition of `end`: a partition not seen before is read from its beginning."""
        new = [key for key in end if key not in known]
        return {**known, **(self._planner().earliest(new) if new else {})}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end offsets last seen, from which Spark's progress shows the backlog."""
        return None if self._latest is None else to_source_offset(self._latest)

    # -- data --------------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """One task a range of the micro-batch."""
        with client_errors():
            ends = from_source_offset(end)
            begins = self._with_new_partitions(from_source_offset(start), ends)
            begins = {key: begins[key] for key in ends if begins[key] < ends[key]}
            begins = self._planner().clamp_to_log(begins) if begins else {}
            ranges = [OffsetRange(*key, offset, ends[key]) for key, offset in sorted(begins.items())]
            return [RangePartition(part) for part in split_ranges(ranges, self._options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetches and decodes one range."""
        return read_range(partition, self._options)

    def stop(self) -> None:
        """Closes the connections."""
        if self._waiter is not None:
            self._waiter.close()
        if self._cluster is not None:
            self._cluster.close()
