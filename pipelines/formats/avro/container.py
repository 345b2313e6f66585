"""Avro's container files: a schema, then separately compressed blocks of values. Pure: cramjam provides the codecs."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from headwater.pipelines.formats.avro.arrays import Decoded
from headwater.pipelines.formats.avro.columns import parsed
from headwater.pipelines.formats.avro.reading import Reading
from headwater.pipelines.schemas.avro.types import AvroType
from headwater.pipelines.schemas.errors import InvalidSchemaError

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
BLOCK_BYTES_MAX: Final = 256 << 20  # decompressed; writers' blocks have some 64 KiB
METADATA_BYTES_MAX: Final = 16 << 20


class DamagedError(ValueError):
    """The bytes are not an Avro file, or are damaged; the message names the position."""


@dataclass(frozen=True, slots=True)
class Header:
    """A file's header; the blocks begin at `end`."""

    schema: AvroType
    codec: str
    sync: bytes
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block's values: the number of readable values, and the fault of the next value, if any."""

    decoded: Decoded
    rows: int
    fault: str | None


def header(content: bytes) -> Header:
    """Read a file's header. Raises DamagedError."""
    if not content.startswith(MAGIC):
        raise DamagedError("it does not begin as an Avro file")
    metadata: dict[str, bytes] = {}
    position = len(MAGIC)
    while True:
        count, position = _long(content, position)
        if count == 0:
            break
        if count < 0:
            count = -count
            _, position = _long(content, position)
        if count > len(content):
            raise DamagedError("its metadata is damaged")
        for _ in range(count):
            name, position = _bytes(content, position)
            value, position = _bytes(content, position)
            metadata[name.decode("utf-8", "replace")] = value
    end = position + SYNC_BYTES
    if end > len(content):
        raise DamagedError("it ends in its metadata")
    try:
        schema = parsed(metadata.get("avro.schema", b"").decode())
    except (InvalidSchemaError, UnicodeDecodeError) as error:
        raise DamagedError(f"its schema cannot be used: {error}") from None
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    return Header(schema, codec, content[position:end], end)


def blocks(content: bytes, header: Header, reading: Reading) -> Iterator[Block]:
    """Yield the blocks of a file, decoded by `reading`; a block with a fault is the last.

    Raises DamagedError after the last readable block, UnreadableError if the file's schema cannot be read.
    """
    entry = reading.add(header.schema)
    position = header.end
    while position < len(content):
        count, position = _long(content, position)
        data, position = _bytes(content, position)
        if content[position : position + SYNC_BYTES] != header.sync:
            raise DamagedError(f"a block is damaged before byte {position}")
        position += SYNC_BYTES
        data = _decompressed(data, header.codec)
        if not 0 <= count <= len(data):
            raise DamagedError(f"a block before byte {position} says that it has {count} values")
        values = np.frombuffer(data, np.uint8)
        values.flags.writeable = False
        starts, ends = np.zeros(count, np.int64), np.full(count, len(data), np.int64)
        decoded = Decoded(reading, values, starts, ends, np.full(count, entry, np.int64), are_chained=True)
        rows = min(decoded.errors, default=count)
        yield Block(decoded, rows, decoded.errors.get(rows))
        if rows < count:
            return


def _long(content: bytes, position: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
    raise DamagedError(f"it ends too early, or is damaged, at byte {position}")


def _bytes(content: bytes, position: int) -> tuple[bytes, int]:
    size, position = _long(content, position)
    if size < 0 or size > len(content) - position:
        raise DamagedError(f"it ends too early, or is damaged, at byte {position}")
    return content[position : position + size], position + size


def _decompressed(data: bytes, codec: str) -> bytes:
    import cramjam

    try:
        match codec:
            case "null":
                return data
            case "deflate":
                one = zlib.decompressobj(-15)
                found = one.decompress(data, BLOCK_BYTES_MAX)
                if one.unconsumed_tail:
                    raise DamagedError("a block is too large")
                return found
            case "snappy":
                if cramjam.snappy.decompress_raw_len(data[:-4]) > BLOCK_BYTES_MAX:
                    raise DamagedError("a block is too large")
                return bytes(cramjam.snappy.decompress_raw(data[:-4]))
            case "zstandard":
                return bytes(cramjam.zstd.decompress(data))
            case "bzip2":
                return bz2.decompress(data)
            case "xz":
                return lzma.decompress(data)
            case _:
                raise DamagedError(f"its codec {codec[:40]} is not known")
    except (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, cramjam.DecompressionError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"a block cannot be decompressed ({codec})") from None
