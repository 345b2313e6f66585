"""What the names in a file mean: its types and those it imports; and what else protobuf asks of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.well_known import well_known

_IMPLEMENTATION_NUMBERS: Final = range(19_000, 20_000)
_NUMBERS: Final = range(1, 2**29)


def link(source: Any, name: str, imported: Mapping[str, Any]) -> Any:
    """Return the file with every type's full name and kind; `imported` has the files of its references, linked.

    Raises:
        InvalidSchemaError: an import or a type cannot be found, or protobuf does not allow the file.
    """
    linked = descriptor_pb2.FileDescriptorProto()
    pooled(source, name, imported).FindFileByName(name).CopyToProto(linked)
    return linked


def pooled(source: Any, name: str, imported: Mapping[str, Any]) -> Any:
    """Return a pool that has the file and what it imports: classes of messages are made of its descriptors.

    Raises:
        InvalidSchemaError: as `link`.
    """
    check(source)
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for needed in source.dependency:
        _add(pool, needed, imported, added, (name,))
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(source)
    file.name = name
    file.ClearField("source_code_info")
    for options in _all_options(file):
        # Clearing what is not there would leave empty options behind.
        if options.uninterpreted_option:
            options.ClearField("uninterpreted_option")
    try:
        pool.Add(file)
        pool.FindFileByName(name)
    except (TypeError, KeyError) as error:
        reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        raise InvalidSchemaError(reason) from None
    return pool


def _add(pool: Any, name: str, imported: Mapping[str, Any], added: set[str], path: tuple[str, ...]) -> None:
    if name in path:
        raise InvalidSchemaError(f"files import each other: {' -> '.join((*path, name))}")
    if name in added:
        return
    file = imported.get(name)
    if file is None:
        file = well_known(name)
    if file is None:
        raise InvalidSchemaError(f"{name!r} is imported, but no reference has this name")
    for needed in file.dependency:
        _add(pool, needed, imported, added, (*path, name))
    added.add(name)
    if file.name != name:
        renamed = descriptor_pb2.FileDescriptorProto()
        renamed.CopyFrom(file)
        renamed.name = name
        file = renamed
    try:
        pool.Add(file)
    except TypeError as error:
        raise InvalidSchemaError(f"{name}: {error}") from None


def check(file: Any) -> None:
    """Raise InvalidSchemaError for what protobuf's compiler refuses and its descriptor pool lets through."""
    open_enums = file.syntax == "proto3"
    for message in file.message_type:
        _check_message(message, message.name, open_enums)
    for enum in file.enum_type:
        _check_enum(enum, enum.name, open_enums)


def _check_message(message: Any, path: str, open_enums: bool) -> None:
    numbers: dict[int, str] = {}
    names: set[str] = set()
    for field in message.field:
        where = f"{path}.{field.name}"
        if field.number in numbers:
            raise InvalidSchemaError(f"{where}: the number {field.number} is that of {numbers[field.number]!r} too")
        if field.name in names:
            raise InvalidSchemaError(f"{where}: the message has a field of this name already")
        if field.number not in _NUMBERS or field.number in _IMPLEMENTATION_NUMBERS:
            raise InvalidSchemaError(f"{where}: a field cannot have the number {field.number}")
        if any(reserved.start <= field.number < reserved.end for reserved in message.reserved_range):
            raise InvalidSchemaError(f"{where}: the number {field.number} is reserved")
        if field.name in message.reserved_name:
            raise InvalidSchemaError(f"{where}: the name is reserved")
        if open_enums and field.label == field.LABEL_REQUIRED:
            raise InvalidSchemaError(f"{where}: proto3 has no required fields")
        numbers[field.number] = field.name
        names.add(field.name)
    used = {field.oneof_index for field in message.field if field.HasField("oneof_index")}
    for index, oneof in enumerate(message.oneof_decl):
        if index not in used:
            raise InvalidSchemaError(f"{path}.{oneof.name}: a oneof has at least one field")
    for inner in message.nested_type:
        _check_message(inner, f"{path}.{inner.name}", open_enums)
    for enum in message.enum_type:
        _check_enum(enum, f"{path}.{enum.name}", open_enums)


def _check_enum(enum: Any, path: str, open_enums: bool) -> None:
    if not enum.value:
        raise InvalidSchemaError(f"{path}: an enum has at least one value")
    if open_enums and enum.value[0].number != 0:
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


def _all_options(file: Any) -> Iterator[Any]:
    """Yield the options of everything in a file that has some."""
    yield file.options
    for message in file.message_type:
        yield from _message_options(message)
    for enum in file.enum_type:
        yield from _enum_options(enum)
    for extension in file.extension:
        yield extension.options
    for service in file.service:
        yield service.options
        for method in service.method:
            yield method.options


def _message_options(message: Any) -> Iterator[Any]:
    yield message.options
    for part in (*message.field, *message.extension, *message.oneof_decl, *message.extension_range):
        yield part.options
    for enum in message.enum_type:
        yield from _enum_options(enum)
    for inner in message.nested_type:
        yield from _message_options(inner)


def _enum_options(enum: Any) -> Iterator[Any]:
    yield enum.options
    for value in enum.value:
        yield value.options
