"""`value: json`: one JSON object per record. Columns: the fields of the schema.

A record is refused if its value is null, is not JSON, is not an object, has a field whose type differs from the
schema's, or lacks a required field. Fields absent from the schema are ignored; missing fields that are not required are
null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats.misfits import CORRUPT, json_misfit, json_texts
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.formats.value_columns import ValueColumns

_PARSED = "_parsed"
_TEXTS = "_texts"  # the fields of refused records, as text


def decode(
    records: DataFrame, wanted: ValueColumns, text: Column | None = None, fault: Column | None = None
) -> DataFrame:
    """Decode records to columns. `text` is the JSON, if it is not the value itself; `fault` is the fault of that text.

    Fields that are already columns of the records (`fields_of`) are used; Spark parses only the remaining records.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    from headwater.pipelines.datasource.json_fields import TAKEN, field_column

    assert wanted.schema is not None, "JSON needs a schema"
    text = f.col("value").cast("string") if text is None else text
    options = {"mode": "PERMISSIVE", **wanted.options, "columnNameOfCorruptRecord": CORRUPT}
    schema = StructType(list(wanted.schema.fields)).add(CORRUPT, StringType())
    names = wanted.schema.fieldNames()
    parse = f.from_json(text, schema, options)
    taken = f.col(TAKEN) if TAKEN in records.columns else None
    parsed = records.withColumn(_PARSED, parse if taken is None else f.when(~taken, parse))
    fields = {name: f.col(f"{_PARSED}.`{name}`") for name in names}
    if taken is not None:
        fields = {
            name: f.when(taken, f.col(field_column(position))).otherwise(fields[name])
            for position, name in enumerate(names)
        }
    corrupt = f.col(f"{_PARSED}.{CORRUPT}")
    refused = f.col(_PARSED).isNull() | corrupt.isNotNull()
    refused = f.col("value").isNotNull() & (refused if taken is None else ~taken & refused)
    # Parsed again only for records that are refused: the first parse does not tell why.
    parsed = parsed.withColumn(_TEXTS, f.when(refused, json_texts(text, wanted.options)))
    misfit = json_misfit(text, f.col(_TEXTS), f.col(_PARSED), wanted.schema, wanted.options)
    why = f.when(f.try_parse_json(text).isNull(), f.lit("the value is not JSON")).otherwise(
        f.concat(f.lit("the value does not fit the schema: "), misfit)
    )
    error = f.when(f.col("value").isNull(), f.lit("the value is null"))
    if fault is not None:
        error = error.when(fault.isNotNull(), fault)
    error = error.when(refused, why)
    for name in wanted.required:
        error = error.when(fields[name].isNull(), f.lit(f"the required field {name} is missing or null"))
    found = [field.alias(name) for name, field in fields.items()]
    seen = [columns.HEADERS_SEEN] if columns.HEADERS_SEEN in records.columns else []
    return parsed.select(*found, *origin(), error.alias(columns.ERROR), *seen)


def fields_of(wanted: ValueColumns, *, framed: bool = False) -> JsonFields | None:
    """Return the fields that can be parsed ahead of Spark; None if the parser has options."""
    from headwater.pipelines.datasource.json_fields import JsonFields

    return None if wanted.options or wanted.schema is None else JsonFields.of(wanted.schema, framed=framed)


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:
    """Format all columns except the origin as a JSON object; nulls are omitted, timestamps are ISO 8601 in UTC."""
    from pyspark.sql import functions as f

    names = [name for name in rows.columns if name not in columns.RESERVED]
    if not names:
        raise ValueError("the rows have no column to write as JSON")
    return f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)), dict(wanted.options)).cast("binary")
