"""Feeds a test's rows to a stage: files in a folder, one for each micro-batch, as a frame or as a stream.

Rows with the input's columns are in `rows/`, and records to be decoded in `records/`. An empty file is also a
micro-batch, so that the inputs of a stage stay in step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.definition import Source, TopicSource, interval_ms
from headwater.pipelines.rows.given_rows import Fed
from headwater.pipelines.sources import decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

MOVES: Final = "_headwater_moves"  # true for a row that only advances the watermark
# Age difference, in seconds, between files: the stream reads files in the order of their age.
_FIRST_AGE_S: Final = 1_000_000_000


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: StructType) -> Any:
    """Typed rows as an Arrow table; columns missing from a row are null."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    fields = [pa.field(field.name, field.type, nullable=True) for field in wanted]
    return pa.Table.from_pylist([_for_arrow(row, schema) for row in rows], schema=pa.schema(fields))


def _for_arrow(row: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    return {field.name: _value(row.get(field.name), field.dataType) for field in schema.fields}


def _value(value: Any, kind: Any) -> Any:
    """A value for Arrow, where maps are lists of pairs."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if value is None:
        return None
    if isinstance(kind, StructType):
        return _for_arrow(value, kind)
    if isinstance(kind, ArrayType):
        return [_value(item, kind.elementType) for item in value]
    if isinstance(kind, MapType):
        return [(key, _value(item, kind.valueType)) for key, item in value.items()]
    return value


class Feed:
    """One input of a stage. `schema` are its columns; `write` creates its files."""

    def __init__(self, session: SparkSession, known: KnownColumns, source: Source, schema: StructType) -> None:
        self._session = session
        self._known = known
        self._source = source
        self._schema = schema
        self._folder = ""
        self._has_records = False

    def write(self, batches: Sequence[Fed], folder: str) -> None:
        """Write the files of all micro-batches into a new folder."""
        self._folder = folder
        self._has_records = any(fed.records for fed in batches)
        self._write("rows", [[*fed.rows, *self._moves(fed)] for fed in batches], self._rows_schema())
        if self._has_records:
            self._write("records", [fed.records for fed in batches], decoding.empty_records(self._session).schema)

    def _moves(self, fed: Fed) -> list[dict[str, Any]]:
        import datetime as dt

        mark = self._source.watermark
        if fed.watermark is None or mark is None:
            return []
        moment = fed.watermark + dt.timedelta(milliseconds=interval_ms(mark.delay))
        return [{mark.column: moment, MOVES: True}]

    def _rows_schema(self) -> StructType:
        from pyspark.sql.types import BooleanType, StructType

        return StructType(list(self._schema.fields)).add(MOVES, BooleanType())

    def _write(self, name: str, batches: Sequence[Sequence[Mapping[str, Any]]], schema: StructType) -> None:
        import pyarrow.parquet as pq

        folder = os.path.join(self._folder, name)
        os.makedirs(folder)
        for number, rows in enumerate(batches):
            path = os.path.join(folder, f"{number:06}.parquet")
            pq.write_table(arrow_table(rows, schema), path)
            os.utime(path, (_FIRST_AGE_S + number, _FIRST_AGE_S + number))

    def stream(self) -> DataFrame:
        """The rows as a stream with its watermark, omitting undecodable records."""
        return self._frame(self._session.readStream.option("maxFilesPerTrigger", 1))

    def batch(self) -> DataFrame:
        """All rows."""
        return self._frame(self._session.read)

    def undecodable(self) -> DataFrame | None:
        """The undecodable records, with `columns.ORIGIN` and `columns.ERROR`."""
        from pyspark.sql import functions as f

        if not self._has_records:
            return None
        return self._decoded(self._session.read).where(f.col(columns.ERROR).isNotNull())

    def _decoded(self, reader: Any) -> DataFrame:
        assert isinstance(self._source, TopicSource), "others have no records"
        records = reader.schema(decoding.empty_records(self._session).schema).parquet(
            os.path.join(self._folder, "records")
        )
        return decoding.decode_input(self._known, records, self._source)

    def _frame(self, reader: Any) -> DataFrame:
        from pyspark.sql import functions as f

        rows: DataFrame = reader.schema(self._rows_schema()).parquet(os.path.join(self._folder, "rows"))
        if self._has_records:
            decoded = self._decoded(reader).where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
            rows = rows.unionByName(decoded.withColumn(MOVES, f.lit(None).cast("boolean")))
        mark = self._source.watermark
        if mark is not None:
            rows = rows.withWatermark(mark.column, mark.delay)
        # After the watermark, which must see the row; Spark does not push down a non-deterministic filter.
        # Spark can evaluate the comparison of one `rand()` with a number in advance, but not of two.
        never = f.rand(0) + f.rand(1) < 0
        return rows.where(f.col(MOVES).isNull() | never).drop(MOVES)
