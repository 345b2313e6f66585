"""A `.proto` file in the registry."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from headwater.api.registry.model import SchemaType
from headwater.api.registry.parsed import Dependencies, ParsedSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError, Problem
from headwater.pipelines.schemas.protobuf import differences
from headwater.pipelines.schemas.protobuf.linking import link
from headwater.pipelines.schemas.protobuf.parser import parse
from headwater.pipelines.schemas.protobuf.printer import printed

FILE_NAME: Final = "default.proto"
"""The name of a file that no other file imports."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A parsed file as written (`source`) and with resolved names (`linked`), and the linked references by name."""

    source: Any
    linked: Any
    imported: Mapping[str, Any]
    canonical: str
    schema_type: SchemaType = field(default=SchemaType.PROTOBUF, init=False)

    @classmethod
    def parse(cls, text: str, dependencies: Dependencies, *, new: bool) -> ProtobufSchema:
        """Parse a text, or a base64 descriptor: serializers of some languages send descriptors only.

        A `new` schema must follow the rules of protobuf's compiler.

        Raises:
            InvalidSchemaError: the text is neither, or imports a file that is not among the references.
        """
        imported: dict[str, Any] = {}
        for dependency in dependencies:
            if not isinstance(dependency.parsed, ProtobufSchema):
                raise InvalidSchemaError(f"the reference {dependency.name!r} is no Protobuf schema")
            imported[dependency.name] = dependency.parsed.linked
        source = _descriptor(text) if _BASE64.match(text) else parse(text)
        linked = link(source, FILE_NAME, imported, check_rules=new)
        return cls(source, linked, imported, printed(source))

    def normalized(self) -> str:
        """Return the text with full type names and fields ordered by number, without comments.

        Messages keep their order: serializers identify the message of a record by its position in the file.
        """
        file = descriptor_pb2.FileDescriptorProto()
        file.CopyFrom(self.source)
        file.ClearField("source_code_info")
        if not (file.public_dependency or file.weak_dependency):
            file.dependency.sort()
        for message, linked in zip(file.message_type, self.linked.message_type, strict=True):
            _normalize(message, linked)
        for enum in file.enum_type:
            _normalize_enum(enum)
        _normalize_fields(file.extension, self.linked.extension)
        for service, linked in zip(file.service, self.linked.service, strict=True):
            for method, linked_method in zip(service.method, linked.method, strict=True):
                method.input_type, method.output_type = linked_method.input_type, linked_method.output_type
        return printed(file)

    def formatted(self, form: str) -> str:
        """Return the text; `serialized` gives the linked descriptor in base64, for languages without a text parser."""
        if form == "serialized":
            return base64.b64encode(self.linked.SerializeToString(deterministic=True)).decode()
        return self.canonical

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why a reader with this schema misreads data written with `written`."""
        assert isinstance(written, ProtobufSchema)
        return differences.problems(
            differences.FileTypes(written.linked, written.imported), differences.FileTypes(self.linked, self.imported)
        )


def _descriptor(text: str) -> Any:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, DecodeError):
        # Whatever it is, the text's parser says what is wrong with it.
        return parse(text)
    file.ClearField("source_code_info")
    return file


def _normalize(message: Any, linked: Any) -> None:
    _normalize_fields(message.field, linked.field)
    _normalize_fields(message.extension, linked.extension)
    message.reserved_range.sort(key=lambda reserved: reserved.start)
    message.reserved_name.sort()
    for enum in message.enum_type:
        _normalize_enum(enum)
    for inner, linked_inner in zip(message.nested_type, linked.nested_type, strict=True):
        _normalize(inner, linked_inner)


def _normalize_fields(fields: Any, linked: Any) -> None:
    for part, linked_part in zip(fields, linked, strict=True):
        if linked_part.type_name:
            part.type_name = linked_part.type_name
        if linked_part.extendee:
            part.extendee = linked_part.extendee
    fields.sort(key=lambda part: (part.extendee, part.number))


def _normalize_enum(enum: Any) -> None:
    enum.reserved_range.sort(key=lambda reserved: reserved.start)
    enum.reserved_name.sort()
