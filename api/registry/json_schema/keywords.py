"""The keywords of JSON Schema: the places of subschemas, and the rules for values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from headwater.pipelines.schemas.errors import InvalidSchemaError

TYPES: Final = ("null", "boolean", "object", "array", "number", "string", "integer")

OF_OBJECTS: Final = frozenset(
    {
        "additionalProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
        "unevaluatedProperties",
    }
)
OF_ARRAYS: Final = frozenset(
    {
        "additionalItems",
        "contains",
        "items",
        "maxContains",
        "maxItems",
        "minContains",
        "minItems",
        "prefixItems",
        "unevaluatedItems",
        "uniqueItems",
    }
)
OF_STRINGS: Final = frozenset({"maxLength", "minLength", "pattern"})
OF_NUMBERS: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})

_SCHEMAS: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS: Final = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


def subschemas(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a schema, each with its path."""
    for name in _SCHEMAS:
        if isinstance(raw.get(name), dict | bool):
            yield name, raw[name]
    for name in _LISTS:
        if isinstance(raw.get(name), list):
            for index, inner in enumerate(raw[name]):
                yield f"{name}/{index}", inner
    for name in _MAPS:
        if isinstance(raw.get(name), dict):
            for key, inner in raw[name].items():
                if not (name == "dependencies" and isinstance(inner, list)):
                    yield f"{name}/{key}", inner


def check(raw: Any, path: str) -> None:
    """Raise InvalidSchemaError unless `raw` is a schema; subschemas are not checked."""
    if isinstance(raw, bool):
        return
    if not isinstance(raw, dict):
        raise InvalidSchemaError(f"{path}: a schema is an object or a boolean, not {_short(raw)}")
    for name, value in raw.items():
        rule = _RULES.get(name)
        if rule is not None and not rule[0](value):
            raise InvalidSchemaError(f"{path}/{name}: must be {rule[1]}, not {_short(value)}")


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(n, str) and n in TYPES for n in names) and len(set(names)) == len(names)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


_COUNT: Final = (_is_count, "a whole number from 0 up")
_NUMBER: Final = (is_number, "a number")
_SCHEMA: Final = (_is_schema, "a schema")
_MAP: Final = (lambda value: isinstance(value, dict), "an object")
_LIST: Final = (lambda value: isinstance(value, list) and bool(value), "a list that is not empty")
_TEXT: Final = (lambda value: isinstance(value, str), "a text")
_TEXTS: Final = (_is_texts, "a list of texts")
_BOOLEAN: Final = (lambda value: isinstance(value, bool), "true or false")
# Draft 4 has a boolean beside the limit.
_LIMIT: Final = (lambda value: is_number(value) or isinstance(value, bool), "a number")

_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "$anchor": _TEXT,
    "$defs": _MAP,
    "$dynamicAnchor": _TEXT,
    "$dynamicRef": _TEXT,
    "$id": _TEXT,
    "$ref": _TEXT,
    "$schema": _TEXT,
    "additionalItems": _SCHEMA,
    "additionalProperties": _SCHEMA,
    "allOf": _LIST,
    "anyOf": _LIST,
    "contains": _SCHEMA,
    "definitions": _MAP,
    "dependencies": _MAP,
    "dependentRequired": _MAP,
    "dependentSchemas": _MAP,
    "else": _SCHEMA,
    "enum": (lambda value: isinstance(value, list), "a list"),
    "exclusiveMaximum": _LIMIT,
    "exclusiveMinimum": _LIMIT,
    "if": _SCHEMA,
    "items": (lambda value: isinstance(value, dict | bool | list), "a schema or a list of schemas"),
    "maxContains": _COUNT,
    "maxItems": _COUNT,
    "maxLength": _COUNT,
    "maxProperties": _COUNT,
    "maximum": _NUMBER,
    "minContains": _COUNT,
    "minItems": _COUNT,
    "minLength": _COUNT,
    "minProperties": _COUNT,
    "minimum": _NUMBER,
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),
    "not": _SCHEMA,
    "oneOf": _LIST,
    "pattern": _TEXT,
    "patternProperties": _MAP,
    "prefixItems": _LIST,
    "properties": _MAP,
    "propertyNames": _SCHEMA,
    "required": (lambda value: _is_texts(value) or isinstance(value, bool), "a list of texts"),
    "then": _SCHEMA,
    "type": (_is_type, f"one or several of {', '.join(TYPES)}"),
    "unevaluatedItems": _SCHEMA,
    "unevaluatedProperties": _SCHEMA,
    "uniqueItems": _BOOLEAN,
}
