"""The columns of records, and the origin columns that decoded records keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def origin() -> list[Column]:
    """Return the columns of `columns.ORIGIN`, taken from a record's own columns."""
    from pyspark.sql import functions as f

    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    return [f.col(name).alias(alias) for name, alias in zip(names, columns.ORIGIN, strict=True)]


def records_schema() -> StructType:
    """Return the columns of the data source's records, including headers."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(f"{columns.RECORD_DDL}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    assert isinstance(found, StructType)
    return found
