"""Several event types in one topic: a header, a field or the writer's schema gives each record's type.

All types: a struct column for each type, null in records of another type, and `columns.EVENT`. One type: its fields as
columns; records of other types are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats import ValueColumns, format_of, framed_json
from headwater.pipelines.formats.misfits import CORRUPT, json_misfit, json_texts
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import EventType


def event_name(place: EventType, *, is_framed: bool = False) -> Column:
    """The name of a record's event type; null if the record lacks it. A header needs the column `headers`.

    `is_framed` means that a schema id precedes the JSON.
    """
    from pyspark.sql import functions as f

    if place.header is not None:
        values = f.filter(f.col("headers"), lambda header: header["key"] == f.lit(place.header))
        return f.try_element_at(values, f.lit(-1))["value"].cast("string")
    assert place.field is not None, "the model has one of both"
    return f.get_json_object(_text(is_framed=is_framed), f"$['{place.field}']")


def _text(*, is_framed: bool) -> Column:
    from pyspark.sql import functions as f

    return framed_json.text_of(f.col("value")) if is_framed else f.col("value").cast("string")


def of_one(
    records: DataFrame, place: EventType, name: str, wanted: ValueColumns, *, is_framed: bool = False
) -> DataFrame:
    """The decoded records of one type."""
    own = records.where(event_name(place, is_framed=is_framed) == name)
    return format_of("json_schema" if is_framed else "json").decode(own, wanted)


def of_framed(
    records: DataFrame, place: EventType | None, name: str | None, events: Mapping[str, ValueColumns]
) -> DataFrame:
    """The decoded Avro or Protobuf records of one type or all. Without a place, a record's schema gives its type."""
    from headwater.pipelines.formats import framed

    schemas = {event: wanted.schema for event, wanted in events.items() if wanted.schema is not None}
    readers = {event: wanted.reader for event, wanted in events.items() if wanted.reader is not None}
    if len(readers) < len(schemas):  # in a test of a stage
        return framed.undecoded(records, schemas[name] if name is not None else result_columns(events))
    kind = None if place is None else event_name(place)
    if kind is not None and name is not None:
        records = records.where(kind == name)
    return framed.decode_events(records, readers, schemas, name, kind)


def result_columns(events: Mapping[str, ValueColumns]) -> StructType:
    """Columns of the result of `of_all`, without the columns of the record's origin."""
    from pyspark.sql.types import StringType, StructType

    found = StructType().add(columns.EVENT, StringType())
    for name, wanted in events.items():
        assert wanted.schema is not None, "an event has fields"
        found = found.add(name, wanted.schema)
    return found


def of_all(
    records: DataFrame, place: EventType, events: Mapping[str, ValueColumns], *, is_framed: bool = False
) -> DataFrame:
    """The decoded records of every type, in one pass."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    text, kind = _text(is_framed=is_framed), f.col(columns.EVENT)
    named = records.withColumn(columns.EVENT, event_name(place, is_framed=is_framed))
    error = f.when(f.col("value").isNull(), f.lit("the value is null"))
    if is_framed:
        fault = framed_json.fault_of(f.col("value"))
        error = error.when(fault.isNotNull(), fault)
    error = error.when(kind.isNull(), f.lit("the record does not say which event it is"))
    structs = []
    for number, (name, wanted) in enumerate(events.items()):
        assert wanted.schema is not None, "an event has fields"
        schema = StructType(list(wanted.schema.fields)).add(CORRUPT, StringType())
        options = {"mode": "PERMISSIVE", **wanted.options, "columnNameOfCorruptRecord": CORRUPT}
        own = f"_event_{number}"  # an event's name may equal a record's column, such as `value`
        named = named.withColumn(own, f.from_json(f.when(kind == name, text), schema, options))
        parsed = f.col(own)
        is_bad = (kind == name) & (parsed.isNull() | parsed[CORRUPT].isNotNull())
        texts = f"_event_texts_{number}"
        named = named.withColumn(texts, f.when(is_bad, json_texts(text, wanted.options)))
        misfit = json_misfit(text, f.col(texts), parsed, wanted.schema, wanted.options)
        said = f"the value does not fit the schema of the event {name}: "
        error = error.when(is_bad, f.concat(f.lit(said), misfit))
        for field in wanted.required:
            missing = (kind == name) & parsed[field].isNull()
            error = error.when(missing, f.lit(f"the required field {name}.{field} is missing or null"))
        structs.append(f.when(parsed.isNotNull(), parsed.dropFields(CORRUPT)).alias(name))
    unknown = f.concat(f.lit("the event '"), kind, f.lit("' is not declared"))
    error = error.when(~kind.isin(*events), unknown)
    return named.select(kind, *structs, *origin(), error.alias(columns.ERROR))
