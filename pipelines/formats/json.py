"""`value: json`: one JSON object a record. Columns: the fields of the schema.

A record is refused when its value is null, is not JSON, is not an object, has a field of another type than the schema
says, or lacks a required field. Fields that the schema does not name are left out; fields that are missing and not
required are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import columns
from pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.formats import ValueColumns

_CORRUPT = "_corrupt"
_PARSED = "_parsed"


def decode(
    records: DataFrame, wanted: ValueColumns, text: Column | None = None, fault: Column | None = None
) -> DataFrame:
    """Records to columns. `text` is the JSON, if it is not the value itself; `fault` says what is wrong with that."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    assert wanted.schema is not None, "JSON needs a schema"
    text = f.col("value").cast("string") if text is None else text
    options = {"mode": "PERMISSIVE", **wanted.options, "columnNameOfCorruptRecord": _CORRUPT}
    schema = StructType(list(wanted.schema.fields)).add(_CORRUPT, StringType())
    parsed = records.withColumn(_PARSED, f.from_json(text, schema, options))
    corrupt = f.col(f"{_PARSED}.{_CORRUPT}")
    # Parsed a second time only for records that are refused: the first parse does not tell why.
    why = f.when(f.try_parse_json(text).isNull(), f.lit("the value is not JSON")).otherwise(
        f.lit("the value does not fit the schema: it is not an object or a field has another type")
    )
    error = f.when(f.col("value").isNull(), f.lit("the value is null"))
    if fault is not None:
        error = error.when(fault.isNotNull(), fault)
    error = error.when(f.col(_PARSED).isNull() | corrupt.isNotNull(), why)
    for name in wanted.required:
        error = error.when(
            f.col(f"{_PARSED}.`{name}`").isNull(), f.lit(f"the required field {name} is missing or null")
        )
    fields = [f.col(f"{_PARSED}.`{name}`").alias(name) for name in wanted.schema.fieldNames()]
    return parsed.select(*fields, *origin(), error.alias(columns.ERROR))


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:
    """Every column but the origin's as one JSON object; null fields are left out, timestamps are ISO 8601 in UTC."""
    from pyspark.sql import functions as f

    names = [name for name in rows.columns if name not in columns.RESERVED]
    if not names:
        raise ValueError("the rows have no column to write as JSON")
    return f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)), dict(wanted.options)).cast("binary")
