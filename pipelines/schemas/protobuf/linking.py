"""Resolves the names in a file to its types and to imported types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf.compiler_rules import check
from headwater.pipelines.schemas.protobuf.well_known import well_known


def link(source: Any, name: str, imported: Mapping[str, Any], *, check_rules: bool) -> Any:
    """Return the file with the full name and kind of every type; `imported` contains the linked references.

    `check_rules` also applies the rules of protobuf's compiler, which a file of some registry may break.

    Raises:
        InvalidSchemaError: an import or a type cannot be resolved, or protobuf refuses the file.
    """
    linked = descriptor_pb2.FileDescriptorProto()
    pooled(source, name, imported, check_rules=check_rules).FindFileByName(name).CopyToProto(linked)
    return linked


def pooled(source: Any, name: str, imported: Mapping[str, Any], *, check_rules: bool) -> Any:
    """Return a descriptor pool with the file and its imports, from which message classes are created.

    Raises:
        InvalidSchemaError: for the same reasons as `link`.
    """
    if check_rules:
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
        # Clearing a missing field would leave empty options.
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


def _all_options(file: Any) -> Iterator[Any]:
    """Yield the options of every element in a file that has options."""
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
