"""Avro types as Spark columns, and Avro values as what Arrow takes for them. Pure."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

NESTING_MAX: Final = 20  # Spark's own plans become slow long before

_PLAIN: Final = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BINARY",
    "string": "STRING", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL: Final = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ", "uuid": "STRING",
}  # fmt: skip
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}

Convert = Callable[[Any], Any]


def ddl(schema: Any) -> str:
    """Columns of a record's schema, as SQL has them. Raises ValueError with the path of what cannot be a column.

    >>> ddl(
    ...     {
    ...         "type": "record",
    ...         "name": "r",
    ...         "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": ["null", "string"]}],
    ...     }
    ... )
    '`id` BIGINT, `n` STRING'
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the schema of a file's rows is a record")
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in _fields(schema, "$", {}, 0))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _fields(record: Mapping[str, Any], path: str, named: dict[str, Any], depth: int) -> list[tuple[str, str]]:
    known = {**named, _full_name(record): None}  # None as long as the record is not whole: it cannot hold itself
    found = []
    folded: set[str] = set()
    for field in record["fields"]:
        name = str(field["name"])
        if name.lower() in folded:
            raise ValueError(f"{path}.{name}: another field differs by case only, which SQL does not see")
        folded.add(name.lower())
        found.append((name, _type(field["type"], f"{path}.{name}", known, depth + 1)))
    named.update({name: kind for name, kind in known.items() if kind is not None})
    named[_full_name(record)] = record
    return found


def _full_name(schema: Mapping[str, Any]) -> str:
    name, space = str(schema.get("name", "")), schema.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def _type(schema: Any, path: str, named: dict[str, Any], depth: int) -> str:
    if depth > NESTING_MAX:
        raise ValueError(f"{path}: nested deeper than {NESTING_MAX} levels")
    if isinstance(schema, list):
        return _type(branch(schema, path), path, named, depth)
    if isinstance(schema, str) and schema not in _PLAIN:
        if schema not in named:
            raise ValueError(f"{path}: the type {schema} is not known")
        if named[schema] is None:
            raise ValueError(f"{path}: the record {schema} holds itself, which no column can")
        return _type(named[schema], path, named, depth)
    full = schema if isinstance(schema, dict) else {"type": schema}
    kind, logical = full["type"], full.get("logicalType")
    if isinstance(kind, dict | list):
        return _type(kind, path, named, depth)
    if logical == "decimal":
        return f"DECIMAL({full['precision']}, {full.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "array":
        return f"ARRAY<{_type(full['items'], f'{path}[]', named, depth + 1)}>"
    if kind == "map":
        return f"MAP<STRING, {_type(full['values'], f'{path}.*', named, depth + 1)}>"
    if kind == "record":
        parts = ", ".join(f"{_quoted(name)}: {inner}" for name, inner in _fields(full, path, named, depth))
        return f"STRUCT<{parts}>"
    if kind in ("enum", "fixed"):
        named[_full_name(full)] = full
    if kind not in _PLAIN:
        raise ValueError(f"{path}: the type {kind} cannot be a column")
    return _PLAIN[kind]


def branch(union: list[Any], path: str = "") -> Any:
    """The one type of a union beside null; numbers of unlike width have the wider.

    >>> branch(["null", "int", "long"])
    'long'
    """
    others = [part for part in union if part != "null"]
    if len(others) == 1:
        return others[0]
    names = frozenset(part for part in others if isinstance(part, str))
    if len(names) == len(others) and names in _WIDER:
        return _WIDER[names]
    raise ValueError(f"{path}: a union of several types cannot be a column")


def arrow_value(value: Any) -> Any:
    """A value of fastavro's as Arrow takes it for the column's type.

    >>> arrow_value({"id": uuid.UUID(int=1), "at": dt.time(0, 0, 1)})
    {'id': '00000000-0000-0000-0000-000000000001', 'at': 1000000}
    """
    if isinstance(value, dict):
        return {key: arrow_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [arrow_value(inner) for inner in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value
