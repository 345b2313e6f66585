"""Prints a `FileDescriptorProto` as `.proto` text in one layout, with leading and trailing comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2

from headwater.pipelines.schemas.protobuf import literals, options
from headwater.pipelines.schemas.protobuf.parser import SCALARS
from headwater.pipelines.schemas.protobuf.reader import FIELD_NUMBER_MAX

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALAR_NAMES: Final = {number: name for name, number in SCALARS.items()}
_LABELS: Final = {_Field.LABEL_REQUIRED: "required ", _Field.LABEL_REPEATED: "repeated "}
_INDENT: Final = "  "


def printed(file: Any) -> str:
    """Print a file; the text ends with a newline."""
    return "\n".join(_Printer(file).lines()) + "\n"


class _Printer:
    """One pass over a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._comments = {tuple(location.path): location for location in file.source_code_info.location}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the whole file."""
        file = self._file
        if file.syntax == "editions":
            edition = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")
            yield from self._commented((12,), f'edition = "{edition}";', "")
        else:
            yield from self._commented((12,), f'syntax = "{file.syntax or "proto2"}";', "")
        if file.package:
            yield from self._commented((2,), f"package {file.package};", "")
        if file.dependency:
            yield ""
            for index, name in enumerate(file.dependency):
                modifier = "public " if index in file.public_dependency else ""
                modifier = "weak " if index in file.weak_dependency else modifier
                yield f"import {modifier}{literals.quote(name.encode())};"
        file_options = options.printed(file.options)
        if file_options:
            yield ""
            yield from (f"option {option};" for option in file_options)
        for index, message in enumerate(file.message_type):
            if message.name not in _groups(file.extension):
                yield ""
                yield from self._message(message, f"message {message.name}", (4, index), "")
        for index, enum in enumerate(file.enum_type):
            yield ""
            yield from self._enum(enum, (5, index), "")
        yield from self._extensions(file.extension, file.message_type, (7,), (4,), "")
        for index, service in enumerate(file.service):
            yield ""
            yield from self._service(service, (6, index))

    def _commented(self, path: tuple[int, ...], line: str, indent: str) -> Iterator[str]:
        location = self._comments.get(path)
        if location is not None and location.leading_comments:
            for comment in location.leading_comments.split("\n"):
                yield f"{indent}// {comment}".rstrip()
        behind = "" if location is None else " ".join(location.trailing_comments.split())
        trailing = f" // {behind}" if behind else ""
        yield f"{indent}{line}{trailing}"

    def _message(self, message: Any, head: str, path: tuple[int, ...], indent: str) -> Iterator[str]:
        yield from self._commented(path, f"{head} {{", indent)
        yield from self._message_body(message, path, indent + _INDENT)
        yield f"{indent}}}"

    def _message_body(self, message: Any, path: tuple[int, ...], indent: str) -> Iterator[str]:
        for option in options.printed(message.options):
            yield f"{indent}option {option};"
        for kind, names in (("reserved", message.reserved_name), ("reserved", message.reserved_range)):
            if names:
                yield f"{indent}{kind} {self._reserved(names, exclusive=True)};"
        for extension_range in message.extension_range:
            numbers = _range(extension_range.start, extension_range.end - 1, FIELD_NUMBER_MAX)
            yield f"{indent}extensions {numbers}{_bracketed(options.printed(extension_range.options))};"
        yield from self._fields(message, path, indent)
        groups = _groups(message.field) | _groups(message.extension)
        for index, inner in enumerate(message.nested_type):
            if not inner.options.map_entry and inner.name not in groups:
                yield from self._message(inner, f"message {inner.name}", (*path, 3, index), indent)
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, 4, index), indent)
        yield from self._extensions(message.extension, message.nested_type, (*path, 6), (*path, 3), indent)

    def _fields(self, message: Any, path: tuple[int, ...], indent: str) -> Iterator[str]:
        written: set[int] = set()
        for index, field in enumerate(message.field):
            place = (*path, 2, index)
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._field(field, message.nested_type, place, (*path, 3), indent)
            elif field.oneof_index not in written:
                written.add(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                yield from self._commented((*path, 8, field.oneof_index), f"oneof {oneof.name} {{", indent)
                inner = indent + _INDENT
                for option in options.printed(oneof.options):
                    yield f"{inner}option {option};"
                for other_index, other in enumerate(message.field):
                    if other.HasField("oneof_index") and other.oneof_index == field.oneof_index:
                        place = (*path, 2, other_index)
                        yield from self._field(other, message.nested_type, place, (*path, 3), inner)
                yield f"{indent}}}"

    def _field(
        self, field: Any, types: Any, path: tuple[int, ...], types_path: tuple[int, ...], indent: str
    ) -> Iterator[str]:
        settings = []
        if field.HasField("default_value"):
            settings.append(f"default = {_default(field)}")
        if field.json_name and field.json_name != default_json_name(field.name):
            settings.append(f"json_name = {literals.quote(field.json_name.encode())}")
        settings += options.printed(field.options)
        entry = _own_type(field, types)
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            head = f"map<{_type(key)}, {_type(value)}>"
            yield from self._commented(path, f"{head} {field.name} = {field.number}{_bracketed(settings)};", indent)
            return
        label = self._label(field)
        if entry is not None and field.type == _Field.TYPE_GROUP:
            index = list(types).index(entry)
            head = f"{label}group {entry.name} = {field.number}{_bracketed(settings)}"
            yield from self._message(entry, head, (*types_path, index), indent)
            return
        line = f"{label}{_type(field)} {field.name} = {field.number}{_bracketed(settings)};"
        yield from self._commented(path, line, indent)

    def _label(self, field: Any) -> str:
        if field.label in _LABELS:
            return _LABELS[field.label]
        if field.proto3_optional:
            return "optional "
        in_proto2 = self._file.syntax in ("", "proto2")
        return "optional " if in_proto2 and not field.HasField("oneof_index") else ""

    def _enum(self, enum: Any, path: tuple[int, ...], indent: str) -> Iterator[str]:
        inner = indent + _INDENT
        yield from self._commented(path, f"enum {enum.name} {{", indent)
        for option in options.printed(enum.options):
            yield f"{inner}option {option};"
        for names in (enum.reserved_name, enum.reserved_range):
            if names:
                yield f"{inner}reserved {self._reserved(names, exclusive=False)};"
        for index, value in enumerate(enum.value):
            line = f"{value.name} = {value.number}{_bracketed(options.printed(value.options))};"
            yield from self._commented((*path, 2, index), line, inner)
        yield f"{indent}}}"

    def _reserved(self, items: Any, *, exclusive: bool) -> str:
        if isinstance(items[0], str):
            if self._file.syntax == "editions":
                return ", ".join(items)
            return ", ".join(literals.quote(name.encode()) for name in items)
        maximum = FIELD_NUMBER_MAX if exclusive else 2**31 - 1
        return ", ".join(_range(item.start, item.end - exclusive, maximum) for item in items)

    def _extensions(
        self, extensions: Any, types: Any, path: tuple[int, ...], types_path: tuple[int, ...], indent: str
    ) -> Iterator[str]:
        extendee = None
        for index, extension in enumerate(extensions):
            if extension.extendee != extendee:
                if extendee is not None:
                    yield f"{indent}}}"
                extendee = extension.extendee
                if not indent:
                    yield ""
                yield f"{indent}extend {extendee} {{"
            yield from self._field(extension, types, (*path, index), types_path, indent + _INDENT)
        if extendee is not None:
            yield f"{indent}}}"

    def _service(self, service: Any, path: tuple[int, ...]) -> Iterator[str]:
        yield from self._commented(path, f"service {service.name} {{", "")
        for option in options.printed(service.options):
            yield f"{_INDENT}option {option};"
        for index, method in enumerate(service.method):
            takes = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            gives = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            head = f"rpc {method.name} ({takes}) returns ({gives})"
            settings = options.printed(method.options)
            place = (*path, 2, index)
            if not settings:
                yield from self._commented(place, f"{head};", _INDENT)
                continue
            yield from self._commented(place, f"{head} {{", _INDENT)
            for option in settings:
                yield f"{_INDENT * 2}option {option};"
            yield f"{_INDENT}}}"
        yield "}"


def default_json_name(name: str) -> str:
    """Return the default JSON name of a field.

    >>> default_json_name("tail_number"), default_json_name("_a__b1")
    ('tailNumber', 'AB1')
    """
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _own_type(field: Any, types: Any) -> Any:
    """Return the message type that a map or a group implies, None for any other field."""
    simple = field.type_name.rpartition(".")[2]
    for inner in types:
        if inner.name == simple and (inner.options.map_entry or field.type == _Field.TYPE_GROUP):
            return inner
    return None


def _groups(fields: Any) -> set[str]:
    return {field.type_name.rpartition(".")[2] for field in fields if field.type == _Field.TYPE_GROUP}


def _type(field: Any) -> str:
    return str(field.type_name or _SCALAR_NAMES[field.type])


def _default(field: Any) -> str:
    if field.type == _Field.TYPE_STRING:
        return literals.quote(field.default_value.encode())
    return f'"{field.default_value}"' if field.type == _Field.TYPE_BYTES else str(field.default_value)


def _range(first: int, last: int, maximum: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == maximum else last}"


def _bracketed(settings: list[str]) -> str:
    return f" [{', '.join(settings)}]" if settings else ""
