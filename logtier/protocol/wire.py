"""Primitive types of the hand-written messages (Kafka protocol guide, "Protocol Primitive Types")."""

import struct

_LENGTH = struct.Struct(">h")
_ONE_BYTE = [bytes([value]) for value in range(128)]


def unsigned_varint(value: int) -> bytes:
    """Encode an UNSIGNED_VARINT: seven bits a byte, the lowest first.

    >>> unsigned_varint(300).hex()
    'ac02'
    """
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_length(count: int) -> bytes:
    """Encode the length of a compact array, string or bytes: the length plus one, zero for null.

    >>> compact_length(0), compact_length(200).hex()
    (b'\\x01', 'c901')
    """
    return unsigned_varint(count + 1)


def compact_string(text: str | None) -> bytes:
    """Encode a COMPACT_NULLABLE_STRING.

    >>> compact_string("ab"), compact_string(None)
    (b'\\x03ab', b'\\x00')
    """
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


def string(text: str) -> bytes:
    """Encode a STRING.

    >>> string("ab")
    b'\\x00\\x02ab'
    """
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def read_unsigned_varint(frame: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the value at `position` and its end; IndexError beyond the frame, ValueError above five bytes.

    >>> read_unsigned_varint(b"\\xac\\x02", 0)
    (300, 2)
    """
    byte = frame[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    for shift in range(7, 35, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("an unsigned varint has more than five bytes")


def skip_tagged_fields(frame: bytes | memoryview, position: int) -> int:
    """Return the end of the tagged fields at `position` (KIP-482), nearly always one zero byte."""
    if frame[position] == 0:
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise ValueError("a tagged field exceeds the frame")
    return position
