"""Converts a JSON Schema file to Spark DDL. Pure.

Supported are the parts of JSON Schema that define columns: objects, arrays, strings (also date-time and date),
integers, numbers, booleans, nullable unions (also by `anyOf` and `oneOf`), maps, and references within the schema. A
part that is not a column type is refused with its path.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headwater.pipelines.columns import RESERVED, quoted

SCHEMA_BYTES_MAX = 1024 * 1024
REFERENCES_MAX = 20  # chained, before a type
NESTING_MAX = 20  # Spark's own plans become slow long before

_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
_INTEGERS = {"int32": "INT", "int64": "BIGINT"}
_NUMBERS = {"float": "FLOAT", "double": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """Columns of a value as DDL, and the names of required columns."""

    ddl: str
    required: tuple[str, ...] = ()


def parse(text: str) -> ValueSchema:
    """Return the columns of a JSON Schema. Raises ValueError with the path of a part that cannot be mapped.

    >>> parse('{"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": []}')
    ValueSchema(ddl='`a` BIGINT', required=())
    """
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValueError(f"the schema is larger than {SCHEMA_BYTES_MAX} bytes")
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    if isinstance(schema, dict):
        schema = _plain(schema, schema, "$")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError('the schema of a value has "type": "object"')
    properties = _properties(schema, schema, "$")
    for name in properties:
        if name in RESERVED:
            raise ValueError(
                f"$.{name}: the name is reserved for the record's origin; rename the field in the stage before"
            )
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError("$.required: a list of names")
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise ValueError(f"$.required: {unknown[0]} is not among the properties")
    strict = tuple(name for name in required if not _nullable(properties[name]))
    parts = [f"{quoted(name)} {_type(part, schema, f'$.{name}', 1)}" for name, part in properties.items()]
    return ValueSchema(", ".join(parts), strict)


def _plain(schema: dict[str, Any], root: dict[str, Any], path: str) -> dict[str, Any]:
    """Resolve references and alternatives to null; the result contains a flag for null."""
    nullable = False
    for _ in range(REFERENCES_MAX):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = _referred(reference, root, path)
            continue
        choices = schema.get("anyOf", schema.get("oneOf"))
        if not isinstance(choices, list):
            break
        others = [choice for choice in choices if choice != {"type": "null"}]
        if len(others) != 1 or not isinstance(others[0], dict):
            raise ValueError(f"{path}: needs one type beside null, and has {len(others)} alternatives")
        nullable = nullable or len(others) < len(choices)
        schema = others[0]
    else:
        raise ValueError(f"{path}: its references lead in a circle")
    kinds = schema.get("type")
    if nullable and isinstance(kinds, str):
        return {**schema, "type": [kinds, "null"]}
    return schema


def _referred(reference: str, root: dict[str, Any], path: str) -> dict[str, Any]:
    found: Any = root if reference.startswith("#") else None
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: {reference} is nothing in the schema")
    return found


def _properties(schema: dict[str, Any], root: dict[str, Any], path: str) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        raise ValueError(f"{path}: an object needs properties")
    folded: dict[str, str] = {}
    for name in properties:
        if name.lower() in folded:
            raise ValueError(f"{path}: {folded[name.lower()]} and {name} differ by case only, which SQL does not see")
        folded[name.lower()] = name
    found = {}
    for name, part in properties.items():
        found[name] = _plain(part, root, f"{path}.{name}") if isinstance(part, dict) else part
    return found


def _nullable(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return isinstance(kind, list) and "null" in kind


def _type(schema: Any, root: dict[str, Any], path: str, depth: int) -> str:
    if depth > NESTING_MAX:
        raise ValueError(f"{path}: nested deeper than {NESTING_MAX} levels")
    if not isinstance(schema, dict):
        raise ValueError(f"{path}: expected an object that describes the field")
    schema = _plain(schema, root, path)
    kinds = schema.get("type")
    named = [k for k in (kinds if isinstance(kinds, list) else [kinds]) if k != "null"]
    if len(named) != 1 or not isinstance(named[0], str):
        raise ValueError(f"{path}: needs one type (beside null), not {json.dumps(kinds)}")
    kind, form = named[0], str(schema.get("format"))
    if kind == "string":
        return _FORMATS.get(form, "STRING")
    if kind == "integer":
        return _INTEGERS.get(form, "BIGINT")
    if kind == "number":
        return _NUMBERS.get(form, "DOUBLE")
    if kind == "boolean":
        return "BOOLEAN"
    if kind == "array":
        return f"ARRAY<{_type(schema.get('items'), root, f'{path}[]', depth + 1)}>"
    if kind == "object" and "properties" not in schema and isinstance(schema.get("additionalProperties"), dict):
        return f"MAP<STRING, {_type(schema['additionalProperties'], root, f'{path}.*', depth + 1)}>"
    if kind == "object":
        inner = _properties(schema, root, path)
        parts = ", ".join(f"{quoted(n)}: {_type(p, root, f'{path}.{n}', depth + 1)}" for n, p in inner.items())
        return f"STRUCT<{parts}>"
    raise ValueError(f"{path}: unknown type {kind!r}; known: string, integer, number, boolean, array, object")
