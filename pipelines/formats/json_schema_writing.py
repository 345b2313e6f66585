"""Derives a JSON Schema for rows without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_PLAIN: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "tinyint": {"type": "integer", "format": "int32"},
    "smallint": {"type": "integer", "format": "int32"},
    "int": {"type": "integer", "format": "int32"},
    "bigint": {"type": "integer"},
    "float": {"type": "number", "format": "float"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string"},
}


def schema_for(kind: DataType, name: str) -> str:
    """Derive a schema, without required fields, from the type of Spark's JSON output. Raises ValueError."""
    found = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name, **_schema(kind, "")}
    return json.dumps(found)


def _schema(kind: Any, path: str) -> dict[str, Any]:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(kind, StructType):
        parts = {
            field.name: _schema(field.dataType, f"{path}.{field.name}" if path else field.name) for field in kind.fields
        }
        return {"type": "object", "properties": parts}
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _schema(kind.elementType, f"{path}[]")}
    if isinstance(kind, MapType):
        return {"type": "object", "additionalProperties": _schema(kind.valueType, f"{path}.*")}
    if isinstance(kind, DecimalType):
        return {"type": "number"}
    found = _PLAIN.get(kind.simpleString())
    if found is None:
        raise ValueError(f"column {path}: JSON Schema has no type for {kind.simpleString()}")
    return found
