"""The records of a publish as frames: of the whole, or of one of several transactions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.formats import data_columns
from headwater.pipelines.sinks import topic as topic_sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.definition import TopicSink
    from headwater.pipelines.formats.topic_encoding import Encoding

__all__ = ["RecordFrames", "order_column"]

_DESCENDING: Final = re.compile(r"\s+(asc|desc)\s*$", re.IGNORECASE)
_PART: Final = "_headwater_part"


@dataclass(frozen=True, slots=True)
class RecordFrames:
    """Rows, and removed rows, on their way to a topic.

    The transaction of a row is a hash of its key, so that it is the same whenever the publish is repeated, and the rows
    of a key are in one transaction. Of a removed row, a tombstone is published unless another row has its key.
    """

    rows: DataFrame
    removed: DataFrame | None
    sink: TopicSink
    encoding: Encoding
    order_by: tuple[str, ...] = ()

    def records(self, part: int = 0, parts: int = 1) -> DataFrame:
        """The records of a transaction: key, value, and headers and timestamp_ms if the sink has them."""
        return self.records_of(self._ordered(self._of_part(self.rows, part, parts)), part, parts)

    def records_of(self, rows: DataFrame, part: int = 0, parts: int = 1) -> DataFrame:
        """The records of some rows, and of all removed rows of the transaction."""
        written = topic_sink.records(_fitting(rows), self.sink, self.encoding)
        if self.removed is None:
            return written
        removed = self._of_part(self.removed, part, parts)
        as_tombstones = self.sink.model_copy(update={"tombstone_when": "true"})
        made = topic_sink.records(removed, as_tombstones, self.encoding).dropDuplicates(["key"])
        return written.unionAll(made.join(written.select("key"), "key", "left_anti").select(*written.columns))

    def counts(self, parts: int) -> list[int]:
        """The number of records of each transaction."""
        if parts == 1 or self.removed is not None:
            return [self._count(part, parts) for part in range(parts)]
        found = self.rows.select(self._part_of(self.rows, parts).alias(_PART)).groupBy(_PART).count().collect()
        by_part = {int(row[0]): int(row[1]) for row in found}
        return [by_part.get(part, 0) for part in range(parts)]

    def has_removed(self) -> bool:
        """Whether any row was removed."""
        return self.removed is not None and not self.removed.isEmpty()

    def removed_without_key(self) -> bool:
        """Whether the key of a removed row is null, so that there is nothing to delete."""
        if self.removed is None or self.sink.key is None:
            return False
        from pyspark.sql import functions as f

        return not self.removed.where(f.expr(self.sink.key).isNull()).isEmpty()

    def _count(self, part: int, parts: int) -> int:
        if self.removed is None:
            return self.rows.count()
        return self.records(part, parts).count()

    def _of_part(self, rows: DataFrame, part: int, parts: int) -> DataFrame:
        return rows if parts == 1 else rows.where(self._part_of(rows, parts) == part)

    def _part_of(self, rows: DataFrame, parts: int) -> Column:
        from pyspark.sql import functions as f

        whole = f.to_json(f.struct(*(f.col(f"`{name}`") for name in data_columns(rows))))
        key = f.expr(self.sink.key).cast("string") if self.sink.key is not None else f.lit(None).cast("string")
        return f.pmod(f.xxhash64(f.coalesce(key, whole)), f.lit(parts)).cast("int")

    def _ordered(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        if not self.order_by:
            return rows
        assert self.sink.key is not None
        return rows.repartition(f.expr(self.sink.key)).sortWithinPartitions(*map(order_column, self.order_by))


def order_column(text: str) -> Column:
    """The column of an `--order-by`: an expression, ascending unless DESC follows. Nulls count as the smallest."""
    from pyspark.sql import functions as f

    found = _DESCENDING.search(text)
    column = f.expr(text[: found.start()] if found else text)
    return column.desc() if found and found[1].lower() == "desc" else column.asc()


def _fitting(rows: DataFrame) -> DataFrame:
    """The rows; computing one with a reason in `columns.ERROR` is an error.

    Such a row is a line that does not fit its file's columns, or a record that a load could not decode.
    """
    from pyspark.sql import functions as f

    if columns.ERROR not in rows.columns:
        return rows
    error = f.col(columns.ERROR)
    return rows.where(f.when(error.isNotNull(), f.raise_error(error).cast("boolean")).otherwise(f.lit(True)))
