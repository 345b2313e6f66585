"""Schemas with nullable columns only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def nullable(schema: StructType) -> StructType:
    """The same columns, all nullable: one batch's nullability does not apply to the whole table."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])
