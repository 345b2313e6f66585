"""Rules that protobuf's compiler checks and its descriptor pool does not. Pure.

`tests/property/registry/test_protobuf_beside_protoc.py` compares these rules with the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from google.protobuf import descriptor_pb2

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.printer import default_json_name

_IMPLEMENTATION_NUMBERS: Final = range(19_000, 20_000)
_NUMBERS: Final = range(1, 2**29)
_Field: Final = descriptor_pb2.FieldDescriptorProto


def check(file: Any) -> None:
    """Raise InvalidSchemaError for the first violated rule."""
    is_proto3 = file.syntax == "proto3"
    names: set[str] = set()
    for name in _declared(file.message_type, file.enum_type, file.extension, file.service):
        _add_name(names, name, file.package)
    for message in file.message_type:
        _check_message(message, message.name, is_proto3)
    for enum in file.enum_type:
        _check_enum(enum, enum.name, is_proto3)
    for extension in file.extension:
        _check_field(extension, extension.name, is_proto3)


def _check_message(message: Any, path: str, is_proto3: bool) -> None:
    numbers: dict[int, str] = {}
    names: set[str] = set()
    for field in message.field:
        where = f"{path}.{field.name}"
        if field.number in numbers:
            raise InvalidSchemaError(f"{where}: the number {field.number} is that of {numbers[field.number]!r} too")
        if field.name in names:
            raise InvalidSchemaError(f"{where}: the message has a field of this name already")
        if any(reserved.start <= field.number < reserved.end for reserved in message.reserved_range):
            raise InvalidSchemaError(f"{where}: the number {field.number} is reserved")
        if any(extended.start <= field.number < extended.end for extended in message.extension_range):
            raise InvalidSchemaError(f"{where}: the number {field.number} is one of the message's extensions")
        if field.name in message.reserved_name:
            raise InvalidSchemaError(f"{where}: the name is reserved")
        _check_field(field, where, is_proto3)
        numbers[field.number] = field.name
        names.add(field.name)
    for name in _declared(message.nested_type, message.enum_type, message.extension, message.oneof_decl):
        _add_name(names, name, path)
    used = {field.oneof_index for field in message.field if field.HasField("oneof_index")}
    for index, oneof in enumerate(message.oneof_decl):
        if index not in used:
            raise InvalidSchemaError(f"{path}.{oneof.name}: a oneof has at least one field")
    if is_proto3 and not message.options.deprecated_legacy_json_field_conflicts:
        _check_json_names(message, path)
    _check_ranges([(each.start, each.end) for each in (*message.reserved_range, *message.extension_range)], path)
    for extension in message.extension:
        _check_field(extension, f"{path}.{extension.name}", is_proto3)
    for inner in message.nested_type:
        _check_message(inner, f"{path}.{inner.name}", is_proto3)
    for enum in message.enum_type:
        _check_enum(enum, f"{path}.{enum.name}", is_proto3)


def _check_field(field: Any, where: str, is_proto3: bool) -> None:
    if field.number not in _NUMBERS or field.number in _IMPLEMENTATION_NUMBERS:
        raise InvalidSchemaError(f"{where}: a field cannot have the number {field.number}")
    if is_proto3 and field.label == _Field.LABEL_REQUIRED:
        raise InvalidSchemaError(f"{where}: proto3 has no required fields")
    if field.extendee and field.label == _Field.LABEL_REQUIRED:
        raise InvalidSchemaError(f"{where}: an extension cannot be required")
    if field.label == _Field.LABEL_REPEATED and field.HasField("default_value"):
        raise InvalidSchemaError(f"{where}: a repeated field has no default")


def _check_json_names(message: Any, path: str) -> None:
    fields: dict[str, str] = {}
    for field in message.field:
        name = field.json_name or default_json_name(field.name)
        if name in fields:
            raise InvalidSchemaError(
                f"{path}.{field.name}: its name in JSON, {name!r}, is that of {fields[name]!r} too"
            )
        fields[name] = field.name


def _check_enum(enum: Any, path: str, is_proto3: bool) -> None:
    if not enum.value:
        raise InvalidSchemaError(f"{path}: an enum has at least one value")
    if is_proto3 and enum.value[0].number != 0:
        raise InvalidSchemaError(f"{path}: the first value of an enum is 0 in proto3")
    numbers: dict[int, str] = {}
    for value in enum.value:
        where = f"{path}.{value.name}"
        if value.number in numbers and not enum.options.allow_alias:
            raise InvalidSchemaError(f"{where}: the number {value.number} is that of {numbers[value.number]!r} too")
        if any(reserved.start <= value.number <= reserved.end for reserved in enum.reserved_range):
            raise InvalidSchemaError(f"{where}: the number {value.number} is reserved")
        if value.name in enum.reserved_name:
            raise InvalidSchemaError(f"{where}: the name is reserved")
        numbers[value.number] = value.name
    if enum.options.allow_alias and len(numbers) == len(enum.value):
        raise InvalidSchemaError(f"{path}: allow_alias, but no two values have the same number")
    _check_ranges([(each.start, each.end + 1) for each in enum.reserved_range], path)


def _check_ranges(ranges: list[tuple[int, int]], path: str) -> None:
    for (_, end), (start, _) in pairwise(sorted(ranges)):
        if start < end:
            raise InvalidSchemaError(f"{path}: the number {start} is in two ranges")


def _declared(messages: Any, enums: Any, extensions: Any, others: Any) -> Iterator[str]:
    """Yield the names that share a scope: an enum's values belong to the scope around the enum, as in C++."""
    for part in (*messages, *enums, *extensions, *others):
        yield part.name
    for enum in enums:
        for value in enum.value:
            yield value.name


def _add_name(names: set[str], name: str, path: str) -> None:
    if name in names:
        raise InvalidSchemaError(f"{f'{path}.' if path else ''}{name}: the name is declared twice")
    names.add(name)
