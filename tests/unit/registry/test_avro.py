"""Avro: what is a schema, how it is written, and what a reader understands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.api.registry.avro.schema import AvroSchema
from headwater.api.registry.parsed import Dependency
from headwater.pipelines.schemas.errors import InvalidSchemaError


def parse(schema: Any) -> AvroSchema:
    return AvroSchema.parse(schema if isinstance(schema, str) else json.dumps(schema), (), new=True)


def record(*fields: Any, name: str = "R", **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **others}


def field(name: str, of: Any, **others: Any) -> dict[str, Any]:
    return {"name": name, "type": of, **others}


def kinds(reader: Any, writer: Any) -> list[tuple[str, str]]:
    return [(problem.kind, problem.path) for problem in parse(reader).problems_reading(parse(writer))]


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
LIST = record(field("next", ["null", "R"], default=None))


@pytest.mark.parametrize(
    ("schema", "canonical"),
    [
        ("int", '"int"'),
        ('{"type": "int"}', '"int"'),
        ('{"logicalType": "date", "type": "int"}', '{"type":"int","logicalType":"date"}'),
        (
            """{"fields": [{"type": ["null", {"symbols": ["A"], "type": "enum", "name": "x.y.E2"}], "name": "f",
            "doc": "d", "default": null}], "name": "x.R", "type": "record"}""",
            """{"type":"record","name":"R","namespace":"x","fields":[{"name":"f","type":["null",{"type":"enum",
            "name":"E2","namespace":"x.y","symbols":["A"]}],"doc":"d","default":null}]}""",
        ),
        (
            """{"type":"record","name":"R","namespace":"x","aliases":["Old","y.Older"],"z":1,"doc":"d","fields":
            [{"name":"a","type":"R","order":"ignore","aliases":["b"],"p":[1]}]}""",
            """{"type":"record","name":"R","namespace":"x","doc":"d","fields":[{"name":"a","type":"R","order":"ignore",
            "aliases":["b"],"p":[1]}],"z":1,"aliases":["Old","y.Older"]}""",
        ),
        ('{"type":"fixed","size":2,"name":"x.F"}', '{"type":"fixed","name":"F","namespace":"x","size":2}'),
        ('{"type":"array","items":{"type":"map","values":"long"}}',) * 2,
        ('["null","string"]', '["null","string"]'),
    ],
)  # fmt: skip
def test_a_schema_is_written_as_avros_java_library_does(schema: str, canonical: str) -> None:
    canonical = "".join(line.strip() for line in canonical.splitlines())
    assert parse(schema).canonical == canonical
    assert parse(canonical).canonical == canonical


def test_a_named_type_is_written_once_and_then_referred_to() -> None:
    schema = record(field("a", ENUM), field("b", "E"), namespace="x")
    assert parse(schema).canonical.count("symbols") == 1


def test_a_type_named_like_a_primitive_keeps_its_full_name() -> None:
    schema = record(
        field("a", {"type": "fixed", "name": "string", "namespace": "x", "size": 1}),
        field("b", "x.string"),
        namespace="x",
    )
    assert '{"name":"b","type":"x.string"}' in parse(schema).canonical


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "not JSON"),
        ('{"type":"int","type":"long"}', "twice"),
        ("5", "a type is"),
        ("true", "a type is"),
        ({}, 'no "type"'),
        ("Unknown", "undefined name"),
        (record(field("x", "Unknown")), "undefined name: 'Unknown'"),
        (record(field("x", "int"), field("x", "int")), "already"),
        (record(field("1x", "int")), "no name"),
        (record(field("x", "int", default="1")), "invalid default"),
        (record(field("x", "int", default=2**31)), "invalid default"),
        (record(field("x", ["null", "int"], default="a")), "invalid default"),
        (record(field("x", ENUM, default="C")), "invalid default"),
        (record(field("x", FIXED, default="abc")), "invalid default"),
        (record(field("x", "bytes", default="\u0100")), "invalid default"),
        (record(field("x", record(field("y", "int"), name="S"), default={})), "invalid default"),
        (record(field("x", "int", order="up")), "order"),
        (record(name="1"), "illegal name"),
        (record(name="a..b"), "illegal name"),
        (record(field("x", ENUM), field("y", ENUM)), "redefine"),
        ({"type": "record", "name": "R"}, 'no "fields"'),
        (["int", "int"], "twice"),
        ([ENUM, "E"], "twice"),
        (["int", ["null"]], "union"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "twice"),
        ({"type": "enum", "name": "E", "symbols": ["a-b"]}, "illegal symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "no symbol"),
        ({"type": "fixed", "name": "F", "size": -1}, "size"),
        ({"type": "fixed", "name": "F", "size": True}, "size"),
        ({"type": "array"}, 'no "items"'),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, "deep"),
        ("[" * 100_000, "deep"),
    ],
)
def test_what_breaks_a_rule_of_the_specification_is_refused_with_the_reason(schema: Any, says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says):
        parse(schema)


def test_a_default_that_does_not_fit_is_borne_in_a_schema_that_is_there_already() -> None:
    AvroSchema.parse(json.dumps(record(field("x", "int", default="1"))), (), new=False)


def test_types_of_references_are_known_and_not_written_out() -> None:
    used = Dependency("E", parse(ENUM))
    text = json.dumps(record(field("e", "E")))
    schema = AvroSchema.parse(text, [used], new=True)
    assert "symbols" not in schema.canonical
    assert "symbols" in schema.formatted("resolved")
    assert schema.problems_reading(parse(record(field("e", {**ENUM, "symbols": ["A", "B", "C"]}))))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        *[(reader, writer) for reader, *writers in (
            ("int", "int"), ("long", "int", "long"), ("float", "int", "long", "float"),
            ("double", "int", "long", "float", "double"), ("string", "bytes"), ("bytes", "string"),
        ) for writer in writers],
        (["null", "long"], "int"),
        ("long", ["int", "long"]),
        (["null", "string", "double"], ["int", "bytes"]),
        (record(field("x", "int")), record(field("x", "int"), field("y", "int"))),
        (record(field("x", "int"), field("y", "int", default=1)), record(field("x", "int"))),
        (record(field("x", "int", aliases=["y"])), record(field("y", "int"))),
        (record(field("x", "int"), name="N", aliases=["x.R"]), record(field("x", "int"), name="x.R")),
        (record(field("x", "int"), name="a.R"), record(field("x", "int"), name="b.R")),
        ({**ENUM, "symbols": ["A", "B", "C"]}, ENUM),
        ({**ENUM, "symbols": ["A"], "default": "A"}, ENUM),
        (FIXED, FIXED),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}),
        (LIST, LIST),
    ],
)  # fmt: skip
def test_a_reader_understands(reader: Any, writer: Any) -> None:
    assert kinds(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "problem"),
    [
        ("int", "long", ("TYPE_MISMATCH", "/")),
        ("boolean", "int", ("TYPE_MISMATCH", "/")),
        ("int", ["int", "string"], ("TYPE_MISMATCH", "/")),
        (["null", "int"], "string", ("MISSING_UNION_BRANCH", "/")),
        (["null", "int"], ["null", "string"], ("MISSING_UNION_BRANCH", "/1/")),
        (record(field("x", "int")), record(field("y", "int")), ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")),
        (record(field("x", "int")), record(field("x", "string")), ("TYPE_MISMATCH", "/fields/0/type/")),
        (record(name="A"), record(name="B"), ("NAME_MISMATCH", "/name")),
        (ENUM, {**ENUM, "symbols": ["A", "C"]}, ("MISSING_ENUM_SYMBOLS", "/symbols")),
        (FIXED, {**FIXED, "size": 5}, ("FIXED_SIZE_MISMATCH", "/size")),
        (FIXED, {**FIXED, "name": "G"}, ("NAME_MISMATCH", "/name")),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            {"type": "array", "items": {"type": "map", "values": "long"}},
            ("TYPE_MISMATCH", "/items/values/"),
        ),
    ],
)
def test_a_reader_does_not_understand_and_the_place_is_told(reader: Any, writer: Any, problem: Any) -> None:
    assert kinds(reader, writer) == [problem]


def test_a_difference_inside_a_type_that_contains_itself_is_found() -> None:
    longer = record(field("next", ["null", "R"], default=None), field("x", "int"))
    assert kinds(longer, LIST) == [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1")]
    wrapped = record(field("list", ["null", longer], default=None), name="W")
    assert kinds(wrapped, record(field("list", ["null", LIST], default=None), name="W")) == [
        ("MISSING_UNION_BRANCH", "/fields/0/type/1/")
    ]


def test_types_that_share_their_parts_many_times_over_are_compared_once() -> None:
    def nested(leaf: str) -> dict[str, Any]:
        inner: Any = leaf
        for level in range(25):
            inner = record(field("a", inner), field("b", f"R{level - 1}" if level else leaf), name=f"R{level}")
        return inner  # type: ignore[no-any-return]

    assert kinds(nested("long"), nested("int")) == []
    assert kinds(nested("int"), nested("long"))


def test_large_unions_are_compared_by_name() -> None:
    def union(first: int) -> list[Any]:
        return [{"type": "fixed", "name": f"F{index}", "size": index} for index in range(first, 500)]

    assert kinds(union(0), union(1)) == []
    assert kinds(union(1), union(0)) == [("MISSING_UNION_BRANCH", "/0/")]


def test_schemas_too_large_to_be_compared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.pipelines.schemas.avro.resolution.PAIRS_MAX", 5)
    large = record(*(field(f"f{index}", {"type": "array", "items": "int"}) for index in range(5)))
    with pytest.raises(InvalidSchemaError, match="comparisons"):
        kinds(large, large)
