"""`value: csv`: one line of CSV per record, without a header. The columns have the schema's order.

A record is refused if its value is null, has more or fewer fields than the schema, has a field of another type, or
lacks a required field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats.misfits import CORRUPT, csv_misfit, csv_texts
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.formats.value_columns import ValueColumns

_PARSED = "_parsed"
_TEXTS = "_texts"  # the fields of refused records, as text


def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:
    """Decode records to columns."""
    from pyspark.sql import functions as f

    assert wanted.schema is not None, "CSV needs a schema"
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in wanted.schema.fields)
    options = {"mode": "PERMISSIVE", **wanted.options, "columnNameOfCorruptRecord": CORRUPT}
    text = f.regexp_replace(f.col("value").cast("string"), r"\r?\n$", "")
    parsed = records.withColumn(_PARSED, f.from_csv(text, f"{ddl}, {CORRUPT} STRING", options))
    # An empty line has no fields, and Spark converts it to a row of nulls.
    corrupt = f.col(f"{_PARSED}.{CORRUPT}").isNotNull() | f.col(_PARSED).isNull() | (text == "")
    # Parsed again only for refused records: the first parse does not report the reason.
    texts = f.when(corrupt & (text != ""), csv_texts(text, wanted.schema, wanted.options))
    parsed = parsed.withColumn(_TEXTS, texts)
    misfit = csv_misfit(f.col(_TEXTS), f.col(_PARSED), wanted.schema)
    error = f.when(f.col("value").isNull(), f.lit("the value is null")).when(
        corrupt, f.concat(f.lit("the value does not fit the schema: "), misfit)
    )
    for name in wanted.required:
        missing = f.col(f"{_PARSED}.`{name}`").isNull()
        error = error.when(missing, f.lit(f"the required field {name} is missing or null"))
    fields = [f.col(f"{_PARSED}.`{name}`").alias(name) for name in wanted.schema.fieldNames()]
    return parsed.select(*fields, *origin(), error.alias(columns.ERROR))


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:
    """Return the schema's columns as one line."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    assert wanted.schema is not None, "CSV needs a schema"
    places = {name.lower(): name for name in rows.columns}
    found = []
    for name in wanted.schema.fieldNames():
        own = places.get(name.lower())
        if own is None:
            raise ValueError(f"the rows have no column {name}, which the topic's schema has")
        kind = rows.schema[own].dataType
        if isinstance(kind, ArrayType | BinaryType | MapType | StructType):
            raise ValueError(f"the column {own} is {kind.simpleString()}, which is no field of CSV")
        found.append(f.col(f"`{own}`"))
    known = {name.lower() for name in wanted.schema.fieldNames()} | set(columns.RESERVED)
    others = [name for name in rows.columns if name not in known and name.lower() not in known]
    if others:
        raise ValueError(f"the topic's schema has no {', '.join(others)}: add it there, or leave it out of the rows")
    return f.to_csv(f.struct(*found), dict(wanted.options)).cast("binary")
