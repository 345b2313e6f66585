"""The effect of a `.proto` file's change on readers.

Field numbers identify fields. The rules, and the names of the problems, are those of Confluent's registry, which follow
protobuf's advice on updating a message. In addition to Confluent's rules, the comparison reports a field that becomes
repeated or singular (protobuf packs numbers), a field that becomes required, and a field that uses a reserved number or
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2

from headwater.pipelines.schemas.errors import PROBLEMS_MAX, Problem

_Field: Final = descriptor_pb2.FieldDescriptorProto
_GENERAL: Final = "number"
SCALAR_KINDS: Final = {
    _Field.TYPE_INT32: _GENERAL,
    _Field.TYPE_INT64: _GENERAL,
    _Field.TYPE_UINT32: _GENERAL,
    _Field.TYPE_UINT64: _GENERAL,
    _Field.TYPE_BOOL: _GENERAL,
    _Field.TYPE_ENUM: _GENERAL,
    _Field.TYPE_SINT32: "zigzag number",
    _Field.TYPE_SINT64: "zigzag number",
    _Field.TYPE_STRING: "text or bytes",
    _Field.TYPE_BYTES: "text or bytes",
    _Field.TYPE_FIXED32: "fixed32",
    _Field.TYPE_SFIXED32: "fixed32",
    _Field.TYPE_FIXED64: "fixed64",
    _Field.TYPE_SFIXED64: "fixed64",
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_DOUBLE: "double",
}
"""Types with the same encoding on the wire."""


@dataclass(frozen=True, slots=True)
class _Type:
    """A message and its file."""

    message: Any
    package: str
    local_name: str
    imported: bool


class FileTypes:
    """Every message of a file and of its imports, by full name."""

    def __init__(self, file: Any, imported: Mapping[str, Any]) -> None:
        self.file = file
        self._types: dict[str, _Type] = {}
        for other in imported.values():
            self._collect(other, imported=True)
        self._collect(file, imported=False)

    def of(self, full_name: str) -> _Type | None:
        """Return the message with a full name, given with its leading dot."""
        return self._types.get(full_name)

    def _collect(self, file: Any, *, imported: bool) -> None:
        def collect(messages: Any, prefix: str) -> None:
            for message in messages:
                name = f"{prefix}{message.name}"
                full_name = f".{file.package}.{name}" if file.package else f".{name}"
                self._types[full_name] = _Type(message, file.package, name, imported)
                collect(message.nested_type, f"{name}.")

        collect(file.message_type, "")


def problems(original: FileTypes, update: FileTypes) -> list[Problem]:
    """Return why data written with `original` may be misread with `update`; empty if it never is."""
    found: list[Problem] = []
    if original.file.package != update.file.package:
        text = f"the package {original.file.package!r} became {update.file.package!r}"
        found.append(Problem("PACKAGE_CHANGED", "#/", text))
    comparison = _Comparison(original, update)
    for problem in comparison.types(original.file.message_type, update.file.message_type, "#"):
        found.append(problem)
        if len(found) >= PROBLEMS_MAX:
            break
    return found


class _Comparison:
    """One comparison; each imported message is compared once, where a field first uses it."""

    def __init__(self, original: FileTypes, update: FileTypes) -> None:
        self._original = original
        self._update = update
        self._compared: set[tuple[int, int]] = set()

    def types(self, original: Any, update: Any, path: str) -> Iterator[Problem]:
        """Yield the problems of the messages in one scope."""
        read = {message.name: message for message in update}
        for message in original:
            if message.options.map_entry:
                continue
            where = f"{path}/{message.name}"
            if message.name not in read:
                yield Problem("MESSAGE_REMOVED", where, f"the message {message.name} was removed")
            else:
                yield from self._messages(message, read[message.name], where)

    def _messages(self, original: Any, update: Any, path: str) -> Iterator[Problem]:
        pair = (id(original), id(update))
        if pair in self._compared:
            return
        self._compared.add(pair)
        yield from _oneofs(original, update, path)
        written = {field.number: field for field in original.field}
        read = {field.number: field for field in update.field}
        for number in sorted(written.keys() | read.keys()):
            where = f"{path}/{number}"
            before: Any = written.get(number)
            after: Any = read.get(number)
            if after is None:
                if before.label == _Field.LABEL_REQUIRED:
                    text = f"the required field {before.name} was removed"
                    yield Problem("REQUIRED_FIELD_REMOVED", where, text)
            elif before is None:
                yield from _added(after, original, where)
            else:
                yield from self._fields(before, after, where)
        yield from self.types(original.nested_type, update.nested_type, path)

    def _fields(self, original: Any, update: Any, path: str) -> Iterator[Problem]:
        if update.label == _Field.LABEL_REQUIRED and original.label != _Field.LABEL_REQUIRED:
            yield Problem("REQUIRED_FIELD_ADDED", path, f"the field {update.name} is required now")
        before, after = self._map_entry(self._original, original), self._map_entry(self._update, update)
        if before is not None and after is not None:
            for one, other in zip(before.field, after.field, strict=True):
                yield from self._field_types(one, other, path)
            return
        if before is not None or after is not None:
            text = f"the field {update.name} {'became' if after is not None else 'is no longer'} a map"
            yield Problem("FIELD_KIND_CHANGED", path, text)
            return
        changed = (original.label == _Field.LABEL_REPEATED) != (update.label == _Field.LABEL_REPEATED)
        if changed and original.type in SCALAR_KINDS and SCALAR_KINDS[original.type] != "text or bytes":
            text = f"the field {update.name} {'became' if update.label == _Field.LABEL_REPEATED else 'is not'} repeated"
            yield Problem("FIELD_NUMERIC_LABEL_CHANGED", path, text)
        yield from self._field_types(original, update, path)

    def _field_types(self, original: Any, update: Any, path: str) -> Iterator[Problem]:
        before, after = SCALAR_KINDS.get(original.type), SCALAR_KINDS.get(update.type)
        if before is None and after is None:
            yield from self._named_types(original, update, path)
        elif before is None or after is None:
            yield Problem("FIELD_KIND_CHANGED", path, f"the field {update.name} was a {_kind(original)}")
        elif before != after:
            text = f"the field {update.name} was a {before} and is a {after} now"
            yield Problem("FIELD_SCALAR_KIND_CHANGED", path, text)

    def _named_types(self, original: Any, update: Any, path: str) -> Iterator[Problem]:
        before, after = self._original.of(original.type_name), self._update.of(update.type_name)
        text = f"the field {update.name} was a {original.type_name[1:]} and is a {update.type_name[1:]} now"
        if original.type != update.type:
            yield Problem("FIELD_KIND_CHANGED", path, f"the field {update.name} is a group no longer, or is one now")
        elif before is None or after is None:
            # Protobuf's own types: their name identifies them.
            if original.type_name != update.type_name:
                yield Problem("FIELD_NAMED_TYPE_CHANGED", path, text)
        elif before.local_name != after.local_name:
            yield Problem("FIELD_NAMED_TYPE_CHANGED", path, text)
        elif before.imported or after.imported:
            inner = list(self._messages(before.message, after.message, f"{path}/{after.local_name}"))
            yield from inner
            if inner:
                yield Problem("FIELD_NAMED_TYPE_CHANGED", path, f"the type of the field {update.name} has changed")

    @staticmethod
    def _map_entry(types: FileTypes, field: Any) -> Any:
        found = types.of(field.type_name) if field.type == _Field.TYPE_MESSAGE else None
        return found.message if found is not None and found.message.options.map_entry else None


def _kind(field: Any) -> str:
    return SCALAR_KINDS.get(field.type, "message")


def _added(field: Any, original: Any, path: str) -> Iterator[Problem]:
    if field.label == _Field.LABEL_REQUIRED:
        yield Problem("REQUIRED_FIELD_ADDED", path, f"the required field {field.name} was added")
    if any(reserved.start <= field.number < reserved.end for reserved in original.reserved_range):
        yield Problem("RESERVED_NUMBER_USED", path, f"the number of the field {field.name} was reserved")
    if field.name in original.reserved_name:
        yield Problem("RESERVED_NAME_USED", path, f"the name of the field {field.name} was reserved")


def _oneof_members(message: Any) -> dict[int, str]:
    """Map field numbers to the oneofs that contain them; the synthetic oneofs of `optional` fields are excluded."""
    return {
        field.number: message.oneof_decl[field.oneof_index].name
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }


def _oneofs(original: Any, update: Any, path: str) -> Iterator[Problem]:
    before, after = _oneof_members(original), _oneof_members(update)
    fields_before = {field.number: field for field in original.field}
    fields_after = {field.number for field in update.field}
    for oneof in dict.fromkeys(after.values()):
        members = [number for number, name in after.items() if name == oneof]
        moved = [number for number in members if number in fields_before and number not in before]
        old_oneofs = {before[number] for number in members if number in before}
        if len(moved) > 1:
            names = ", ".join(fields_before[number].name for number in moved)
            text = f"{names} could be set together before, and share the oneof {oneof} now"
            yield Problem("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{oneof}", text)
        elif moved and old_oneofs:
            text = f"{fields_before[moved[0]].name} joined fields that had the oneof for themselves"
            yield Problem("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{oneof}", text)
        elif len(old_oneofs) > 1:
            text = f"fields of {', '.join(sorted(old_oneofs))} could be set together before"
            yield Problem("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{oneof}", text)
    for number, oneof in before.items():
        others = (other for other, name in before.items() if name == oneof)
        is_left = oneof in after.values() or any(other in after for other in others)
        if is_left and number not in fields_after:
            text = f"{fields_before[number].name} was removed from the oneof: readers see nothing set"
            yield Problem("ONEOF_FIELD_REMOVED", f"{path}/{oneof}/{number}", text)
