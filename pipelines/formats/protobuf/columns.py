"""Maps Protobuf messages to columns, and compares a writer's message with a reader's. Pure.

Columns have the field names of the `.proto` file. A field without presence is never null; enums become the names of
their values; timestamps and wrapper types become their values; `google.protobuf.Struct` and related types become JSON.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.differences import SCALAR_KINDS
from headwater.pipelines.schemas.protobuf.linking import link, pooled
from headwater.pipelines.schemas.protobuf.parser import parse

NESTING_MAX: Final = 20  # Spark's own plans become slow long before
NODES_MAX: Final = 10_000
FILE_NAME: Final = "default.proto"

_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")
_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))

SCALAR, ENUM, UINT64, MESSAGE, INSTANT, WRAPPER, TEXT = (
    "scalar",
    "enum",
    "uint64",
    "message",
    "instant",
    "wrapper",
    "json",
)
SINGLE, LIST, MAP = "single", "list", "map"


@dataclass(slots=True)
class Node:
    """A field as a column: its name, its kind, whether it is single, a list or a map, and whether it can be absent.

    `type` is the column's type; `children` are a message's fields, or the key and the value of a map.
    """

    name: str
    path: str
    kind: str
    form: str
    has_presence: bool
    item_type: Any
    descriptor: Any
    children: list[Node] = field(default_factory=list)

    @property
    def type(self) -> Any:
        """The column's Arrow type."""
        if self.form == LIST:
            return pa.list_(pa.field("element", self.item_type))
        return self.item_type


def pool_of(text: str, references: Iterable[tuple[str, str]] = (), *, new: bool = False) -> Any:
    """Build a descriptor pool with a file and its imports. Raises InvalidSchemaError.

    A `new` file must follow the rules of protobuf's compiler; other registries hold files that do not.
    """
    imported: dict[str, Any] = {}
    for name, other in references:
        imported[name] = link(_file(other), name, imported, check_rules=False)
    return pooled(_file(text), FILE_NAME, imported, check_rules=new)


def _file(text: str) -> Any:
    if _BASE64.match(text):
        try:
            content = base64.b64decode("".join(text.split()), validate=True)
            return descriptor_pb2.FileDescriptorProto.FromString(content)
        except (binascii.Error, DecodeError):
            pass  # the text's parser reports the fault
    try:
        return parse(text)
    except RecursionError:
        raise InvalidSchemaError("the schema nests too deeply") from None


def message_of(pool: Any, name: str | None) -> Any:
    """Return the message type of values: the named message, else the file's only one. Raises InvalidSchemaError."""
    file = pool.FindFileByName(FILE_NAME)
    found = list(file.message_types_by_name.values())
    if name is None:
        if len(found) != 1:
            names = ", ".join(message.name for message in found)
            raise InvalidSchemaError(f"the file has {len(found)} messages ({names}): say which one with message")
        return found[0]
    for full in (name, f"{file.package}.{name}"):
        try:
            message = pool.FindMessageTypeByName(full)
        except KeyError:
            continue
        if message.file.name == FILE_NAME:
            return message
    raise InvalidSchemaError(f"the file has no message {name}")


def message_at(pool: Any, indexes: Iterable[int]) -> Any:
    """Return the message at the message indexes of a serializer. Raises InvalidSchemaError."""
    file = pool.FindFileByName(FILE_NAME)
    found, among = None, list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(among):
            raise InvalidSchemaError("the schema has no message at the place that the value names")
        found = among[index]
        among = list(found.nested_types)
    if found is None:
        raise InvalidSchemaError("the value names no message")
    return found


def place_of(message: Any) -> list[int]:
    """Return the message indexes of a message in its file."""
    places: list[int] = []
    inner = message
    while inner.containing_type is not None:
        around = inner.containing_type
        places.insert(0, [nested.full_name for nested in around.nested_types].index(inner.full_name))
        inner = around
    top = list(inner.file.message_types_by_name.values())
    return [[message.full_name for message in top].index(inner.full_name), *places]


def columns(message: Any) -> list[Node]:
    """Return the columns of a message. Raises InvalidSchemaError with the path of a part that is not a column."""
    return _Builder().fields(message, "", (), 0)


def struct_type(nodes: Iterable[Node]) -> Any:
    """Return the Arrow type of a message's columns."""
    return pa.struct([pa.field(node.name, node.type) for node in nodes])


class _Builder:
    def __init__(self) -> None:
        self._count = 0

    def fields(self, message: Any, path: str, around: tuple[str, ...], depth: int) -> list[Node]:
        if message.full_name in around:
            raise InvalidSchemaError(f"{path}: the message {message.full_name} holds itself, which no column can")
        if depth > NESTING_MAX:
            raise InvalidSchemaError(f"{path}: nested deeper than {NESTING_MAX} levels")
        found = []
        folded: set[str] = set()
        for part in message.fields:
            where = f"{path}.{part.name}" if path else part.name
            if part.name.lower() in folded:
                raise InvalidSchemaError(f"{where}: another field differs by case only, which SQL does not see")
            folded.add(part.name.lower())
            found.append(self._field(part, where, (*around, message.full_name), depth))
        return found

    def _field(self, part: Any, path: str, around: tuple[str, ...], depth: int) -> Node:
        self._count += 1
        if self._count > NODES_MAX:
            raise InvalidSchemaError(f"the message has more than {NODES_MAX} fields")
        message = part.message_type
        if message is not None and message.GetOptions().map_entry:
            key, value = (self._field(inner, path, around, depth + 1) for inner in message.fields)
            entries = pa.map_(key.item_type, value.item_type)
            return Node(part.name, path, MESSAGE, MAP, False, entries, part, [key, value])
        form = LIST if part.is_repeated else SINGLE
        presence = form == SINGLE and part.has_presence
        children: list[Node] = []
        item: Any
        if message is None:
            kind, item = self._scalar(part)
        elif message.full_name == TIMESTAMP:
            kind, item = INSTANT, pa.timestamp("us", "UTC")
        elif message.full_name in _WRAPPERS:
            kind, item = WRAPPER, self._scalar(message.fields_by_name["value"])[1]
        elif message.full_name in _JSON:
            kind, item = TEXT, pa.string()
        else:
            children = self.fields(message, path, around, depth + 1)
            kind, item = MESSAGE, struct_type(children)
        return Node(part.name, path, kind, form, presence, item, part, children)

    @staticmethod
    def _scalar(part: Any) -> tuple[str, Any]:
        if part.type == FieldDescriptor.TYPE_STRING:
            return SCALAR, pa.string()
        if part.type == FieldDescriptor.TYPE_BYTES:
            return SCALAR, pa.binary()
        kind = {FieldDescriptor.CPPTYPE_ENUM: ENUM, FieldDescriptor.CPPTYPE_UINT64: UINT64}.get(part.cpp_type, SCALAR)
        return kind, _SCALARS[part.cpp_type]


def conflict(writer: Any, reader: Any) -> str | None:
    """Return the reason why a reader's message misreads the writer's values; None if it reads them correctly."""
    return _conflict(writer, reader, "", set())


def _conflict(writer: Any, reader: Any, path: str, seen: set[tuple[str, str]]) -> str | None:
    if (writer.full_name, reader.full_name) in seen:
        return None
    seen.add((writer.full_name, reader.full_name))
    for part in reader.fields:
        where = f"{path}.{part.name}" if path else part.name
        other = writer.fields_by_number.get(part.number)
        if other is None:
            if part.is_required:
                return f"field {where}: it is required, and the writer does not have it"
            continue
        own, theirs = SCALAR_KINDS.get(part.type, "message"), SCALAR_KINDS.get(other.type, "message")
        if own != theirs:
            return f"field {where}: {_named(other)}, as the writer has it, cannot be read as {_named(part)}"
        if other.is_repeated != part.is_repeated and own != "text or bytes":
            few, many = ("the reader", "the writer") if other.is_repeated else ("the writer", "the reader")
            return f"field {where}: {many} has a list there, {few} one value"
        if part.message_type is not None:
            inner = _conflict(other.message_type, part.message_type, where, seen)
            if inner is not None:
                return inner
    return None


def _named(part: Any) -> str:
    if part.message_type is not None:
        return str(part.message_type.full_name)
    names = {number: name for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()}
    return str(names[part.type]).removeprefix("TYPE_").lower()
