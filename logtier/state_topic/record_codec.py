"""The encoding of a coordinator's records: Kafka's primitive types, plain and flexible (KIP-482).

Plain strings have int16 lengths, -1 is null; flexible ones have unsigned varint lengths plus one, 0 is null, and every
structure ends with its tagged fields.
"""

import struct
from collections.abc import Mapping
from uuid import UUID

from headwater.logtier.protocol.wire import unsigned_varint

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_UUID_BYTES = 16


class CorruptStateRecordError(Exception):
    """A record of a coordinator's topic has no known format."""


class RecordReader:
    """Reads one key or value from its beginning; struct.error or ValueError for invalid bytes."""

    __slots__ = ("_data", "_is_flexible", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._is_flexible = False

    def begin_value(self, version_max: int, flexible_from: int) -> int:
        """Read the version of a value, which is flexible from `flexible_from` on; ValueError above `version_max`."""
        version = self.int16()
        if not 0 <= version <= version_max:
            raise ValueError(f"unknown version {version}")
        self._is_flexible = version >= flexible_from
        return version

    def int8(self) -> int:
        """Read a signed byte."""
        return self._unpack(_INT8)

    def int16(self) -> int:
        """Read an int16."""
        return self._unpack(_INT16)

    def int32(self) -> int:
        """Read an int32."""
        return self._unpack(_INT32)

    def int64(self) -> int:
        """Read an int64."""
        return self._unpack(_INT64)

    def uuid(self) -> UUID:
        """Read a UUID of 16 bytes."""
        return UUID(bytes=self._take(_UUID_BYTES))

    def string(self) -> str:
        """Read a string; ValueError if it is null."""
        text = self.nullable_string()
        if text is None:
            raise ValueError("a string is null")
        return text

    def nullable_string(self) -> str | None:
        """Read a string or null."""
        size = self._varint() - 1 if self._is_flexible else self.int16()
        if size == -1:
            return None
        if size < -1:
            raise ValueError(f"a string of {size} bytes")
        return self._take(size).decode()

    def sized_bytes(self) -> bytes:
        """Read bytes with their length; ValueError if they are null."""
        size = self._varint() - 1 if self._is_flexible else self.int32()
        if size < 0:
            raise ValueError(f"{size} bytes")
        return self._take(size)

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        self._take(size)

    def array_length(self) -> int:
        """Read the length of an array; ValueError if it is null."""
        count = self._array_length()
        if count < 0:
            raise ValueError(f"an array of {count} elements")
        return count

    def nullable_array_length(self) -> int:
        """Read the length of an array; 0 if it is null."""
        return max(self._array_length(), 0)

    def _array_length(self) -> int:
        count = self._varint() - 1 if self._is_flexible else self.int32()
        if count > len(self._data):
            raise ValueError(f"an array of {count} elements")
        return count

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields at the end of a flexible structure; {} in a plain one."""
        if not self._is_flexible:
            return {}
        return {self._varint(): self._take(self._varint()) for _ in range(self.tag_count())}

    def tag_count(self) -> int:
        """Read the number of tagged fields."""
        count = self._varint()
        if count > len(self._data):
            raise ValueError(f"{count} tagged fields")
        return count

    def nested(self, data: bytes) -> "RecordReader":
        """Return a reader of a tagged field's bytes with the same flexibility."""
        reader = RecordReader(data)
        reader._is_flexible = self._is_flexible
        return reader

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a varint has more than five bytes")

    def _unpack(self, kind: struct.Struct) -> int:
        value: int = kind.unpack_from(self._data, self._position)[0]
        self._position += kind.size
        return value

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ValueError(f"{size} bytes are wanted, {len(self._data) - self._position} remain")
        data = self._data[self._position : end]
        self._position = end
        return data


class FlexibleWriter:
    """Builds one flexible value; the methods match those of RecordReader."""

    __slots__ = ("_parts",)

    def __init__(self, version: int | None = None) -> None:
        self._parts: list[bytes] = [] if version is None else [_INT16.pack(version)]

    def int8(self, value: int) -> "FlexibleWriter":
        """Write a signed byte."""
        self._parts.append(_INT8.pack(value))
        return self

    def int32(self, value: int) -> "FlexibleWriter":
        """Write an int32."""
        self._parts.append(_INT32.pack(value))
        return self

    def int64(self, value: int) -> "FlexibleWriter":
        """Write an int64."""
        self._parts.append(_INT64.pack(value))
        return self

    def uuid(self, value: UUID) -> "FlexibleWriter":
        """Write a UUID of 16 bytes."""
        self._parts.append(value.bytes)
        return self

    def string(self, text: str | None) -> "FlexibleWriter":
        """Write a string or null."""
        if text is None:
            self._parts.append(b"\0")
        else:
            self.sized_bytes(text.encode())
        return self

    def sized_bytes(self, data: bytes) -> "FlexibleWriter":
        """Write bytes with their length."""
        self._parts += (unsigned_varint(len(data) + 1), data)
        return self

    def array(self, count: int) -> "FlexibleWriter":
        """Write the length of an array; its elements follow."""
        self._parts.append(unsigned_varint(count + 1))
        return self

    def tags(self, fields: Mapping[int, bytes] | None = None) -> "FlexibleWriter":
        """Write the tagged fields at the end of a structure."""
        fields = fields or {}
        self._parts.append(unsigned_varint(len(fields)))
        for tag, data in sorted(fields.items()):
            self._parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
        return self

    def to_bytes(self) -> bytes:
        """Return the written bytes."""
        return b"".join(self._parts)
