"""Schemas whose columns may all be null."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def nullable(schema: StructType) -> StructType:
    """The same columns, all of which may be null: what holds for one batch is no law for the table."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])
