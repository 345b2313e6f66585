"""What a task does: fetch one range of offsets and decode it into Arrow."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from logtier.client.cluster import EARLIEST, ClusterClient
from logtier.client.errors import OffsetOutOfRangeError
from logtier.client.fetcher import read_partition
from pipelines.datasource.errors import client_errors
from pipelines.datasource.offsets import OffsetRange
from pipelines.datasource.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangePartition", "read_range"]

logger = logging.getLogger(__name__)


@dataclass
class RangePartition(InputPartition):
    """One task's share of a read."""

    range: OffsetRange

    def __repr__(self) -> str:
        return f"{self.range.topic}-{self.range.partition}[{self.range.start}, {self.range.end})"


def read_range(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of one range as Arrow batches; nothing for the placeholder that Spark makes of an empty plan."""
    if not isinstance(partition, RangePartition):
        assert type(partition) is InputPartition, f"{partition!r} is no plan of this source"
        return
    with client_errors(), ClusterClient(options.client) as cluster:
        part = partition.range
        try:
            yield from _decode(cluster, part, options)
        except OffsetOutOfRangeError:
            if options.fail_on_data_loss:
                raise
            first = cluster.list_offsets({(part.topic, part.partition): EARLIEST})[part.topic, part.partition]
            logger.warning(
                "%s-%d: offsets up to %d are gone; reading from there (failOnDataLoss=false)",
                part.topic,
                part.partition,
                min(first, part.end),
            )
            yield from _decode(cluster, OffsetRange(part.topic, part.partition, first, part.end), options)


@cache
def _load_decoder() -> Callable[..., Iterator[pa.RecordBatch]]:
    """The column decoder, imported once in a worker.

    Spark's daemon collects garbage after every task of a worker that it keeps; over numba's and Arrow's many objects
    that takes 80 ms, more than a small range does. They live as long as the worker, so the collector is told to pass
    over them.
    """
    from logtier.records.columns import decode_columns, warm_decoder

    warm_decoder()
    gc.collect()
    gc.freeze()
    return decode_columns


def _decode(cluster: ClusterClient, part: OffsetRange, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    decode_columns = _load_decoder()
    position = part.start
    for records in read_partition(cluster, part.topic, part.partition, part.start, part.end, options.fetch):
        for batch in decode_columns(
            records,
            part.topic,
            part.partition,
            start_offset=position,
            end_offset=part.end,
            include_headers=options.include_headers,
        ):
            yield batch
            position = batch.column(4)[-1].as_py() + 1
