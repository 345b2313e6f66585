"""JSON Schema: what is one, where references lead, and which changes readers bear."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.api.registry.json_schema.schema import JsonSchema
from headwater.api.registry.parsed import Dependency
from headwater.pipelines.schemas.errors import InvalidSchemaError


def parse(schema: Any, **used: Any) -> JsonSchema:
    dependencies = [Dependency(name, parse(other)) for name, other in used.items()]
    return JsonSchema.parse(schema if isinstance(schema, str) else json.dumps(schema), dependencies)


def kinds(original: Any, update: Any) -> set[str]:
    return {problem.kind for problem in parse(update).problems_reading(parse(original))}


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def closed(**schemas: Any) -> dict[str, Any]:
    return {**properties(**schemas), "additionalProperties": False}


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
WHOLE = {"type": "integer"}
TREE = {"$ref": "#/definitions/n", "definitions": {"n": properties(next={"$ref": "#/definitions/n"}, value=WHOLE)}}
WIDER_TREE = json.loads(json.dumps(TREE).replace("integer", "number"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "not JSON"),
        ('{"maximum": NaN}', "NaN"),
        ("5", "an object or a boolean"),
        ({"type": "text"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"properties": {"a": 5}}, "#/properties/a"),
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength"),
        ({"items": {"required": "a"}}, "#/items/required"),
        ({"anyOf": []}, "#/anyOf"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"$ref": "#/definitions/none"}, "cannot be resolved"),
        ({"$ref": "other.json"}, "no reference has this name"),
        ({"$ref": "#nowhere"}, "no such anchor"),
        ({"$ref": "#"}, "references only"),
        ({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, "references only"),
        ('{"items":' * 200 + "{}" + "}" * 200, "deeper"),
        ("[" * 100_000, "deeply"),
    ],
)
def test_what_is_no_json_schema_is_refused_with_the_place(schema: Any, says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says):
        parse(schema)


def test_references_lead_into_the_document_to_anchors_ids_and_other_documents() -> None:
    schema = properties(
        a={"$ref": "#/definitions/a~1b"},
        b={"$ref": "#here"},
        c={"$ref": "http://example.org/inner.json"},
        d={"$ref": "other"},
        e={"$ref": "other#/definitions/x"},
        f={"$ref": "#/components/y"},
        g={"$ref": "http://json-schema.org/draft-07/schema#"},
    )
    schema["definitions"] = {
        "a/b": TEXT,
        "h": {"$anchor": "here", **TEXT},
        "i": {"$id": "http://example.org/inner.json", **TEXT},
    }
    schema["components"] = {"y": {"type": "string"}}
    graph = parse(schema, other={"definitions": {"x": TEXT}, "type": "string"}).graph
    nodes = graph.inners(graph.root, "properties")
    assert {name: node.kind.value for name, node in nodes.items()} == {
        **dict.fromkeys("abcdef", "string"),
        "g": "anything",
    }


def test_the_text_keeps_its_order_and_loses_its_layout() -> None:
    schema = parse('{ "type" : "object", "properties": {"b": true, "a": {}} }')
    assert schema.canonical == '{"type":"object","properties":{"b":true,"a":{}}}'
    assert schema.normalized() == '{"properties":{"a":{},"b":true},"type":"object"}'


@pytest.mark.parametrize(
    ("original", "update"),
    [
        (WHOLE, NUMBER),
        (TEXT, {}),
        (TEXT, True),
        (False, TEXT),
        (TEXT, {"type": ["string", "null"]}),
        (TEXT, {"oneOf": [{"type": "null"}, TEXT]}),
        ({"maximum": 5}, {"maximum": 6}),
        ({"type": "string", "minLength": 2}, TEXT),
        ({"multipleOf": 4}, {"multipleOf": 2}),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}),
        ({"const": "a"}, {"enum": ["a", "b"]}),
        (closed(a=TEXT), closed(a=TEXT, b=TEXT)),
        (properties(a=TEXT, b=TEXT), properties(a=TEXT)),
        (closed(a=TEXT), properties(a=TEXT)),
        ({**closed(a=TEXT), "required": ["a"]}, closed(a=TEXT)),
        (closed(a=TEXT), {**closed(a={**TEXT, "default": ""}), "required": ["a"]}),
        ({**properties(), "additionalProperties": TEXT}, {**properties(a=TEXT), "additionalProperties": TEXT}),
        ({"not": TEXT}, {"not": {**TEXT, "maxLength": 3}}),
        ({"allOf": [WHOLE, {"minimum": 3}]}, {"allOf": [NUMBER, {"minimum": 2}]}),
        ({"items": [TEXT], "additionalItems": False}, {"items": [TEXT, TEXT], "additionalItems": False}),
        ({"patternProperties": {"^a": WHOLE}}, {"patternProperties": {"^a": NUMBER}}),
        ({"dependencies": {"a": ["b", "c"]}}, {"dependencies": {"a": ["b"]}}),
        (TREE, WIDER_TREE),
        (TREE, TREE),
    ],
)
def test_a_change_that_readers_bear(original: Any, update: Any) -> None:
    assert kinds(original, update) == set()


@pytest.mark.parametrize(
    ("original", "update", "kind"),
    [
        (NUMBER, WHOLE, "TYPE_NARROWED"),
        (TEXT, NUMBER, "TYPE_CHANGED"),
        ({}, TEXT, "TYPE_CHANGED"),
        ({"maximum": 5}, {"maximum": 4}, "MAXIMUM_DECREASED"),
        ({"type": "string"}, {"type": "string", "pattern": "a"}, "PATTERN_ADDED"),
        ({"multipleOf": 2}, {"multipleOf": 4}, "MULTIPLE_OF_EXPANDED"),
        ({"maximum": 5}, {"maximum": 5, "exclusiveMaximum": True}, "EXCLUSIVE_MAXIMUM_ADDED"),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED"),
        ({"const": "a"}, {"const": "b"}, "ENUM_ARRAY_CHANGED"),
        (properties(a=TEXT), properties(a=TEXT, b=TEXT), "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
        (closed(a=TEXT, b=TEXT), closed(a=TEXT), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
        (properties(a=TEXT), closed(a=TEXT), "ADDITIONAL_PROPERTIES_REMOVED"),
        (closed(a=TEXT), {**closed(a=TEXT), "required": ["a"]}, "REQUIRED_ATTRIBUTE_ADDED"),
        (closed(), {**closed(a=TEXT), "required": ["a"]}, "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"),
        ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT]}, "SUM_TYPE_NARROWED"),
        ({"allOf": [WHOLE]}, {"allOf": [WHOLE, {"minimum": 1}]}, "PRODUCT_TYPE_EXTENDED"),
        ({"anyOf": [TEXT, WHOLE]}, {"allOf": [TEXT, WHOLE]}, "COMBINED_TYPE_CHANGED"),
        ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT, {"type": "null"}]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED"),
        ({"not": {**TEXT, "maxLength": 3}}, {"not": TEXT}, "NOT_TYPE_EXTENDED"),
        ({"items": [TEXT, TEXT], "additionalItems": False}, {"items": [TEXT], "additionalItems": False},
         "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
        ({"prefixItems": [TEXT]}, {"prefixItems": [TEXT, TEXT]}, "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"),
        ({"type": "array"}, {"type": "array", "items": TEXT}, "SCHEMA_ADDED"),
        ({"type": "array"}, {"type": "array", "contains": TEXT}, "CONTAINS_ADDED"),
        ({"type": "object"}, {"type": "object", "propertyNames": {"maxLength": 3}}, "PROPERTY_NAMES_ADDED"),
        ({"type": "object"}, {"type": "object", "patternProperties": {"^a": TEXT}},
         "PATTERN_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
        ({"if": TEXT, "then": {"maxLength": 3}}, {"if": TEXT, "then": {"maxLength": 2}}, "CONDITION_CHANGED"),
        ({"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["b", "c"]}}, "DEPENDENCY_ARRAY_EXTENDED"),
        ({"dependentSchemas": {}}, {"dependentSchemas": {"a": {"required": ["b"]}}}, "DEPENDENCY_SCHEMA_ADDED"),
        (WIDER_TREE, TREE, "TYPE_NARROWED"),
    ],
)  # fmt: skip
def test_a_change_that_readers_do_not_bear(original: Any, update: Any, kind: str) -> None:
    assert kind in kinds(original, update)


def test_a_difference_behind_a_cycle_and_an_alternative_is_found() -> None:
    def tree(leaf: Any) -> Any:
        node = properties(inner={"oneOf": [{"type": "null"}, {"$ref": "#/definitions/n"}]}, leaf=leaf)
        return {"definitions": {"n": node}, **properties(a={"$ref": "#/definitions/n"}, b={"$ref": "#/definitions/n"})}

    assert kinds(tree(TEXT), tree(TEXT)) == set()
    assert kinds(tree(TEXT), tree(WHOLE))


def test_a_pattern_that_could_take_for_ever_is_not_tried() -> None:
    before = {**closed(**{"a" * 60: TEXT}), "patternProperties": {"^(a+)+$": TEXT}}
    assert kinds(before, {**closed(), "patternProperties": {"^(a+)+$": TEXT}}) == set()


def test_schemas_that_multiply_beyond_measure_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.api.registry.json_schema.comparison.PAIRS_MAX", 1_000)

    def alternatives(count: int) -> Any:
        return {"oneOf": [{"type": "string", "maxLength": index} for index in range(count)]}

    with pytest.raises(InvalidSchemaError, match="comparisons"):
        kinds(alternatives(40), alternatives(39))
