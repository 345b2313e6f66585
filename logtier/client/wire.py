"""Cursor over a response body: checks every length before use."""

from __future__ import annotations

import struct

from headwater.logtier.protocol.wire import compact_length, read_unsigned_varint, skip_tagged_fields

__all__ = ["Cursor", "array_length", "string"]

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">ii")
_NO_TAGS = b"\0"


def string(value: str | None, *, flexible: bool) -> bytes:
    """Encodes a (nullable) string, compact in flexible versions (KIP-482).

    >>> string("ab", flexible=False).hex(), string("ab", flexible=True).hex()
    ('00026162', '036162')
    >>> string(None, flexible=False).hex(), string(None, flexible=True).hex()
    ('ffff', '00')
    """
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    data = value.encode()
    return (compact_length(len(data)) if flexible else _I16.pack(len(data))) + data


def array_length(count: int, *, flexible: bool) -> bytes:
    """Encodes the length of an array, which precedes its elements.

    >>> array_length(2, flexible=False).hex(), array_length(2, flexible=True).hex()
    ('00000002', '03')
    """
    return compact_length(count) if flexible else _I32.pack(count)


class Cursor:
    """Reads consecutive fields; raises ValueError if the bytes end too early."""

    __slots__ = ("_flexible", "data", "position")

    def __init__(self, data: memoryview, *, flexible: bool) -> None:
        self.data = data
        self.position = 0
        self._flexible = flexible

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Reads consecutive fixed-size numbers."""
        start = self.position
        if fields.size > len(self.data) - start:
            raise ValueError("the body ends inside a field")
        self.position = start + fields.size
        return fields.unpack_from(self.data, start)

    def array(self, *, element_bytes_min: int) -> int:
        """Reads an array's length (null counts as 0) and checks it against the remaining bytes."""
        if self._flexible:
            count, self.position = read_unsigned_varint(self.data, self.position)
            count -= 1
        else:
            (count,) = self.unpack(_I32)
        if count < 0:
            return 0
        if count * element_bytes_min > len(self.data) - self.position:
            raise ValueError(f"an array of {count} elements in {len(self.data) - self.position} bytes")
        return count

    def bytes_view(self) -> memoryview:
        """Reads nullable bytes as a view of the response; null becomes empty."""
        if self._flexible:
            size, self.position = read_unsigned_varint(self.data, self.position)
            size -= 1
        else:
            (size,) = self.unpack(_I32)
        return self._view(size)

    def raw(self, size: int) -> bytes:
        """Reads `size` bytes, such as those of a topic id."""
        return bytes(self._view(size))

    def string(self) -> str | None:
        """Reads a nullable string."""
        if self._flexible:
            size, self.position = read_unsigned_varint(self.data, self.position)
            size -= 1
        else:
            (size,) = self.unpack(_I16)
        return None if size < 0 else str(self._view(size), "utf-8")

    def _view(self, size: int) -> memoryview:
        if size < 0:
            return self.data[:0]
        start = self.position
        if size > len(self.data) - start:
            raise ValueError(f"{size} bytes announced, {len(self.data) - start} left")
        self.position = start + size
        return self.data[start : start + size]

    def tags(self) -> None:
        """Skips the tagged fields, which only flexible versions have."""
        if self._flexible:
            self.position = skip_tagged_fields(self.data, self.position)

    def current_leader(self, tag: int) -> tuple[int, int] | None:
        """Reads the tagged fields, which only flexible versions have; returns the leader's id and epoch (KIP-951)."""
        if not self._flexible:
            return None
        if self.data[self.position : self.position + 1] == _NO_TAGS:  # nearly always
            self.position += 1
            return None
        field = self.tagged().get(tag)
        if field is None:
            return None
        node_id, leader_epoch = _LEADER.unpack_from(field)
        return (node_id, leader_epoch) if node_id >= 0 else None

    def tagged(self) -> dict[int, memoryview]:
        """Reads the tagged fields of a flexible version: undecoded values by tag."""
        count, self.position = read_unsigned_varint(self.data, self.position)
        fields: dict[int, memoryview] = {}
        for _ in range(count):
            tag, self.position = read_unsigned_varint(self.data, self.position)
            size, self.position = read_unsigned_varint(self.data, self.position)
            fields[tag] = self._view(size)
        return fields
