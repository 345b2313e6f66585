"""Files of any shape come back from their text, and bytes written with one are read with what may follow it."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from headwater.api.registry.protobuf.schema import ProtobufSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.lexer import tokens
from headwater.pipelines.schemas.protobuf.parser import SCALARS

SCALAR = st.sampled_from(sorted(SCALARS))
COMMENT = st.sampled_from(["", "// one\n", "/* two\n * three */ ", "// ü \u2028\n"])


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0) -> str:
    """What stands between the braces of a message."""
    numbers = iter(draw(st.lists(st.integers(1, 18_999), min_size=8, max_size=8, unique=True)))
    parts = []
    for index, number in zip(range(draw(st.integers(0, 5))), numbers, strict=False):
        name = f"f_{index}"
        kind = draw(st.sampled_from(["plain", "repeated", "optional", "map", "oneof"]))
        of = draw(SCALAR)
        comment = draw(COMMENT)
        if kind == "map":
            key = draw(st.sampled_from(["string", "int32", "bool", "fixed64"]))
            parts.append(f"{comment}map<{key}, {of}> {name} = {number};")
        elif kind == "oneof":
            parts.append(f"oneof o_{index} {{ {comment}{of} {name} = {number}; }}")
        else:
            label = "" if kind == "plain" else f"{kind} "
            option = draw(st.sampled_from(["", " [deprecated = true]", ' [json_name = "j\\n"]']))
            option = option.replace("j\\n", f"j{index}\\n")
            parts.append(f"{comment}{label}{of} {name} = {number}{option};")
    if depth < 2 and draw(st.booleans()):
        parts.append(f"message Inner {{ {draw(bodies(depth + 1))} }}")
        parts.append(f"Inner inner = {next(numbers)};")
    if draw(st.booleans()):
        parts.append("enum Kind { NONE = 0; SOME = 0x10; }" + f" Kind kind = {next(numbers)};")
    return " ".join(parts)


def parse(body: str) -> ProtobufSchema:
    return ProtobufSchema.parse(f'syntax = "proto3"; package p; message M {{ {body} }}', (), new=True)


@given(bodies())
def test_a_file_comes_back_from_its_text_and_from_its_descriptor(body: str) -> None:
    schema = parse(body)
    again = ProtobufSchema.parse(schema.canonical, (), new=True)
    assert (again.linked, again.canonical) == (schema.linked, schema.canonical)
    assert ProtobufSchema.parse(schema.formatted("serialized"), (), new=True).linked == schema.linked
    assert ProtobufSchema.parse(schema.normalized(), (), new=True).normalized() == schema.normalized()
    assert schema.problems_reading(again) == []


def message_class(schema: ProtobufSchema) -> Any:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(schema.linked)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


@given(SCALAR, SCALAR, st.booleans(), st.data())
def test_a_field_of_a_compatible_type_is_never_taken_for_another_wire_type(
    before: str, after: str, repeated: bool, data: st.DataObject
) -> None:
    label = "repeated " if repeated else ""
    original, update = parse(f"{label}{before} a = 1;"), parse(f"{label}{after} a = 1;")
    if update.problems_reading(original):
        return
    written = message_class(original)()
    value: Any = {"bool": True, "string": "x", "bytes": b"x", "float": 1.5, "double": 1.5}.get(before, 1)
    if repeated:
        written.a.extend([value, value])
    else:
        written.a = value
    read = message_class(update)()
    read.ParseFromString(written.SerializeToString())
    if repeated:
        assert len(read.a) == 2
    else:
        assert read.a
        assert [field.name for field, _ in read.ListFields()] == ["a"]
    del data


@given(st.text(max_size=60) | st.text(st.sampled_from("{}[]()<>=;,.\"'/\\*-+ \nabc019"), max_size=60))
def test_any_text_is_a_file_or_told_to_be_none(text: str) -> None:
    try:
        ProtobufSchema.parse(text, (), new=True)
        list(tokens(text))
    except InvalidSchemaError as error:
        assert str(error)
