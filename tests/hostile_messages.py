"""What can be wrong with a message: cut anywhere, with counts and lengths that lie, and values at their limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from tests.kio_messages import Token, varint

#: Counts and lengths that promise more than is there, or are none.
HOSTILE_NUMBERS: Final = (-2, -1, 0, 127, 1 << 15, 1 << 24, (1 << 31) - 1, -(1 << 31))
#: Unsigned varints that are too long, too big, or longer than they need to be.
HOSTILE_VARINTS: Final = (
    b"\x00",
    b"\x01",
    b"\x7f",
    varint(1 << 15),
    varint(1 << 24),
    varint((1 << 31) - 1),
    varint((1 << 32) - 1),
    varint((1 << 35) - 1),
    b"\x81\x80\x80\x80\x00",
    b"\xff" * 5,
    b"\xff" * 9 + b"\x01",
    b"\xff" * 12,
    b"\x80",
)
HOSTILE_MARKERS: Final = (b"\x00", b"\x02", b"\x7f", b"\x80")
_NOT_UTF8: Final = b"\xff\xc0\x80\xed\xa0\x80"


def cuts(parts: Sequence[Token]) -> Iterator[bytes]:
    """A message cut at every boundary of a field, and a byte after each."""
    whole = b"".join(part.data for part in parts)
    ends = {0}
    end = 0
    for part in parts:
        end += len(part.data)
        ends |= {end, end + 1}
    for end in sorted(ends):
        if end < len(whole):
            yield whole[:end]


def lies(parts: Sequence[Token]) -> Iterator[bytes]:
    """A message in which one field is replaced by each of what it must not or can hardly be."""
    for position, part in enumerate(parts):
        before = b"".join(each.data for each in parts[:position])
        after = b"".join(each.data for each in parts[position + 1 :])
        for replacement in _replacements(part):
            if replacement != part.data:
                yield before + replacement + after


def _replacements(part: Token) -> Iterator[bytes]:
    if part.kind == "marker":
        yield from HOSTILE_MARKERS
    elif part.is_compact:
        yield from HOSTILE_VARINTS
    elif part.kind in ("length", "count"):
        bits = 8 * len(part.data)
        for number in HOSTILE_NUMBERS:
            yield struct.pack(">h" if bits == 16 else ">i", max(-(1 << bits - 1), min(number, (1 << bits - 1) - 1)))
    elif part.data:
        size = len(part.data)
        yield from (b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), b"\x80" + bytes(size - 1))
        if part.kind == "bytes":
            yield (_NOT_UTF8 * size)[:size]
