"""The batch readers: all records between two positions, planned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from headwater.logtier.client.leaders.metadata import NO_EPOCH
from headwater.pipelines.datasource.errors import OptionError, SourceError, client_errors
from headwater.pipelines.datasource.filters import Narrowing, is_exact
from headwater.pipelines.datasource.offsets import OffsetRange, Offsets, TopicPartition
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.planning import Planner
from headwater.pipelines.datasource.positions import OffsetSpec
from headwater.pipelines.datasource.reading import plan_tasks, read_range

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader", "PushdownBatchReader"]


class BatchReader(DataSourceReader):
    """Reads from startingOffsets (earliest) to endingOffsets (latest), both fixed at planning."""

    def __init__(self, options: ReadOptions) -> None:
        starting, ending = options.starting, options.ending
        if starting is not None and (starting.everywhere == LATEST or LATEST in starting.offsets.values()):
            raise OptionError("option startingOffsets: a batch read cannot start at latest, it would hold nothing")
        if ending is not None and (ending.everywhere == EARLIEST or EARLIEST in ending.offsets.values()):
            raise OptionError("option endingOffsets: a batch read cannot end at earliest, it would hold nothing")
        self._options = options
        self._narrowing = Narrowing()

    def ranges(self) -> list[OffsetRange]:
        """The ranges to read, after pruning by filters."""
        options = self._options
        with client_errors(), ClusterClient(options.client) as cluster:
            planner = Planner(cluster, options)
            partitions = planner.partitions()
            if not partitions:
                return []
            self._require_topics(planner, partitions)
            start, end, epochs = self._bounds(planner, partitions)
            admitted = [key for key in partitions if self._narrowing.admits(*key)]
            if self._narrowing.timestamp_low_ms is not None and admitted:
                late_enough = planner.at_or_after(admitted, self._narrowing.timestamp_low_ms)
                start = {key: max(start[key], late_enough[key]) for key in admitted}
            ranges = [
                OffsetRange(
                    *key, start[key], end[key], planner.topic_id(key[0]), leader_epoch=epochs.get(key, NO_EPOCH)
                )
                for key in admitted
            ]
            if self._narrowing.timestamp_high_ms is not None:
                ranges = planner.limited_in_time(ranges, self._narrowing.timestamp_high_ms)
            return [part for part in map(self._narrowing.narrow, ranges) if not part.is_empty]

    def _require_topics(self, planner: Planner, partitions: list[TopicPartition]) -> None:
        """Raise SourceError if the topic is another than the options name by its id."""
        wanted = self._options.topic_id
        for topic in dict.fromkeys(topic for topic, _ in partitions):
            if wanted and str(planner.topic_id(topic)) != wanted:
                raise SourceError(
                    f"topic {topic} was deleted and made anew (id {planner.topic_id(topic)}, before {wanted}): its "
                    "offsets are others; run the statement again"
                )

    def _bounds(self, planner: Planner, partitions: list[TopicPartition]) -> tuple[Offsets, Offsets, Offsets]:
        """Start and end offset of each partition, limited to the log, and the leader epoch in which it had that end.

        A limited range is reported as data loss.
        """
        starting = self._options.starting or OffsetSpec(everywhere=EARLIEST)
        ending = self._options.ending or OffsetSpec(everywhere=LATEST)
        start = planner.resolve(starting, partitions, starting=True)
        end = planner.resolve(ending, partitions, starting=False)
        if starting.everywhere is None and ending.everywhere is None:
            for topic, partition in partitions:
                first, last = start[topic, partition], end[topic, partition]
                if first > last:
                    raise OptionError(
                        f"{topic}-{partition} would be read from offset {first} to {last}: the options say an end that "
                        "lies before the start"
                    )
        if ending.offsets:
            end = planner.clamp_to_end(end, "endingOffsets")
        epochs = planner.leader_epochs()
        if starting.offsets:
            start = planner.clamp_to_end(start, "startingOffsets")
        return planner.clamp_to_log(start), end, epochs

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges as tasks."""
        return plan_tasks(self.ranges(), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch and decode one range."""
        return read_range(partition, self._options)


class PushdownBatchReader(BatchReader):
    """A batch reader that fetches only the offsets, partitions and times that pass the query's filters.

    If filters require a key, value or headers, rows without it are fetched but not passed to Spark.

    This is a separate class because Spark refuses a reader with `pushFilters` while pushdown is disabled.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the ranges. Spark evaluates the returned filters, whose narrowing is not exact."""
        self._narrowing = Narrowing.of(filters)
        return [one for one in filters if not is_exact(one)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch and decode one range, omitting rows with null in a required column."""
        for rows in super().read(partition):
            kept = rows
            for name in self._narrowing.present:
                if kept[name].null_count:
                    kept = kept.filter(kept[name].is_valid())
            if kept.num_rows:
                yield kept
