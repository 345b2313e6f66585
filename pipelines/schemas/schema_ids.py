"""The schema id that precedes a value, as Confluent's serializers write it: a zero byte and four bytes of id. Pure.

Serializers can be configured to write ids in a record's headers; values without a preceding id are refused here.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER_BYTES: Final = 5
NO_VALUE: Final = "the value is null"
TOO_SHORT: Final = "the value is too short for the id of a schema"
NO_MAGIC: Final = (
    "the value does not begin with the id of a schema (a byte 0 and four of the id; ids in headers are not read)"
)


def header(schema_id: int) -> bytes:
    """Return the bytes that precede a value.

    >>> header(258)
    b'\\x00\\x00\\x00\\x01\\x02'
    """
    return struct.pack(">bI", 0, schema_id)
