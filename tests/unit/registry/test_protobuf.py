"""Protobuf: what is a file, how it is written, and which changes readers bear."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from headwater.api.registry.model import Schema, SchemaType
from headwater.api.registry.parsed import Dependency
from headwater.api.registry.parsing import SchemaParser
from headwater.api.registry.protobuf.schema import ProtobufSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError


def parse(text: str, **used: str) -> ProtobufSchema:
    dependencies = [Dependency(name.replace("__", "/") + ".proto", parse(other)) for name, other in used.items()]
    return ProtobufSchema.parse(text, dependencies, new=True)


def message(body: str, head: str = 'syntax = "proto3";') -> str:
    return f"{head} message M {{ {body} }}"


def kinds(original: str, update: str) -> set[str]:
    return {problem.kind for problem in parse(update).problems_reading(parse(original))}


EVERYTHING = """// Of the flight.
syntax = "proto2"; // old
package air . traffic;
import public "google/protobuf/timestamp.proto";
import "google/protobuf/descriptor.proto";
option java_package = "org." "air";
option optimize_for = SPEED;
extend google.protobuf.FieldOptions { optional Unit unit = 50001; repeated string note = 50002; }
enum Unit { option allow_alias = true; reserved 7, 9 to max; reserved "OLD";
  METRE = 0; M = 0; FOOT = -1 [deprecated = true]; }
/* A flight.
 * Of today. */
message Flight {
  option (marked).kind = "x";
  reserved 2, 15, 9 to 11;
  reserved "foo", 'bar';
  extensions 100 to 199, 1000 to max;
  required int32 number = 1 [(unit) = FOOT, (note) = "a", (note) = 'b\\x41', default = 0x1F]; // its number
  optional double fast = 3 [default = -inf, json_name = "quick"];
  optional bytes raw = 4 [default = "\\001\\377", ctype = CORD];
  repeated float all = 5 [packed = true];
  map<string, .air.traffic.Flight.Leg> legs = 6;
  oneof who { string pilot = 7; group Crew = 8 { optional int32 size = 1; } }
  optional group Meal = 12 { repeated string dish = 1; }
  message Leg { optional Unit unit = 1; optional google.protobuf.Timestamp at = 2; enum Kind { A = 1; } }
  extend Flight { optional Leg extra = 150; }
  ;
}
service Tower { option deprecated = true; rpc Land (stream Flight) returns (Flight) {
    option idempotency_level = IDEMPOTENT; }
  // To the next one.
  rpc Go (Flight) returns (stream Flight.Leg); }
""".replace("option (marked).kind", "option (air.traffic.marked).kind")


def test_everything_that_the_grammar_has_comes_back() -> None:
    schema = parse(EVERYTHING)
    again = parse(schema.canonical)
    assert again.canonical == schema.canonical
    assert again.linked == schema.linked
    for kept in (
        "// Of the flight.",
        "// A flight.\n// Of today.\nmessage Flight {",
        '(unit) = FOOT, (note) = "a", (note) = "bA"',
        "required int32 number = 1 [default = 31,",
        "// its number",
        "map<string, .air.traffic.Flight.Leg> legs = 6;",
        "extensions 1000 to max;",
        "reserved 7, 9 to max;",
        'default = "\\001\\377"',
        "// To the next one.\n  rpc Go (Flight) returns (stream Flight.Leg);",
    ):
        assert kept in schema.canonical, kept


def test_the_serialized_form_is_a_descriptor_that_is_the_same_schema() -> None:
    schema = parse(message("optional int32 a = 1; map<string, M> b = 2;"))
    serialized = schema.formatted("serialized")
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert [field.name for field in file.message_type[0].field] == ["a", "b"]
    again = parse(serialized)
    assert again.linked == schema.linked
    assert again.normalized() == schema.normalized()


def test_normalising_forgets_comments_order_and_how_types_are_called() -> None:
    one = 'syntax = "proto3"; package p; message M { /* no */ N n = 2; string a = 1; } message N {}'
    two = 'syntax = "proto3"; package p; message M { string a = 1; .p.N n = 2; } message N {}'
    assert parse(one).canonical != parse(two).canonical
    assert parse(one).normalized() == parse(two).normalized()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("message", "line 1:8: expected a name"),
        ("message M {", "expected"),
        ('syntax = "proto4";', "proto4"),
        ('edition = "1999";', "1999"),
        ("mesage M {}", "line 1:1: expected a declaration"),
        (message("string a = ;"), "a whole number"),
        (message("string a = 1"), "';'"),
        (message("string a = 0;"), "cannot have the number 0"),
        (message("string a = 19000;"), "19000"),
        (message("string a = 536870912;"), "536870912"),
        (message("string a = 99999999999999999999;"), "out of range"),
        (message("string a = 1; string b = 1;"), "number 1"),
        (message("string a = 1; int32 a = 2;"), "already"),
        (message("reserved 1 to 3; string a = 2;"), "reserved"),
        (message('reserved "a"; string a = 2;'), "reserved"),
        (message("required string a = 1;"), "required"),
        (message("Unknown a = 1;"), "Unknown"),
        (message("string a = 1 [nonsense = 1];"), "nonsense"),
        (message("string a = 1 [deprecated = 1];"), "deprecated"),
        (message("oneof o { }"), "at least one"),
        (message('string a = 1 [(x) = "\\q"];'), "unknown escape"),
        ('syntax = "proto3"; enum E { A = 1; }', "first value"),
        ('syntax = "proto3"; enum E { }', "at least one"),
        ('syntax = "proto3"; enum E { A = 0; B = 0; }', "number 0"),
        ('import "none.proto";', "no reference has this name"),
        ('import "google/protobuf/any.proto"; import "google/protobuf/any.proto";', "twice"),
        ("message M {} message M {}", "M"),
        ("message M { string a = 1; }", "optional, required or repeated"),
        ('edition = "2023"; message M { optional string a = 1; }', "field_presence"),
        ("message M { optional group crew = 1 { } }", "capital"),
        ("message M { repeated map<string, string> a = 1; }", "a map has no label"),
        ("message M { optional string a = 1 [default = 1]; }", "the default is a text"),
        ("message M { extensions 9; extend M { required int32 a = 9; } }", "extension cannot be required"),
        ("enum E { option allow_alias = true; A = 0; }", "allow_alias"),
        ("message M { reserved a; }", "a text in quotes"),
        ("message M { repeated int32 a = 1 [default = 3]; }", "no default"),
        ("message M { reserved 1 to 9; extensions 9; }", "number 9 is in two ranges"),
        ("message M { extensions 1 to 9; optional int32 a = 9; }", "extensions"),
        ("enum E { A = 0; reserved 3, 2 to 4; }", "number 3 is in two ranges"),
        ("enum E { A = 0; reserved 2147483648; }", "out of range"),
        ("enum E { A = 0; } enum F { A = 0; }", "declared twice"),
        (message("oneof a { string a = 1; }"), "declared twice"),
        (message("oneof o { string a = 1;; }"), "a name"),
        (message("string a_b = 1; string aB = 2;"), "its name in JSON"),
        ("message A { " * 200 + "}" * 200, "deeper"),
        ("message M { $ }", "unexpected"),
        ('message M { optional string a = 1 [(x) = "open];', "unexpected"),
        ("Zm9vYmFy", "expected a declaration"),
    ],
)
def test_what_is_no_proto_file_is_refused_with_the_place_or_the_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says):
        parse(text)


def test_imports_are_references_protobufs_own_files_or_googles_types() -> None:
    text = message(
        "shared.Money a = 1; google.protobuf.Timestamp b = 2; google.type.Money c = 3; confluent.type.Decimal d = 4;",
        'syntax = "proto3"; import "lib/money.proto"; import "google/protobuf/timestamp.proto"; '
        'import "google/type/money.proto"; import "confluent/type/decimal.proto";',
    )
    schema = parse(text, lib__money='syntax = "proto3"; package shared; message Money {}')
    assert [field.type_name for field in schema.linked.message_type[0].field] == [
        ".shared.Money", ".google.protobuf.Timestamp", ".google.type.Money", ".confluent.type.Decimal",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("original", "update"),
    [
        ("string a = 1;", "string a = 1; int32 b = 2;"),
        ("string a = 1; int32 b = 2;", "string a = 1;"),
        ("string a = 1;", "string renamed = 1;"),
        ("string a = 1;", "bytes a = 1;"),
        ("int32 a = 1;", "bool a = 1;"),
        ("string a = 1;", "repeated string a = 1;"),
        ("string a = 1;", "oneof o { string a = 1; int32 b = 2; }"),
        ("oneof o { string a = 1; }", "oneof o { string a = 1; int32 b = 2; }"),
        ("N a = 1; message N { string b = 1; }", "N a = 1; message N { string b = 1; string c = 2; }"),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;"),
        ("optional string a = 1;", "string a = 1;"),
    ],
)
def test_a_change_that_readers_bear(original: str, update: str) -> None:
    assert kinds(message(original), message(update)) == set()


@pytest.mark.parametrize(
    ("original", "update", "kind"),
    [
        ("string a = 1;", "int32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("int32 a = 1;", "sint32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("int32 a = 1;", "repeated int32 a = 1;", "FIELD_NUMERIC_LABEL_CHANGED"),
        ("string a = 1;", "N a = 1; message N {}", "FIELD_KIND_CHANGED"),
        ("repeated N a = 1; message N {}", "map<string, string> a = 1; message N {}", "FIELD_KIND_CHANGED"),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("N a = 1; message N {} message O {}", "O a = 1; message N {} message O {}", "FIELD_NAMED_TYPE_CHANGED"),
        ("message N {}", "", "MESSAGE_REMOVED"),
        ("N a = 1; message N { string b = 1; }", "N a = 1; message N { int32 b = 1; }", "FIELD_SCALAR_KIND_CHANGED"),
        ("string a = 1; string b = 2;", "oneof o { string a = 1; string b = 2; }", "MULTIPLE_FIELDS_MOVED_TO_ONEOF"),
        ("oneof o { string a = 1; } string b = 2;", "oneof o { string a = 1; string b = 2; }",
         "FIELD_MOVED_TO_EXISTING_ONEOF"),
        ("oneof o { string a = 1; string b = 2; }", "oneof o { string a = 1; }", "ONEOF_FIELD_REMOVED"),
        ("reserved 2;", "string a = 2;", "RESERVED_NUMBER_USED"),
        ('reserved "a";', "string a = 2;", "RESERVED_NAME_USED"),
    ],
)  # fmt: skip
def test_a_change_that_readers_do_not_bear(original: str, update: str, kind: str) -> None:
    assert kind in kinds(message(original), message(update))


def test_required_fields_are_neither_added_nor_removed() -> None:
    def old(body: str) -> str:
        return message(body, 'syntax = "proto2";')

    assert kinds(old(""), old("required int32 a = 1;")) == {"REQUIRED_FIELD_ADDED"}
    assert kinds(old("optional int32 a = 1;"), old("required int32 a = 1;")) == {"REQUIRED_FIELD_ADDED"}
    assert kinds(old("required int32 a = 1;"), old("")) == {"REQUIRED_FIELD_REMOVED"}
    assert kinds(old("required int32 a = 1;"), old("optional int32 a = 1;")) == set()


def test_the_package_stays() -> None:
    head = 'syntax = "proto3"; package {};'
    assert kinds(message("", head.format("a")), message("", head.format("b"))) == {"PACKAGE_CHANGED"}


def test_a_change_in_an_imported_file_is_found_where_it_is_used() -> None:
    text = 'syntax = "proto3"; import "n.proto"; message M { N a = 1; }'
    before = parse(text, n='syntax = "proto3"; message N { string b = 1; }')
    after = parse(text, n='syntax = "proto3"; message N { int32 b = 1; }')
    problems = after.problems_reading(before)
    assert {problem.kind for problem in problems} == {"FIELD_SCALAR_KIND_CHANGED", "FIELD_NAMED_TYPE_CHANGED"}
    assert problems[0].path == "#/M/1/N/1"


def test_editions_are_read() -> None:
    text = 'edition = "2023"; message M { string a = 1 [features.field_presence = IMPLICIT]; reserved foo; }'
    schema = parse(text)
    assert 'edition = "2023";' in schema.canonical
    assert "features.field_presence = IMPLICIT" in schema.canonical
    assert parse(schema.canonical).linked == schema.linked


def test_a_hostile_descriptor_is_refused() -> None:
    file: Any = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    file.message_type.add(name="M").field.add(name="a", number=-1, type=9, label=1)
    with pytest.raises(InvalidSchemaError):
        parse(base64.b64encode(file.SerializeToString()).decode())


@pytest.mark.parametrize(
    "body",
    ["int32 a = 1; reserved 1;", "reserved 1 to 3, 2;", "enum E { A = 0; B = 0; }", "int32 a = 19000;"],
)
def test_a_schema_that_protoc_refuses_is_refused_only_when_it_is_new(body: str) -> None:
    parser, schema = SchemaParser(), Schema(SchemaType.PROTOBUF, message(body))
    with pytest.raises(InvalidSchemaError):
        parser.parse(schema, lambda _: None, new=True)
    held = parser.parse(schema, lambda _: None)
    assert ProtobufSchema.parse(held.canonical, (), new=False).canonical == held.canonical
