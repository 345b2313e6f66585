"""Column types in Spark's JSON form (`"long"`, `{"type": "array", …}`), from any declaration. Pure.

Checks of tests' rows need the types of declared columns without a JVM, and later the types from Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from sqlglot import exp

ColumnType: TypeAlias = "str | dict[str, Any]"
Columns: TypeAlias = Mapping[str, ColumnType]

_NAMES = {
    "BIGINT": "long",
    "INT": "integer",
    "SMALLINT": "short",
    "TINYINT": "byte",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "TEXT": "string",
    "VARCHAR": "string",
    "CHAR": "string",
    "BINARY": "binary",
    "VARBINARY": "binary",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "DATE": "date",
}
_OF_VALUES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "long"),
    (float, "double"),
    (str, "string"),
    (bytes, "binary"),
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
)
_SQL = {
    "long": "BIGINT",
    "integer": "INT",
    "short": "SMALLINT",
    "byte": "TINYINT",
}


def from_ddl(text: str) -> dict[str, ColumnType] | None:
    """Parse a list of columns such as `id BIGINT, tags ARRAY<STRING>`; None if sqlglot cannot parse a type.

    >>> from_ddl("id BIGINT, at TIMESTAMP, tags ARRAY<STRING>")["tags"]
    {'type': 'array', 'elementType': 'string', 'containsNull': True}
    >>> from_ddl("id SOMETHING") is None
    True
    """
    import sqlglot
    from sqlglot import exp

    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({text})", read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    listed = table.this.expressions if isinstance(table, exp.Create) else []
    found = {}
    for column in listed:
        kind = _kind(column.args.get("kind")) if isinstance(column, exp.ColumnDef) else None
        if kind is None:
            return None
        found[column.name] = kind
    return found or None


def _kind(kind: exp.DataType | None) -> ColumnType | None:
    if kind is None:
        return None
    name, parts = kind.this.name, kind.expressions
    if name == "ARRAY" and len(parts) == 1:
        element = _kind(parts[0])
        return None if element is None else {"type": "array", "elementType": element, "containsNull": True}
    if name == "MAP" and len(parts) == 2:
        key, value = _kind(parts[0]), _kind(parts[1])
        if key is None or value is None:
            return None
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if name == "STRUCT":
        fields = []
        for part in parts:
            inner = _kind(part.args.get("kind"))
            if inner is None:
                return None
            fields.append({"name": part.name, "type": inner, "nullable": True, "metadata": {}})
        return {"type": "struct", "fields": fields}
    if name == "DECIMAL":
        numbers = [int(part.name) for part in parts] + [10, 0][len(parts) :]
        return f"decimal({numbers[0]},{numbers[1]})"
    return _NAMES.get(name)


def of_schema(schema: Any) -> dict[str, ColumnType]:
    """Return the columns of a StructType."""
    return {field["name"]: field["type"] for field in schema.jsonValue()["fields"]}


def struct(columns: Columns) -> dict[str, Any]:
    """Return a struct type with these columns."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return {"type": "struct", "fields": fields}


def fields_of(kind: dict[str, Any]) -> dict[str, ColumnType]:
    """Return the fields of a struct."""
    return {field["name"]: field["type"] for field in kind["fields"]}


def shown(kind: ColumnType) -> str:
    """Format a type in SQL's notation.

    >>> shown({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True})
    'MAP<STRING, BIGINT>'
    """
    if isinstance(kind, str):
        return _SQL.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{shown(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{shown(kind['keyType'])}, {shown(kind['valueType'])}>"
    if kind["type"] == "struct":
        return "STRUCT<" + ", ".join(f"{name}: {shown(inner)}" for name, inner in fields_of(kind).items()) + ">"
    return str(kind["type"]).upper()


def inferred(rows: Iterable[Mapping[str, Any]]) -> dict[str, ColumnType]:
    """Infer columns from rows without a declaration.

    >>> inferred([{"a": 1}, {"a": 1.5, "b": None}, {"c": [{"d": "x"}]}])["a"]
    'double'
    """
    found: dict[str, ColumnType | None] = {}
    for row in rows:
        for name, value in row.items():
            found[name] = _wider(found.get(name), _kind_of(value))
    return {name: "string" if kind is None else kind for name, kind in found.items()}


def _kind_of(value: Any) -> ColumnType | None:
    for python, kind in _OF_VALUES:
        if isinstance(value, python):
            return kind
    if isinstance(value, dict):
        return struct(inferred([value]))
    if isinstance(value, list | tuple):
        element: ColumnType | None = None
        for item in value:
            element = _wider(element, _kind_of(item))
        return {"type": "array", "elementType": "string" if element is None else element, "containsNull": True}
    return None


def _wider(one: ColumnType | None, other: ColumnType | None) -> ColumnType | None:
    if one is None or other is None or one == other:
        return other if one is None else one
    if {str(one), str(other)} == {"long", "double"}:
        return "double"
    if isinstance(one, dict) and isinstance(other, dict) and one["type"] == other["type"] == "struct":
        fields, more = fields_of(one), fields_of(other)
        return struct({n: _wider(fields.get(n), more.get(n)) or "string" for n in {**fields, **more}})
    return "string"
