"""Records as rows of an archive's table, straight in Arrow: in Spark's tasks, without the JVM.

Rows are made of what can be decoded without doubt. Everything else, such as a value that cannot be decoded, is left to
Spark's own decoding (`rows`), so that both agree by construction on what a value is and why it is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.archive.rows import FIRST, HEADERS, is_raw
from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.sources import decoding

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.formats.framed_tasks import Reader
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["ArrowRows", "ValueKind", "arrow_rows"]

_KEY_COLUMN = "key"  # of keys in a format with fields


class ValueKind(Enum):
    """How values become columns."""

    RAW = "raw"
    STRING = "string"
    #: By the compiled loops of the data source, in columns of the records.
    JSON = "json"
    #: By a schema whose id precedes the value: Avro, Protobuf.
    FRAMED = "framed"
    #: Only Spark decodes them: CSV, several event types, JSON with options or with types that the loops lack.
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Makes rows of batches of records; picklable.

    Attributes:
        schema: The table's columns.
        names: The value's columns, in the value's order.
        required: Those without which a value is none.
        fields: The fields that the reading task parses, for JSON.
        reader: Of framed values.
        key_reader: Of framed keys.
        keeps_value: Whether `_value` has the bytes of every value.
    """

    kind: ValueKind
    schema: pa.Schema
    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    fields: JsonFields | None = None
    reader: Reader | None = None
    key_reader: Reader | None = None
    keeps_value: bool = False

    def of(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows of those records that can be decoded without doubt, and the other records."""
        import pyarrow.compute as pc

        if self.kind is ValueKind.SPARK:
            return _none(self.schema), records
        found, is_doubtful = self._values(records)
        if is_doubtful is None or not pc.any(is_doubtful).as_py():
            return self._rows(records, found), records.slice(0, 0)
        certain = pc.invert(is_doubtful)
        rows = self._rows(records.filter(certain), {name: column.filter(certain) for name, column in found.items()})
        return rows, records.filter(is_doubtful)

    def _values(self, records: pa.RecordBatch) -> tuple[dict[str, Any], Any]:
        """The value's columns, and which of the rows are in doubt; None for no row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        value = records.column("value")
        if self.kind is ValueKind.RAW:
            return {"value": value}, None
        if self.kind is ValueKind.STRING:
            try:
                return {"value": value.cast(pa.string())}, None
            except pa.ArrowInvalid:  # a value that is not UTF-8
                nothing = pa.nulls(len(value), pa.string())
                return {"value": nothing}, pa.repeat(pa.scalar(True), len(value))
        if self.kind is ValueKind.JSON:
            from headwater.pipelines.datasource.json_fields import TAKEN, field_column

            assert self.fields is not None, "the reading task has parsed them"
            parsed = {name: place for place, (name, _) in enumerate(self.fields.fields)}
            found = {name: records.column(field_column(parsed[name])) for name in self.names}
            is_doubtful = pc.invert(records.column(TAKEN))
        else:
            found, is_doubtful = self._framed(records)
        for name in self.required:
            if found[name].null_count:
                is_doubtful = pc.or_(is_doubtful, found[name].is_null())
        return found, is_doubtful

    def _framed(self, records: pa.RecordBatch) -> tuple[dict[str, Any], Any]:
        import pyarrow as pa

        from headwater.pipelines.formats.framed_tasks import decoded, with_key

        assert self.reader is not None, "framed values have a reader"
        names = ("topic", "partition", "offset", "timestamp", "key", "value")
        origin = pa.RecordBatch.from_arrays([records.column(name) for name in names], names=list(columns.ORIGIN))
        batches = decoded(self.reader, [name for name in self.names if not self._is_key(name)], iter([origin]))
        if self.key_reader is not None:
            batches = with_key(self.key_reader, batches)
        [batch] = batches
        return {name: batch.column(name) for name in self.names}, batch.column(columns.ERROR).is_valid()

    def _is_key(self, name: str) -> bool:
        return self.key_reader is not None and name == _KEY_COLUMN

    def _rows(self, records: pa.RecordBatch, found: dict[str, Any]) -> pa.RecordBatch:
        import pyarrow as pa

        own = {name: records.column(name.removeprefix("_")) for name in FIRST} | found
        if HEADERS in self.schema.names:
            own[HEADERS] = records.column("headers")
        if self.keeps_value:
            own[columns.VALUE] = records.column("value")
        arrays = []
        for field in self.schema:
            column = own.get(field.name)
            if column is None:
                column = pa.nulls(len(records), field.type)
            arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _none(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def arrow_rows(known: KnownColumns, topic: str, schema: StructType, *, keeps_value: bool) -> ArrowRows:
    """How the records of a topic become rows with these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema, timezone="UTC")
    names = _own_columns(schema)
    kind, declared = known.value_format(topic), known.topics.get(topic)
    wanted, key = known.values.get(topic, ValueColumns()), known.keys.get(topic)
    framed_key = None if key is None else key.reader
    if key is not None and (framed_key is None or kind not in ("avro", "protobuf")):
        return ArrowRows(ValueKind.SPARK, arrow)
    if is_raw(known, topic):
        return ArrowRows(ValueKind.RAW, arrow, ("value",))
    if kind == "string":
        return ArrowRows(ValueKind.STRING, arrow, ("value",), keeps_value=keeps_value)
    if topic in known.events or declared is None:
        return ArrowRows(ValueKind.SPARK, arrow)
    fields = decoding.topic_json_fields(known, topic)
    if fields is not None:
        return ArrowRows(ValueKind.JSON, arrow, names, tuple(wanted.required), fields, keeps_value=keeps_value)
    if kind in ("avro", "protobuf") and wanted.reader is not None:
        return ArrowRows(
            ValueKind.FRAMED, arrow, names, reader=wanted.reader, key_reader=framed_key, keeps_value=keeps_value
        )
    return ArrowRows(ValueKind.SPARK, arrow)


def _own_columns(schema: StructType) -> tuple[str, ...]:
    """The value's columns among a table's."""
    own: Sequence[str] = (*FIRST, HEADERS, columns.ERROR, columns.VALUE)
    return tuple(field.name for field in schema.fields if field.name not in own)
