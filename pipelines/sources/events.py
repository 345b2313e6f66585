"""Several event types in one topic of JSON: each record says by a header or a field which it is.

All types: a struct column for each, null in records of another type, and `columns.EVENT`. One type: its fields as
columns; records of other types are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines import columns
from pipelines.formats import ValueColumns, format_of
from pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from pipelines.spec import EventType

_CORRUPT = "_corrupt"


def event_name(place: EventType) -> Column:
    """The name of a record's event type; null if the record does not say it. A header needs the column `headers`."""
    from pyspark.sql import functions as f

    if place.header is not None:
        values = f.filter(f.col("headers"), lambda header: header["key"] == f.lit(place.header))
        return f.try_element_at(values, f.lit(-1))["value"].cast("string")
    assert place.field is not None, "the model has one of both"
    return f.get_json_object(f.col("value").cast("string"), f"$['{place.field}']")


def of_one(records: DataFrame, place: EventType, name: str, wanted: ValueColumns) -> DataFrame:
    """The records of one type, decoded."""
    return format_of("json").decode(records.where(event_name(place) == name), wanted)


def result_columns(events: Mapping[str, ValueColumns]) -> StructType:
    """Columns of `of_all`, without those of the record's origin."""
    from pyspark.sql.types import StringType, StructType

    found = StructType().add(columns.EVENT, StringType())
    for name, wanted in events.items():
        assert wanted.schema is not None, "an event has fields"
        found = found.add(name, wanted.schema)
    return found


def of_all(records: DataFrame, place: EventType, events: Mapping[str, ValueColumns]) -> DataFrame:
    """The records of every type, decoded in one pass."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    text, kind = f.col("value").cast("string"), f.col(columns.EVENT)
    named = records.withColumn(columns.EVENT, event_name(place))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    error = f.when(f.col("value").isNull(), f.lit("the value is null")).when(
        kind.isNull(), f.lit("the record does not say which event it is")
    )
    structs = []
    for number, (name, wanted) in enumerate(events.items()):
        assert wanted.schema is not None, "an event has fields"
        schema = StructType(list(wanted.schema.fields)).add(_CORRUPT, StringType())
        own = f"_event_{number}"  # a record has columns such as `value`, and an event may be named so
        named = named.withColumn(own, f.from_json(f.when(kind == name, text), schema, options))
        parsed = f.col(own)
        is_bad = (kind == name) & (parsed.isNull() | parsed[_CORRUPT].isNotNull())
        error = error.when(is_bad, f.lit(f"the value does not fit the schema of the event {name}"))
        for field in wanted.required:
            missing = (kind == name) & parsed[field].isNull()
            error = error.when(missing, f.lit(f"the required field {name}.{field} is missing or null"))
        structs.append(f.when(parsed.isNotNull(), parsed.dropFields(_CORRUPT)).alias(name))
    unknown = f.concat(f.lit("the event '"), kind, f.lit("' is not declared"))
    error = error.when(~kind.isin(*events), unknown)
    return named.select(kind, *structs, *origin(), error.alias(columns.ERROR))
