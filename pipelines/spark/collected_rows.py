"""Collects a frame's rows as typed values: moments in UTC, structures and maps as mappings, binary as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows of a small frame."""
    import datetime as dt

    schema = frame.schema
    return [
        {field.name: _python(row[field.name], field.dataType, dt.UTC) for field in schema.fields}
        for row in frame.toArrow().to_pylist()
    ]


def _python(value: Any, kind: Any, utc: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.astimezone(utc)
    if isinstance(kind, StructType):
        inner: Mapping[str, Any] = value
        return {field.name: _python(inner[field.name], field.dataType, utc) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [_python(item, kind.elementType, utc) for item in value]
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        return {key: _python(item, kind.valueType, utc) for key, item in pairs}
    return value
