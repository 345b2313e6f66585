"""The parser of `.proto` text beside protobuf's own compiler: the same descriptor, and no file that protoc refuses."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from pathlib import Path
from typing import Any, Final

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.linking import link
from headwater.pipelines.schemas.protobuf.parser import parse
from headwater.pipelines.schemas.protobuf.printer import default_json_name
from tests.property.registry.test_protobuf_text import bodies

FOLDERS: Final = (Path(sysconfig.get_path("purelib")), Path(grpc_tools.__file__).parent / "_proto")
FILES: Final = sorted(
    {str(path.relative_to(folder)) for folder in FOLDERS for path in folder.glob("google/**/*.proto")}
)
PROTO3: Final = """syntax = "proto3"; package p; import "google/protobuf/any.proto"; option java_package = "x";
message M { reserved 3, 5 to 7; reserved "q"; optional int32 a = 1 [deprecated = true]; map<string, int32> m = 2;
  oneof o { string s = 8; M b = 9; } enum E { Z = 0; Y = 1; reserved 5 to max; } E e = 10;
  repeated google.protobuf.Any x = 11; message I { bytes d_d = 1 [json_name = "D"]; } I i = 12;
  repeated sint64 p = 13 [packed = false]; }
service S { rpc A(M) returns (stream M.I); rpc B(stream M) returns (M) { option deprecated = true; } }
"""
PROTO2: Final = """package air . traffic; option optimize_for = SPEED; import public "google/protobuf/timestamp.proto";
enum Unit { option allow_alias = true; reserved 7, 9 to max; reserved "OLD"; METRE = 0; M = 0; FOOT = -1; }
message Flight { reserved 2, 15, 9 to 11; reserved "foo", 'bar'; extensions 100 to 199, 1000 to max;
  required int32 number = 1 [default = 0x1F]; optional double fast = 3 [default = -inf, json_name = "quick"];
  optional bytes raw = 4 [default = "\\001\\377", ctype = CORD]; repeated float all = 5 [packed = true];
  optional string text = 13 [default = "a\\x41"]; optional bool flag = 14 [default = true];
  map<string, .air.traffic.Flight.Leg> legs = 6;
  oneof who { string pilot = 7; group Crew = 8 { optional int32 n = 1; } }
  message Leg { optional Unit unit = 1 [default = FOOT]; optional google.protobuf.Timestamp at = 2; }
  extend Flight { optional Leg extra = 150; } ; }
extend Flight { optional int32 more = 151; }
"""
EDITION: Final = """edition = "2023"; package p; option features.field_presence = IMPLICIT;
message M { int32 a = 1 [features.field_presence = EXPLICIT, default = 3]; repeated int32 b = 2; reserved x, y;
  enum E { option features.enum_type = CLOSED; A = 1; } E e = 4 [features.field_presence = EXPLICIT];
  extensions 100 to 200; } extend M { int32 z = 100; }
"""
WORDS: Final = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*|\d[\w.]*|.""", re.DOTALL)
OTHERS: Final = [
    "", "0", "-1", "2", "19000", "536870911", "536870912", "2147483647", "2147483648", "0x10", "09", "1.5", "inf",
    '"x"', "true", "optional", "required", "repeated", "group", "message", "enum", "oneof", "map", "string", "int32",
    "M", "E", "extend", "extensions", "reserved", "to", "max", "option", "{", "}", "[", "]", "<", ">", ";", ",", ".",
]  # fmt: skip
UNCHECKED: Final = re.compile(
    # What an option says is not compared with its definition, and features are options.
    r'Option "|for option "|option field|repeated field encoding|\[packed'
    # A name that is no type hides a type of an outer scope from protoc's lookup.
    r"|is not a message type|is not a type",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("protoc")


def compiled(name: str, folder: Path) -> Any:
    """The file's descriptor as protoc makes it, or what protoc says of it."""
    out, messages = folder / "descriptors", folder / "messages"
    before = os.dup(2)
    with messages.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            includes = [f"-I{each}" for each in (folder, *FOLDERS)]
            failed = protoc.main(["protoc", *includes, "--retain_options", f"--descriptor_set_out={out}", name])
        finally:
            os.dup2(before, 2)
            os.close(before)
    if failed:
        return messages.read_text(errors="replace")
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def linked(source: str, name: str) -> Any:
    file = parse(source)
    imported: dict[str, Any] = {}
    for needed in file.dependency:
        imported |= of_package(needed)
    return link(file, name, imported, check_rules=True)


@functools.cache
def of_package(name: str) -> dict[str, Any]:
    """A file of the packages and those that it imports."""
    text = next(folder / name for folder in FOLDERS if (folder / name).exists()).read_text()
    found = linked(text, name)
    imported = {name: found}
    for needed in found.dependency:
        imported |= of_package(needed)
    return imported


def comparable(file: Any) -> Any:
    """Without names in JSON that say nothing, and without options that are others' extensions, which stay as text."""
    found = descriptor_pb2.FileDescriptorProto()
    found.CopyFrom(file)
    found.DiscardUnknownFields()
    _forget(found)
    return found


def _forget(message: Any) -> None:
    if isinstance(message, descriptor_pb2.FieldDescriptorProto) and message.json_name == default_json_name(
        message.name
    ):
        message.ClearField("json_name")
    for field, value in message.ListFields():
        if field.is_extension:
            message.ClearExtension(field)
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _forget(inner)
            if field.name == "options" and not value.ListFields():
                message.ClearField("options")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_googles_packages_is_what_protoc_makes_of_it(name: str, folder: Path) -> None:
    assert comparable(of_package(name)[name]) == comparable(compiled(name, folder))


@given(body=bodies())
def test_a_file_of_any_shape_is_what_protoc_makes_of_it(body: str, folder: Path) -> None:
    same_as_protoc(f'syntax = "proto3"; package p; message M {{ {body} }}', folder)


@pytest.mark.parametrize("source", [PROTO2, PROTO3, EDITION])
def test_a_file_of_each_language_is_what_protoc_makes_of_it(source: str, folder: Path) -> None:
    assert not isinstance(compiled_text(source, folder), str)
    same_as_protoc(source, folder)


@given(source=st.sampled_from([PROTO2, PROTO3, EDITION]), data=st.data())
def test_a_file_with_a_word_changed_is_what_protoc_makes_of_it_or_refused(
    source: str, data: st.DataObject, folder: Path
) -> None:
    words = WORDS.findall(source)
    places = [place for place, word in enumerate(words) if not word.isspace()]
    place = data.draw(st.sampled_from(places))
    other = data.draw(st.sampled_from(OTHERS) | st.sampled_from([words[each] for each in places]))
    words[place] = f"{words[place]} {other}" if data.draw(st.booleans()) else other
    same_as_protoc("".join(words), folder)


def compiled_text(source: str, folder: Path) -> Any:
    (folder / "default.proto").write_text(source)
    return compiled("default.proto", folder)


def same_as_protoc(source: str, folder: Path) -> None:
    expected = compiled_text(source, folder)
    try:
        found = linked(source, "default.proto")
    except InvalidSchemaError as error:
        # A value of an enum hides a type of its name from the pool; protoc looks further for one. And protoc reserves a
        # number that no field can have.
        assert isinstance(expected, str) or "Couldn't resolve" in str(error) or "536870912" in str(error)
        return
    except StopIteration:  # an import of no such file
        assert isinstance(expected, str)
        return
    if isinstance(expected, str):
        assert UNCHECKED.search(expected), expected
    else:
        assert comparable(found) == comparable(expected)
