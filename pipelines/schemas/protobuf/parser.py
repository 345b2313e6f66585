"""Parses `.proto` text to a `FileDescriptorProto`: proto2, proto3 and editions.

Type names remain as written: `linking` resolves them.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2

from headwater.pipelines.schemas.errors import DEPTH_MAX, InvalidSchemaError
from headwater.pipelines.schemas.protobuf import literals
from headwater.pipelines.schemas.protobuf.lexer import Kind
from headwater.pipelines.schemas.protobuf.options import Option, apply
from headwater.pipelines.schemas.protobuf.reader import FIELD_NUMBER_MAX, Reader

_Field: Final = descriptor_pb2.FieldDescriptorProto
SCALARS: Final = {
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "fixed64": _Field.TYPE_FIXED64,
    "fixed32": _Field.TYPE_FIXED32,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "uint32": _Field.TYPE_UINT32,
    "sfixed32": _Field.TYPE_SFIXED32,
    "sfixed64": _Field.TYPE_SFIXED64,
    "sint32": _Field.TYPE_SINT32,
    "sint64": _Field.TYPE_SINT64,
}
_LABELS: Final = {
    "optional": _Field.LABEL_OPTIONAL,
    "required": _Field.LABEL_REQUIRED,
    "repeated": _Field.LABEL_REPEATED,
}
_EDITIONS: Final = {
    name.removeprefix("EDITION_"): number
    for name, number in descriptor_pb2.Edition.items()
    if re.fullmatch(r"EDITION_\d{4}", name)
}
_ENUM_NUMBER_MAX: Final = 2**31 - 1


def parse(source: str) -> descriptor_pb2.FileDescriptorProto:
    """Parse a file.

    Raises:
        InvalidSchemaError: the source is not a `.proto` file; the message states line and column.
    """
    return _Parser(source).file()


class _Parser:
    """One pass over a file, by recursive descent."""

    def __init__(self, source: str) -> None:
        self._reader = Reader(source)
        self._file = descriptor_pb2.FileDescriptorProto()

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """Parse the whole file."""
        reader, file = self._reader, self._file
        comments = reader.leading_comments()
        if reader.at("syntax") or reader.at("edition"):
            self._syntax(reader.next().text)
            reader.located((12,), comments)
        while reader.token.kind is not Kind.END:
            self._declaration()
        file.source_code_info.CopyFrom(reader.info)
        return file

    def _syntax(self, word: str) -> None:
        reader = self._reader
        reader.take("=")
        place, text = reader.token.place, reader.string()
        if word == "syntax":
            if text not in ("proto2", "proto3"):
                raise InvalidSchemaError(f"{place}: the syntax {text[:60]!r} is not known: proto2 and proto3 are")
            self._file.syntax = text
        else:
            if text not in _EDITIONS:
                raise InvalidSchemaError(f"{place}: the edition {text[:60]!r} is not known: {', '.join(_EDITIONS)} are")
            self._file.syntax = "editions"
            self._file.edition = _EDITIONS[text]
        reader.take(";")

    def _declaration(self) -> None:
        reader, file = self._reader, self._file
        comments = reader.leading_comments()
        if reader.skip(";"):
            return
        if reader.skip("package"):
            if file.package:
                raise reader.fail("one package only")
            file.package = reader.type_name()
            reader.take(";")
            reader.located((2,), comments)
        elif reader.skip("import"):
            self._import()
        elif reader.skip("option"):
            self._option(file.options)
            reader.located((8, len(file.options.ListFields())), comments)
        elif reader.skip("message"):
            self._message(file.message_type.add(), (4, len(file.message_type) - 1), comments, 1)
        elif reader.skip("enum"):
            self._enum(file.enum_type.add(), (5, len(file.enum_type) - 1), comments)
        elif reader.skip("extend"):
            self._extend(file.extension, file.message_type, (7,), (4,), 1)
        elif reader.skip("service"):
            self._service(file.service.add(), (6, len(file.service) - 1), comments)
        else:
            raise reader.fail("a declaration (message, enum, service, import, package, option, extend)")

    def _import(self) -> None:
        reader, file = self._reader, self._file
        public, weak = reader.skip("public"), reader.skip("weak")
        name = reader.string()
        reader.take(";")
        if name in file.dependency:
            raise InvalidSchemaError(f"{reader.token.place}: {name!r} is imported twice")
        file.dependency.append(name)
        if public:
            file.public_dependency.append(len(file.dependency) - 1)
        if weak:
            file.weak_dependency.append(len(file.dependency) - 1)

    def _option(self, options: Any) -> None:
        apply(self._reader.option(), options)
        self._reader.take(";")

    def _message(self, message: Any, path: tuple[int, ...], comments: Any, depth: int) -> None:
        message.name = self._reader.name()
        self._message_body(message, path, comments, depth)

    def _message_body(self, message: Any, path: tuple[int, ...], comments: Any, depth: int) -> None:
        reader = self._reader
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"{reader.token.place}: messages nest deeper than {DEPTH_MAX}")
        reader.take("{")
        reader.located(path, comments)
        while not reader.skip("}"):
            self._member(message, path, depth)
        _add_synthetic_oneofs(message)

    def _member(self, message: Any, path: tuple[int, ...], depth: int) -> None:
        reader = self._reader
        comments = reader.leading_comments()
        if reader.skip(";"):
            return
        if reader.at("message"):
            reader.next()
            self._message(message.nested_type.add(), (*path, 3, len(message.nested_type) - 1), comments, depth + 1)
        elif reader.at("enum"):
            reader.next()
            self._enum(message.enum_type.add(), (*path, 4, len(message.enum_type) - 1), comments)
        elif reader.at("oneof"):
            reader.next()
            self._oneof(message, path, comments, depth)
        elif reader.at("option"):
            reader.next()
            self._option(message.options)
        elif reader.at("extend"):
            reader.next()
            self._extend(message.extension, message.nested_type, (*path, 6), (*path, 3), depth + 1)
        elif reader.at("reserved"):
            reader.next()
            self._reserved(message, FIELD_NUMBER_MAX, exclusive=True)
        elif reader.at("extensions"):
            reader.next()
            self._extensions(message)
        else:
            self._field(message.field, message.nested_type, (*path, 2), (*path, 3), depth)

    def _field(
        self, fields: Any, types: Any, path: tuple[int, ...], types_path: tuple[int, ...], depth: int, oneof: int = -1
    ) -> Any:
        reader = self._reader
        comments = reader.leading_comments()
        field = fields.add()
        here = (*path, len(fields) - 1)
        field.label = _Field.LABEL_OPTIONAL
        if oneof >= 0:
            field.oneof_index = oneof
        elif reader.token.text in _LABELS and reader.token.kind is Kind.NAME:
            place, label = reader.token.place, reader.next().text
            if self._file.syntax == "editions" and label != "repeated":
                raise InvalidSchemaError(f"{place}: editions have features.field_presence instead of {label}")
            field.label = _LABELS[label]
            field.proto3_optional = label == "optional" and self._file.syntax == "proto3"
            if not field.proto3_optional:
                field.ClearField("proto3_optional")
            if reader.at("map"):
                raise reader.fail("a type, as a map has no label")
        elif self._file.syntax in ("", "proto2") and not reader.at("map"):
            raise reader.fail("optional, required or repeated, as a field of proto2 has it")
        if reader.at("map") and self._opens_map():
            self._map(field, types)
        elif reader.skip("group"):
            field.type = _Field.TYPE_GROUP
            place, group = reader.token.place, types.add(name=reader.name())
            if not group.name[0].isupper():
                raise InvalidSchemaError(f"{place}: the name of a group begins with a capital letter")
            field.name, field.type_name = group.name.lower(), group.name
            self._number_and_options(field)
            self._message_body(group, (*types_path, len(types) - 1), comments, depth + 1)
            return field
        else:
            place, name = reader.token.place, reader.type_name()
            if name in SCALARS:
                field.type = SCALARS[name]
            else:
                field.type_name = name
            if reader.token.kind is not Kind.NAME:
                raise InvalidSchemaError(f"{place}: expected a field (type, name, = and number)")
            field.name = reader.name()
        self._number_and_options(field)
        reader.take(";")
        reader.located(here, comments)
        return field

    def _opens_map(self) -> bool:
        reader = self._reader
        reader.next()
        if reader.at("<"):
            return True
        raise reader.fail("'<' after map")

    def _map(self, field: Any, types: Any) -> None:
        reader = self._reader
        reader.take("<")
        key = reader.type_name()
        reader.take(",")
        value = reader.type_name()
        reader.take(">")
        field.name = reader.name()
        field.label = _Field.LABEL_REPEATED
        entry = types.add(name=_entry_name(field.name))
        entry.options.map_entry = True
        for number, (name, type_name) in enumerate((("key", key), ("value", value)), 1):
            part = entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
            if type_name in SCALARS:
                part.type = SCALARS[type_name]
            else:
                part.type_name = type_name
        field.type_name = entry.name

    def _number_and_options(self, field: Any) -> None:
        reader = self._reader
        reader.take("=")
        place = reader.token.place
        field.number = _checked(reader.whole(), FIELD_NUMBER_MAX, place)
        for option in reader.compact_options():
            if option.parts == (("default", False),):
                field.default_value = _default(option, field)
            elif option.parts == (("json_name", False),):
                if option.value.text is None:
                    raise InvalidSchemaError(f"{option.place}: json_name is a text in quotes")
                field.json_name = option.value.text.decode(errors="replace")
            else:
                apply(option, field.options)

    def _oneof(self, message: Any, path: tuple[int, ...], comments: Any, depth: int) -> None:
        reader = self._reader
        oneof = message.oneof_decl.add(name=reader.name())
        index = len(message.oneof_decl) - 1
        reader.take("{")
        reader.located((*path, 8, index), comments)
        while not reader.skip("}"):
            if reader.at("option"):
                reader.next()
                self._option(oneof.options)
            else:
                self._field(message.field, message.nested_type, (*path, 2), (*path, 3), depth, index)

    def _reserved(self, message: Any, maximum: int, *, exclusive: bool) -> None:
        reader = self._reader
        if reader.token.kind in (Kind.TEXT, Kind.NAME):
            read = reader.name if self._file.syntax == "editions" else reader.string
            while True:
                message.reserved_name.append(read())
                if not reader.skip(","):
                    break
        else:
            for first, last in reader.ranges(maximum):
                place = reader.token.place
                message.reserved_range.add(
                    start=_checked(first, maximum, place), end=_checked(last, maximum, place) + exclusive
                )
        reader.take(";")

    def _extensions(self, message: Any) -> None:
        reader = self._reader
        ranges = [
            message.extension_range.add(
                start=_checked(first, FIELD_NUMBER_MAX, reader.token.place),
                end=_checked(last, FIELD_NUMBER_MAX, reader.token.place) + 1,
            )
            for first, last in reader.ranges(FIELD_NUMBER_MAX)
        ]
        for option in reader.compact_options():
            for extension_range in ranges:
                apply(option, extension_range.options)
        reader.take(";")

    def _extend(
        self, extensions: Any, types: Any, path: tuple[int, ...], types_path: tuple[int, ...], depth: int
    ) -> None:
        reader = self._reader
        extendee = reader.type_name()
        reader.take("{")
        while not reader.skip("}"):
            self._field(extensions, types, path, types_path, depth).extendee = extendee

    def _enum(self, enum: Any, path: tuple[int, ...], comments: Any) -> None:
        reader = self._reader
        enum.name = reader.name()
        reader.take("{")
        reader.located(path, comments)
        while not reader.skip("}"):
            comments = reader.leading_comments()
            if reader.skip(";"):
                continue
            if reader.at("option"):
                reader.next()
                self._option(enum.options)
            elif reader.at("reserved"):
                reader.next()
                self._reserved(enum, _ENUM_NUMBER_MAX, exclusive=False)
            else:
                value = enum.value.add(name=reader.name())
                reader.take("=")
                place = reader.token.place
                value.number = _checked(reader.whole(), _ENUM_NUMBER_MAX, place)
                for option in reader.compact_options():
                    apply(option, value.options)
                reader.take(";")
                reader.located((*path, 2, len(enum.value) - 1), comments)

    def _service(self, service: Any, path: tuple[int, ...], comments: Any) -> None:
        reader = self._reader
        service.name = reader.name()
        reader.take("{")
        reader.located(path, comments)
        while not reader.skip("}"):
            comments = reader.leading_comments()
            if reader.skip(";"):
                continue
            if reader.skip("option"):
                self._option(service.options)
                continue
            reader.take("rpc")
            method = service.method.add(name=reader.name())
            method.input_type, method.client_streaming = self._message_type()
            reader.take("returns")
            method.output_type, method.server_streaming = self._message_type()
            if reader.skip("{"):
                while not reader.skip("}"):
                    if not reader.skip(";"):
                        reader.take("option")
                        self._option(method.options)
                reader.skip(";")
            else:
                reader.take(";")
            reader.located((*path, 2, len(service.method) - 1), comments)

    def _message_type(self) -> tuple[str, bool]:
        reader = self._reader
        reader.take("(")
        streaming = reader.at("stream")
        if streaming:
            reader.next()
        name = reader.type_name()
        reader.take(")")
        return name, streaming


def _checked(number: int, maximum: int, place: str) -> int:
    if not -maximum - 1 <= number <= maximum:
        raise InvalidSchemaError(f"{place}: the number {number} is out of range")
    return number


def _entry_name(field: str) -> str:
    """Return the name of a map's entry message, derived like the compiler's.

    >>> _entry_name("fares_by_route")
    'FaresByRouteEntry'
    """
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _default(option: Option, field: Any) -> str:
    value = option.value
    match field.type if field.HasField("type") else None:
        case _Field.TYPE_BYTES if value.text is not None:
            return literals.escape(value.text)
        case _Field.TYPE_STRING if value.text is not None:
            return value.text.decode(errors="replace")
        case _Field.TYPE_BYTES | _Field.TYPE_STRING:
            expected = "a text in quotes"
        case _Field.TYPE_FLOAT | _Field.TYPE_DOUBLE:
            if value.floating is not None:
                return repr(value.floating)
            if value.whole is not None:
                return str(value.whole)
            if value.name in ("inf", "nan"):
                return value.name
            expected = "a number"
        case _Field.TYPE_BOOL:
            if value.name in ("true", "false"):
                return value.name
            expected = "true or false"
        # The kind of a named type is unknown so far: only an enum has a default.
        case None:
            if value.name is not None:
                return value.name
            expected = "the name of an enum's value"
        case _:
            if value.whole is not None:
                return str(value.whole)
            expected = "a whole number"
    raise InvalidSchemaError(f"{option.place}: the default is {expected}")


def _add_synthetic_oneofs(message: Any) -> None:
    """Add each proto3 `optional` field's synthetic oneof after the declared ones, as descriptors require."""
    names = {oneof.name for oneof in message.oneof_decl} | {field.name for field in message.field}
    for field in message.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in names:
                name = f"X{name}"
            names.add(name)
            message.oneof_decl.add(name=name)
            field.oneof_index = len(message.oneof_decl) - 1
