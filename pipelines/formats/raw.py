"""`value: raw`: unchanged bytes. Columns: key BINARY, value BINARY. Every record can be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.formats.value_columns import ValueColumns


def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:  # noqa: ARG001 - one signature for all
    """Decode records to columns."""
    from pyspark.sql import functions as f

    return records.select("key", "value", *origin(), f.lit(None).cast("string").alias(columns.ERROR))


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:  # noqa: ARG001 - one signature for all
    """Return the column `value`, which must be text or bytes."""
    from pyspark.sql import functions as f

    kinds = dict(rows.dtypes)
    if kinds.get("value") not in ("binary", "string"):
        raise ValueError("a topic with value: raw takes a column named value, of text or bytes")
    return f.col("value").cast("binary")
