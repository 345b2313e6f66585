"""`value: string`: UTF-8 text. Columns: key STRING, value STRING. A value that is not UTF-8 cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.formats.value_columns import ValueColumns


def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:  # noqa: ARG001 - one signature for all
    """Decode records to columns. A null value stays null: text cannot represent null otherwise."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    error = f.when(f.col("value").isNotNull() & ~f.is_valid_utf8(text), f.lit("the value is not UTF-8 text"))
    return records.select(
        f.col("key").cast("string").alias("key"), text.alias("value"), *origin(), error.alias(columns.ERROR)
    )


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:  # noqa: ARG001 - one signature for all
    """Return the column `value` as text."""
    from pyspark.sql import functions as f

    if "value" not in rows.columns:
        raise ValueError("a topic with value: string takes a column named value")
    return f.col("value").cast("string").cast("binary")
