"""Google's published `.proto` files: our parser makes of them what protobuf's compiler has made of them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import google.type
import pytest
from google.protobuf import descriptor_pb2

from headwater.api.registry.parsed import Dependency
from headwater.api.registry.protobuf.schema import ProtobufSchema

ROOT = Path(next(iter(google.type.__path__))).parents[1]
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("google/**/*.proto"))
IMPORT = re.compile(r'^import (?:public |weak )?"([^"]+)";', re.MULTILINE)


def load(name: str, loaded: dict[str, Dependency]) -> ProtobufSchema:
    """A file with everything it imports; `loaded` has that in order afterwards."""
    text = (ROOT / name).read_text()
    for needed in IMPORT.findall(text):
        if needed not in loaded and not needed.startswith("google/protobuf/"):
            schema = load(needed, loaded)
            loaded[needed] = Dependency(needed, schema)
    return ProtobufSchema.parse(text, list(loaded.values()), new=True)


def without_custom_options(message: Any) -> Any:
    """The descriptor without options that other files define: the compiler interprets them, and we keep their text."""
    for field, value in message.ListFields():
        if field.name.endswith("options"):
            for option, _ in value.ListFields():
                if option.is_extension:
                    value.ClearExtension(option)
            value.DiscardUnknownFields()
            if not value.ListFields():
                message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                without_custom_options(inner)
    return message


def test_there_are_files() -> None:
    assert len(FILES) > 40


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_understood_as_the_compiler_does(name: str) -> None:
    compiled = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR.CopyToProto(compiled)
    loaded: dict[str, Dependency] = {}
    schema = load(name, loaded)
    ours = descriptor_pb2.FileDescriptorProto()
    ours.CopyFrom(schema.linked)
    ours.name = compiled.name
    assert without_custom_options(ours) == without_custom_options(compiled)
    again = ProtobufSchema.parse(schema.canonical, list(loaded.values()), new=True)
    assert (again.linked, again.canonical) == (schema.linked, schema.canonical)
