from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.pipelines.formats.json_schema import NESTING_MAX, ValueSchema, parse


def schema(properties: object, **more: object) -> str:
    return json.dumps({"type": "object", "properties": properties} | more)


@pytest.mark.parametrize(
    ("field", "ddl"),
    [
        ({"type": "string"}, "STRING"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "email"}, "STRING"),
        ({"type": "integer"}, "BIGINT"),
        ({"type": "integer", "format": "int32"}, "INT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "number", "format": "float"}, "FLOAT"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"type": "array", "items": {"type": "string"}}, "ARRAY<STRING>"),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}}, "STRUCT<`b`: BOOLEAN>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
    ],
)
def test_types_map_to_sparks(field: Any, ddl: str) -> None:
    assert parse(schema({"a": field})).ddl == f"`a` {ddl}"


def test_names_are_quoted() -> None:
    assert parse(schema({"a`b c": {"type": "string"}})).ddl == "`a``b c` STRING"


def test_required_fields_that_may_be_null_are_not_required() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}}
    assert parse(schema(properties, required=["a", "b"])).required == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[]", '"type": "object"'),
        ('{"type": "array"}', '"type": "object"'),
        ('{"type": "object"}', "an object needs properties"),
        (schema({"a": {"type": "tuple"}}), r"\$\.a: unknown type 'tuple'"),
        (schema({"a": {"type": ["string", "integer"]}}), r"\$\.a: needs one type"),
        (schema({"a": {"$ref": "#/x"}}), r"\$\.a: #/x is nothing in the schema"),
        (schema({"a": 1}), r"\$\.a: expected an object"),
        (schema({"a": {"type": "array", "items": {"type": "x"}}}), r"\$\.a\[\]: unknown type"),
        (schema({"a": {"type": "string"}, "A": {"type": "string"}}), "differ by case only"),
        (schema({"_offset": {"type": "integer"}}), r"\$\._offset: the name is reserved"),
        (schema({"a": {"type": "string"}}, required=["b"]), "b is not among the properties"),
        (schema({"a": {"type": "string"}}, required="a"), r"\$\.required: a list of names"),
    ],
)
def test_what_cannot_be_columns_is_refused_with_its_path(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_deep_schemas_are_refused() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(NESTING_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="nested deeper"):
        parse(schema({"a": deep}))


def test_references_within_the_schema_and_alternatives_to_null_are_followed() -> None:
    text = json.dumps({
        "type": "object", "required": ["a", "b"],
        "properties": {
            "a": {"$ref": "#/$defs/name"}, "b": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/name"}]},
            "c": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        },
        "$defs": {"name": {"type": "string"}},
    })  # fmt: skip
    assert parse(text) == ValueSchema("`a` STRING, `b` STRING, `c` ARRAY<BIGINT>", ("a",))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"$ref": "#/$defs/no"}, r"\$\.a: #/\$defs/no is nothing in the schema"),
        ({"$ref": "other.json"}, "other.json is nothing in the schema"),
        ({"$ref": "#/properties/a"}, "lead in a circle"),
        ({"$ref": "#"}, "nested deeper"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "has 2 alternatives"),
    ],
)
def test_references_and_alternatives_that_are_no_column_are_refused(part: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(json.dumps({"type": "object", "properties": {"a": part}}))
