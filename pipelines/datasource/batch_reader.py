"""The batch readers: all records between two positions, planned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from pipelines.datasource.errors import OptionError, client_errors
from pipelines.datasource.filters import Narrowing
from pipelines.datasource.offsets import OffsetRange, split_ranges
from pipelines.datasource.options import OffsetSpec, ReadOptions
from pipelines.datasource.planning import Planner
from pipelines.datasource.reading import RangePartition, read_range

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader", "PushdownBatchReader"]


class BatchReader(DataSourceReader):
    """Reads from startingOffsets (earliest) to endingOffsets (latest), both fixed when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        starting, ending = options.starting, options.ending
        if starting is not None and (starting.everywhere == LATEST or LATEST in starting.offsets.values()):
            raise OptionError("option startingOffsets: a batch read cannot start at latest, it would hold nothing")
        if ending is not None and (ending.everywhere == EARLIEST or EARLIEST in ending.offsets.values()):
            raise OptionError("option endingOffsets: a batch read cannot end at earliest, it would hold nothing")
        self._options = options
        self._narrowing = Narrowing()

    def ranges(self) -> list[OffsetRange]:
        """The ranges to read, as far as filters have not ruled them out."""
        options = self._options
        with client_errors(), ClusterClient(options.client) as cluster:
            planner = Planner(cluster, options)
            partitions = planner.partitions()
            if not partitions:
                return []
            start = planner.resolve(options.starting or OffsetSpec(everywhere=EARLIEST), partitions, starting=True)
            end = planner.resolve(options.ending or OffsetSpec(everywhere=LATEST), partitions, starting=False)
            start = planner.clamp_to_log(start)
            admitted = [key for key in partitions if self._narrowing.admits(*key)]
            if self._narrowing.timestamp_low_ms is not None and admitted:
                late_enough = planner.at_or_after(admitted, self._narrowing.timestamp_low_ms)
                start = {key: max(start[key], late_enough[key]) for key in admitted}
            ranges = [self._narrowing.narrow(OffsetRange(*key, start[key], end[key])) for key in admitted]
            return split_ranges(ranges, options.partitions_min)

    def partitions(self) -> Sequence[InputPartition]:
        """One task a range."""
        return [RangePartition(part) for part in self.ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetches and decodes one range."""
        return read_range(partition, self._options)


class PushdownBatchReader(BatchReader):
    """A batch reader that fetches only the offsets, partitions and times that the query's filters leave.

    A class of its own because Spark refuses a reader that takes filters where they are switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrows the ranges; every filter stays with Spark too, so that narrowing need not be exact."""
        self._narrowing = Narrowing.of(filters)
        return filters
