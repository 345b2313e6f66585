"""Debezium's change events: envelopes around the rows before and after a change, converted to one row.

The value is `{"before": …, "after": …, "op": …, "source": {"ts_ms": …}, "ts_ms": …}`, in JSON also wrapped as
`{"schema": …, "payload": …}`. A row has the columns of the row after the change (before it, if it was deleted), `_op`,
`_sequence` and `_source_position`. A delete whose envelope lacks the row before (a source table without full replica
identity) has the columns of its key. Tombstones, which follow deletes for compaction, carry no further information.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats import ValueColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SEQUENCE = "_sequence"

CREATE, UPDATE, DELETE, READ = "c", "u", "d", "r"

# The change's position in the database's log, from its connector: lsn (PostgreSQL), file, pos and row (MySQL). Read as
# text, since other connectors use other types there, and a mismatched type would refuse the record.
_ENVELOPE = "op STRING, ts_ms BIGINT, source STRUCT<ts_ms: BIGINT, lsn: STRING, file: STRING, pos: STRING, row: STRING>"
_DIGITS = 20  # of a 64-bit number
_PAYLOAD = "payload"


def row_columns(declared: StructType) -> StructType:
    """Columns of the row, from a declared schema of either the row or the envelope."""
    from pyspark.sql.types import StructType

    if is_envelope(declared):
        after = declared["after"].dataType
        assert isinstance(after, StructType), "is_envelope looks at that"
        return after
    return declared


def is_envelope(declared: StructType) -> bool:
    """Whether a schema describes the envelope rather than the row."""
    from pyspark.sql.types import StructType

    names = set(declared.fieldNames())
    return {"op", "after"} <= names and isinstance(declared["after"].dataType, StructType)


def envelope_of(wanted: ValueColumns) -> ValueColumns:
    """Columns for decoding a JSON envelope around a row with these columns."""
    from pyspark.sql.types import StructType

    assert wanted.schema is not None, "change events have fields"
    row = row_columns(wanted.schema)
    parts = StructType.fromDDL(_ENVELOPE)
    assert isinstance(parts, StructType)
    envelope = StructType([*StructType().add("before", row).add("after", row).fields, *parts.fields])
    return ValueColumns(StructType(list(envelope.fields)).add(_PAYLOAD, envelope))


def result_columns(declared: StructType) -> StructType:
    """Columns of the result of `flattened`, without the columns of the record's origin."""
    from pyspark.sql.types import LongType, StringType, StructType

    return StructType(list(row_columns(declared).fields)).add(columns.OPERATION, StringType()).add(SEQUENCE, LongType())


def without_tombstones(records: DataFrame) -> DataFrame:
    """The records other than tombstones."""
    from pyspark.sql import functions as f

    return records.where(f.col("value").isNotNull())


def flattened(decoded: DataFrame, wanted: ValueColumns) -> DataFrame:
    """Decoded envelopes as rows: the row's columns, `_op`, `_sequence`, SOURCE_POSITION, ORIGIN and ERROR."""
    from pyspark.sql import functions as f

    assert wanted.schema is not None
    row = row_columns(wanted.schema)

    def part(name: str) -> Column:
        if _PAYLOAD not in decoded.columns:
            return f.col(name)
        return f.coalesce(f.col(f"{_PAYLOAD}.{name}"), f.col(name))

    operation, before, after = part("op"), part("before"), part("after")
    is_delete = operation == DELETE
    image = f.when(is_delete, f.coalesce(before, _key_columns(row))).otherwise(after)
    error = (
        f.when(f.col(columns.ERROR).isNotNull(), f.col(columns.ERROR))
        .when(operation.isNull(), f.lit("the value is no change event: it has no op"))
        .when(
            ~operation.isin(CREATE, UPDATE, DELETE, READ),
            f.concat(f.lit("the change event's op is '"), operation, f.lit("': only c, u, d and r have a row")),
        )
        .when(image.isNull(), f.lit("the change event has no row, neither before nor after"))
    )
    for name in wanted.required:
        missing = ~is_delete & image[name].isNull()
        error = error.when(missing, f.lit(f"the required field {name} is missing or null"))
    return decoded.select(
        *(image[name].alias(name) for name in row.fieldNames()),
        operation.alias(columns.OPERATION),
        f.coalesce(part("source")["ts_ms"], part("ts_ms")).alias(SEQUENCE),
        _source_position(part("source"), source_type(decoded)).alias(columns.SOURCE_POSITION),
        *(f.col(name) for name in columns.ORIGIN),
        error.alias(columns.ERROR),
    )


def source_type(decoded: DataFrame) -> StructType:
    """The fields of the envelope's `source`: in Avro and Protobuf the fields of its schema."""
    from pyspark.sql.types import StructType

    envelope = decoded.schema
    if "source" not in envelope.fieldNames():
        inner = envelope[_PAYLOAD].dataType
        assert isinstance(inner, StructType), "an envelope is wrapped in an object"
        envelope = inner
    found = envelope["source"].dataType
    return found if isinstance(found, StructType) else StructType()


def _source_position(source: Column, fields: StructType) -> Column:
    """The change's position in the database's log as sortable text; null if the envelope lacks it."""
    from pyspark.sql import functions as f

    def number(text: Column) -> Column:
        return f.when(text.rlike("^[0-9]+$"), f.lpad(text, _DIGITS, "0"))

    known = set(fields.fieldNames())
    found = f.lit(None).cast("string")
    if {"file", "pos"} <= known:
        row = source["row"].cast("string") if "row" in known else f.lit(None).cast("string")
        file = number(f.regexp_extract(source["file"].cast("string"), "([0-9]+)$", 1))
        place = (file, number(source["pos"].cast("string")), f.coalesce(number(row), number(f.lit("0"))))
        found = f.concat(place[0], f.lit("/"), place[1], f.lit("/"), place[2])
    if "lsn" in known:
        found = f.coalesce(number(source["lsn"].cast("string")), found)
    return found


def _key_columns(row: StructType) -> Column:
    """The row's columns from the record's key; null if the key is no JSON object."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    wrapped = StructType(list(row.fields)).add(_PAYLOAD, StructType(list(row.fields)))
    key = f.from_json(f.col(columns.KEY).cast("string"), wrapped)
    plain = f.struct(*(key[name].alias(name) for name in row.fieldNames()))
    held = f.coalesce(key[_PAYLOAD], plain)
    knows = f.coalesce(*(held[name].cast("string") for name in row.fieldNames()))
    return f.when(knows.isNotNull(), held)
