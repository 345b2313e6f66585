"""Kafka's messages out of kio's schemas: arbitrary ones for properties, and their bytes field by field for fuzzing."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial._implicit_defaults import get_tagged_field_default

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ZERO_ID: Final = UUID(int=0)
ELEMENTS_MAX: Final = 2

_FORMATS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
#: The protocol takes 64 bits; Python's own durations and dates end before them.
_DURATION_MS_MAX: Final = 2**45
_TIME_MS_MAX: Final = 2**42


def kind_of(annotation: Any) -> tuple[Any, bool, bool]:
    """The type inside of `X | None` and `tuple[X, ...]`; whether it is an array, and whether it may be null."""
    is_array = is_nullable = False
    while True:
        origin = get_origin(annotation)
        if origin in (UnionType, Union):
            is_nullable = is_nullable or not is_array
            [annotation] = [member for member in get_args(annotation) if member is not NoneType]
        elif origin is tuple:
            annotation, is_array = get_args(annotation)[0], True
        else:
            return annotation, is_array, is_nullable


# -- arbitrary values


@cache
def primitive(kafka_type: str) -> st.SearchStrategy[Any]:
    """Values of a type as kio has them; the zero id is none to kio."""
    if bits := _BITS.get(kafka_type):
        signed = not kafka_type.startswith("u")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return st.sampled_from([low, high, 0, 1]) | st.integers(low, high)
    known: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "string": st.text(st.characters(codec="utf-8"), max_size=6),
        "bytes": st.binary(max_size=6),
        "records": st.binary(max_size=6),
        "uuid": st.none() | st.uuids().filter(lambda found: found != ZERO_ID),
        "error_code": st.sampled_from(ErrorCode),
        "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
        "timedelta_i64": st.integers(-_DURATION_MS_MAX, _DURATION_MS_MAX).map(lambda ms: timedelta(milliseconds=ms)),
        "datetime_i64": st.integers(0, _TIME_MS_MAX).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    }
    return known[kafka_type]


@cache
def entities(schema: Any) -> st.SearchStrategy[Any]:
    """Entities of one of kio's classes, every field given."""
    return st.builds(schema, **{field.name: _values(field) for field in dataclasses.fields(schema)})


def _values(field: Any) -> st.SearchStrategy[Any]:
    kind, is_array, is_nullable = kind_of(field.type)
    is_entity = dataclasses.is_dataclass(kind)
    values = entities(kind) if is_entity else primitive(field.metadata["kafka_type"])
    if is_array:
        values = st.lists(values, max_size=ELEMENTS_MAX).map(tuple)
    # A tagged field that is null is one that is not there: only one whose default is null can be.
    can_be_null = is_nullable and ("tag" not in field.metadata or field.default is None)
    return st.none() | values if can_be_null else values


def filled(schema: Any, values: Mapping[str, Any] | None = None) -> Any:
    """An entity in which nothing is null and every array has an element; `values` are those of fields, by name."""
    values = values or {}
    return schema(
        **{
            field.name: values[field.name] if field.name in values else _filling(field, values)
            for field in dataclasses.fields(schema)
        }
    )


def _filling(field: Any, values: Mapping[str, Any]) -> Any:
    kind, is_array, _ = kind_of(field.type)
    if dataclasses.is_dataclass(kind):
        value = filled(kind, values)
    else:
        kafka_type = field.metadata["kafka_type"]
        value = _FILLINGS[kafka_type] if kafka_type in _FILLINGS else kind(1)
    return (value,) if is_array else value


_FILLINGS: Final[Mapping[str, Any]] = {
    "bool": True,
    "float64": 1.0,
    "string": "text",
    "bytes": b"bytes",
    "records": b"records",
    "uuid": UUID(int=1),
    "error_code": ErrorCode.unknown_server_error,
    "timedelta_i32": timedelta(milliseconds=1),
    "timedelta_i64": timedelta(milliseconds=1),
    "datetime_i64": EPOCH + timedelta(milliseconds=1),
}


# -- bytes, field by field

Kind = Literal["value", "length", "count", "marker", "tags", "tag", "bytes"]


class Token(NamedTuple):
    """The bytes of one part of a message; those of kinds `length` and `count` say how much of something follows."""

    kind: Kind
    data: bytes
    is_compact: bool


def tokens(entity: Any) -> list[Token]:
    """A message in parts, whose bytes are the message; written by hand, so that it checks kio as well."""
    return list(_entity_tokens(entity))


def varint(value: int) -> bytes:
    """An unsigned varint.

    >>> varint(300)
    b'\\xac\\x02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _entity_tokens(entity: Any) -> Iterator[Token]:
    flexible = bool(entity.__flexible__)
    tagged = []
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if "tag" not in field.metadata:
            yield from _field_tokens(field, value, flexible)
        elif value != get_tagged_field_default(field):
            tagged.append((field.metadata["tag"], list(_field_tokens(field, value, flexible))))
    if flexible:
        yield Token("tags", varint(len(tagged)), True)
        for tag, parts in sorted(tagged, key=lambda each: each[0]):
            yield Token("tag", varint(tag), True)
            yield Token("length", varint(sum(len(part.data) for part in parts)), True)
            yield from parts


def _field_tokens(field: Any, value: Any, flexible: bool) -> Iterator[Token]:
    kind, is_array, is_nullable = kind_of(field.type)
    if is_array:
        count = -1 if value is None else len(value)
        yield Token("count", varint(count + 1) if flexible else struct.pack(">i", count), flexible)
        for element in value or ():
            yield from _element_tokens(field, kind, element, flexible)
    elif dataclasses.is_dataclass(kind) and is_nullable and "tag" not in field.metadata:
        yield Token("marker", b"\xff" if value is None else b"\x01", False)
        if value is not None:
            yield from _entity_tokens(value)
    else:
        yield from _element_tokens(field, kind, value, flexible)


def _element_tokens(field: Any, kind: Any, value: Any, flexible: bool) -> Iterator[Token]:
    if dataclasses.is_dataclass(kind):
        yield from _entity_tokens(value)
        return
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in ("string", "bytes", "records"):
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        width = ">h" if kafka_type == "string" else ">i"
        yield Token("length", varint(size + 1) if flexible else struct.pack(width, size), flexible)
        yield Token("bytes", data or b"", False)
    elif kafka_type == "uuid":
        yield Token("value", (value or ZERO_ID).bytes, False)
    else:
        yield Token("value", struct.pack(_FORMATS[kafka_type], _number(value)), False)


def _number(value: Any) -> Any:
    if value is None:
        return -1
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return int(value) if isinstance(value, ErrorCode) else value


# -- trees, as handlers give them


class TreeField(NamedTuple):
    """A field of a response in all versions that have it, the newest one last."""

    fields: Sequence[Any]

    @property
    def is_nullable(self) -> bool:
        """Whether it may be null whatever the version."""
        return all(kind_of(field.type)[2] for field in self.fields)


def tree_fields(classes: Sequence[Any]) -> Mapping[str, TreeField]:
    """The fields of a class in several versions, by their names."""
    found: dict[str, list[Any]] = {}
    for each in classes:
        for field in dataclasses.fields(each):
            found.setdefault(field.name, []).append(field)
    return {name: TreeField(fields) for name, fields in found.items()}


def trees(classes: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Trees of every field that any of the versions has, with values that every version takes."""
    return st.fixed_dictionaries({name: _tree_values(field) for name, field in tree_fields(classes).items()})


def _tree_values(field: TreeField) -> st.SearchStrategy[Any]:
    newest = field.fields[-1]
    kind, is_array, _ = kind_of(newest.type)
    if dataclasses.is_dataclass(kind):
        values: st.SearchStrategy[Any] = trees([kind_of(each.type)[0] for each in field.fields])
    else:
        values = primitive(newest.metadata["kafka_type"]).map(plain)
    if is_array:
        values = st.lists(values, max_size=ELEMENTS_MAX)
    return st.none() | values if field.is_nullable else values


def plain(value: Any) -> Any:
    """A value as a handler gives it: durations and times in milliseconds."""
    return _number(value) if isinstance(value, timedelta | datetime) else value


def as_tree(entity: Any) -> dict[str, Any]:
    """An entity as a handler would have given it."""
    return {field.name: _as_tree(getattr(entity, field.name)) for field in dataclasses.fields(entity)}


def _as_tree(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_tree(each) for each in value]
    return as_tree(value) if dataclasses.is_dataclass(value) else plain(value)


def part_of(schema: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    """What one version has of a tree."""
    found = {}
    for field in dataclasses.fields(schema):
        kind, is_array, _ = kind_of(field.type)
        value = tree[field.name]
        if value is not None and dataclasses.is_dataclass(kind):
            value = [part_of(kind, each) for each in value] if is_array else part_of(kind, value)
        found[field.name] = value
    return found
