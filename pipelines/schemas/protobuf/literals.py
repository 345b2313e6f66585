r"""Texts and numbers in the notation of `.proto` files."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63,
}  # fmt: skip
_ESCAPE: Final = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\]+)", re.DOTALL
)


def unquote(literal: str) -> bytes:
    r"""Return the bytes of a quoted text.

    >>> unquote(r'"a\n\x41\101"')
    b'a\nAA'

    Raises:
        ValueError: the literal contains an unknown escape.
    """
    found = bytearray()
    for hexadecimal, octal, four, eight, letter, plain in _ESCAPE.findall(literal[1:-1]):
        if plain:
            found += plain.encode()
        elif hexadecimal:
            found.append(int(hexadecimal, 16))
        elif octal:
            found.append(int(octal, 8) & 255)
        elif four or eight:
            found += chr(int(four or eight, 16)).encode()
        elif letter in _ESCAPES:
            found.append(_ESCAPES[letter])
        else:
            raise ValueError(f"unknown escape \\{letter}")
    return bytes(found)


def quote(data: bytes) -> str:
    r"""Quote bytes as a text; UTF-8 remains readable.

    >>> quote('a"ü\n'.encode()), quote(b"\xff")
    ('"a\\"ü\\n"', '"\\377"')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return '"' + escape(data) + '"'
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(named.get(c) or (c if c.isprintable() else escape(c.encode())) for c in text) + '"'


def escape(data: bytes) -> str:
    r"""Escape bytes in C's notation, which descriptors use for default values of bytes.

    >>> escape(b"a\x00")
    'a\\000'
    """
    return "".join(chr(b) if 32 <= b < 127 and b not in (34, 39, 92) else f"\\{b:03o}" for b in data)


def integer(text: str) -> int:
    """Parse a decimal, hexadecimal or octal integer.

    >>> integer("12"), integer("0x1F"), integer("017")
    (12, 31, 15)
    """
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)
