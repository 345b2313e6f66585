"""Delta tables as a kind of sink: rows are appended, replace all others, or are merged as changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.sinks.delta import (
    delta_merge,
    delta_rows,
)
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import DeltaSink, Loaded, Stage
    from headwater.pipelines.sinks.kind import BatchWrite, Encodings

__all__ = ["DeltaKind"]


class DeltaKind:
    """See `SinkKind`."""

    def check(self, _loaded: Loaded, sink: DeltaSink, rows: DataFrame, _encodings: Encodings) -> None:
        """Check that the columns of partitions, clusters and the merge exist."""
        if sink.merge is not None:
            delta_merge.check(rows, sink)
        self.shown(sink, rows, {}).select(*(f"`{name}`" for name in sink.layout)).schema  # noqa: B018 - analysed here

    def shown(self, sink: DeltaSink, rows: DataFrame, _encodings: Encodings) -> DataFrame:
        """The table's rows; for a merge the changes, with their delete flag."""
        return delta_merge.changes(rows, sink) if sink.merge is not None else delta_rows.table_rows(rows, sink)

    def stored(self, sink: DeltaSink, rows: DataFrame) -> StructType:
        """The table's columns."""
        held = delta_merge.stored(rows, sink) if sink.merge is not None else delta_rows.table_rows(rows, sink)
        return nullable(held.schema)

    def writer(self, loaded: Loaded, stage: Stage, sink: DeltaSink) -> BatchWrite:
        """A function that commits each micro-batch."""
        replaces = stage.mode == "complete"

        def write(rows: DataFrame, app_id: str, batch_id: int) -> None:
            path = jvm.hadoop_form(rows.sparkSession, loaded.path(sink.delta))
            if sink.merge is not None:
                delta_merge.write(rows, sink, path, app_id, batch_id)
            else:
                delta_rows.write(rows, sink, path, app_id, batch_id, replaces=replaces)

        return write
