"""The records of a publish as frames: of the whole, or of one of several transactions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.formats import data_columns
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.definition import TopicSink
    from headwater.pipelines.formats.topic_encoding import Encoding

__all__ = ["Division", "RecordFrames", "changing_expression", "order_column"]

_DESCENDING: Final = re.compile(r"\s+(asc|desc)\s*$", re.IGNORECASE)
_PART: Final = "_headwater_part"
_HASH: Final = "_headwater_hash"
_DIGEST_LENGTH: Final = 32
#: Catalyst's expressions of the time, the user and the catalog are deterministic to it: within one query they are.
_OF_THE_MOMENT: Final = re.compile(r"Current\w+|Now|LocalTimestamp")


@dataclass(frozen=True, slots=True)
class Division:
    """How records are divided into transactions: the number of each, and a hash of which rows each has.

    The hash is the same in whatever order the rows are read. It is empty for one transaction.
    """

    counts: tuple[int, ...]
    digest: str = ""

    @property
    def rows(self) -> int:
        """The records of all transactions."""
        return sum(self.counts)


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

    def division(self, parts: int) -> Division:
        """How the records are divided into transactions."""
        if parts == 1:
            return Division((self._count(),))
        added = self._hashes(self.rows, parts)
        if self.removed is None:
            counts = tuple(added.get(part, (0, 0))[0] for part in range(parts))
            return Division(counts, _digest([added]))
        counts = tuple(self.records(part, parts).count() for part in range(parts))
        return Division(counts, _digest([added, self._hashes(self.removed, parts)]))

    def changing_key(self) -> str | None:
        """The expression of the key that gives other results when it is computed again; None without one."""
        if self.sink.key is None:
            return None
        from pyspark.sql import functions as f

        return changing_expression(jvm.expressions(self.rows.select(f.expr(self.sink.key))))

    def has_removed(self) -> bool:
        """Whether any row was removed."""
        return self.removed is not None and not self.removed.isEmpty()

    def removed_without_key(self) -> bool:
        """Whether the key of a removed row is null, so that there is nothing to delete."""
        if self.removed is None or self.sink.key is None:
            return False
        from pyspark.sql import functions as f

        return not self.removed.where(f.expr(self.sink.key).isNull()).isEmpty()

    def _count(self) -> int:
        return self.rows.count() if self.removed is None else self.records().count()

    def _hashes(self, rows: DataFrame, parts: int) -> dict[int, tuple[int, int]]:
        """The number of rows of each transaction, and the sum of hashes of the rows and their keys."""
        from pyspark.sql import functions as f

        key, whole = self._key_and_row(rows)
        hashed = f.xxhash64(key, whole).cast("decimal(20,0)")
        found = rows.select(self._part_of(rows, parts).alias(_PART), hashed.alias(_HASH)).groupBy(_PART)
        return {int(row[0]): (int(row[1]), int(row[2])) for row in found.agg(f.count("*"), f.sum(_HASH)).collect()}

    def _of_part(self, rows: DataFrame, part: int, parts: int) -> DataFrame:
        return rows if parts == 1 else rows.where(self._part_of(rows, parts) == part)

    def _part_of(self, rows: DataFrame, parts: int) -> Column:
        from pyspark.sql import functions as f

        return f.pmod(f.xxhash64(f.coalesce(*self._key_and_row(rows))), f.lit(parts)).cast("int")

    def _key_and_row(self, rows: DataFrame) -> tuple[Column, Column]:
        """A row's key, and the whole row, as text."""
        from pyspark.sql import functions as f

        whole = f.to_json(f.struct(*(f.col(f"`{name}`") for name in data_columns(rows))))
        key = f.expr(self.sink.key) if self.sink.key is not None else f.lit(None)
        return key.cast("string"), whole

    def _ordered(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        if not self.order_by:
            return rows
        assert self.sink.key is not None
        return rows.repartition(f.expr(self.sink.key)).sortWithinPartitions(*map(order_column, self.order_by))


def changing_expression(expressions: Iterable[tuple[str, bool]]) -> str | None:
    """The first of some expressions that gives other results in another run; None without one.

    Each is Catalyst's name of it, and whether Catalyst takes it for deterministic.

    >>> changing_expression([("Concat", True), ("CurrentDate", True)]), changing_expression([("Cast", True)])
    ('CurrentDate', None)
    """
    for name, is_deterministic in expressions:
        if not is_deterministic or _OF_THE_MOMENT.fullmatch(name):
            return name
    return None


def _digest(hashes: list[dict[int, tuple[int, int]]]) -> str:
    """A hash of the numbers and hashes of all transactions."""
    return hashlib.sha256(json.dumps([sorted(one.items()) for one in hashes]).encode()).hexdigest()[:_DIGEST_LENGTH]


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
