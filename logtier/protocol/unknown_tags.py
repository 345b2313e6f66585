"""Removes tagged fields that a schema does not have (KIP-482): newer clients may send them, and they must be skipped.

kio rejects such fields, so a request that has one is rewritten without it, guided by kio's schema, and read again. Only
requests that failed to be read come here.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, cast, get_args

from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.protocol.schema_types import FIXED_BYTES, inner_type
from headwater.logtier.protocol.wire import read_unsigned_varint, unsigned_varint

#: Types preceded by their length plus one, 0 for null.
_COUNTED: Final = frozenset({"string", "bytes", "records"})

#: Copies the value at a position without unknown fields, and returns its end.
_Copy = Callable[[bytes, int, bytearray], int]


@dataclass(frozen=True, slots=True)
class _Entity:
    """How to copy the values of a flexible entity: the untagged fields, and the tagged ones by tag."""

    untagged: tuple[_Copy, ...]
    tagged: dict[int, _Copy]


def without_unknown_tags(entity: Any, body: bytes) -> bytes:
    """Return a request body without the tagged fields that `entity`, a flexible class of kio's, does not have.

    Bytes after the request are preserved.

    Raises:
        ProtocolViolationError: The bytes are not a valid request.
    """
    copied = bytearray()
    try:
        end = _copy_entity(_plan(entity), body, 0, copied)
    except (IndexError, ValueError) as error:
        raise ProtocolViolationError(f"malformed request: {error}") from None
    copied += body[end:]
    return bytes(copied)


@cache
def _plan(entity: Any) -> _Entity:
    untagged = []
    tagged = {}
    for field in fields(entity):
        tag = field.metadata.get("tag")
        copy = _field(field, is_tagged=tag is not None)
        if tag is None:
            untagged.append(copy)
        else:
            tagged[tag] = copy
    return _Entity(tuple(untagged), tagged)


def _field(field: Any, *, is_tagged: bool) -> _Copy:
    kind, is_array = inner_type(field.type)
    copy: _Copy
    if is_dataclass(kind):
        plan = _plan(cast("Any", kind))

        def copy(body: bytes, position: int, out: bytearray) -> int:
            return _copy_entity(plan, body, position, out)

        if not is_array and not is_tagged and NoneType in get_args(field.type):
            copy = _nullable(copy)
    else:
        copy = _primitive(field.metadata["kafka_type"])
    return _array(copy) if is_array else copy


def _primitive(kafka_type: str) -> _Copy:
    size = FIXED_BYTES.get(kafka_type)
    if size is not None:
        return lambda body, position, out: _copy_bytes(body, position, size, out)
    if kafka_type not in _COUNTED:
        raise TypeError(f"unknown type of a field: {kafka_type}")
    return _copy_counted


def _array(copy_element: _Copy) -> _Copy:
    def copy(body: bytes, position: int, out: bytearray) -> int:
        count, start = read_unsigned_varint(body, position)
        if count - 1 > len(body) - start:  # every element takes at least a byte
            raise ProtocolViolationError(f"an array claims {count - 1} elements in {len(body) - start} bytes")
        out += body[position:start]
        position = start
        for _ in range(count - 1):
            position = copy_element(body, position, out)
        return position

    return copy


def _nullable(copy_entity: _Copy) -> _Copy:
    """A structure preceded by a byte that is negative for null (KIP-893)."""

    def copy(body: bytes, position: int, out: bytearray) -> int:
        marker = body[position]
        out.append(marker)
        return position + 1 if marker >= 0x80 else copy_entity(body, position + 1, out)

    return copy


def _copy_entity(plan: _Entity, body: bytes, position: int, out: bytearray) -> int:
    for copy in plan.untagged:
        position = copy(body, position, out)
    count, position = read_unsigned_varint(body, position)
    kept = bytearray()
    kept_count = 0
    for _ in range(count):
        tag, position = read_unsigned_varint(body, position)
        size, position = read_unsigned_varint(body, position)
        if size > len(body) - position:
            raise ProtocolViolationError(f"a tagged field claims {size} bytes of {len(body) - position}")
        known = plan.tagged.get(tag)
        if known is not None:
            value = bytearray()
            if known(body, position, value) != position + size:
                raise ProtocolViolationError(f"a tagged field of {size} bytes has another length than it says")
            kept_count += 1
            kept += unsigned_varint(tag) + unsigned_varint(len(value)) + value
        position += size
    out += unsigned_varint(kept_count) + kept
    return position


def _copy_counted(body: bytes, position: int, out: bytearray) -> int:
    length, start = read_unsigned_varint(body, position)
    return _copy_bytes(body, position, start - position + max(0, length - 1), out)


def _copy_bytes(body: bytes, position: int, size: int, out: bytearray) -> int:
    end = position + size
    if end > len(body):
        raise ProtocolViolationError(f"a field claims {size} bytes of {len(body) - position}")
    out += body[position:end]
    return end
