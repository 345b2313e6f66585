"""The codecs of record batches: gzip, snappy, lz4 and zstd, as Kafka's Java client writes and reads them.

The codec of a batch is the low three bits of its attributes. Every decompression is bounded by the caller's limit,
so that a small hostile payload cannot take the memory of the process.

>>> data = b"departed " * 1000
>>> all(decompress(codec, compress(codec, data), limit_bytes=1 << 20) == data for codec in CODECS.values())
True
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import cramjam

Buffer: TypeAlias = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS: dict[str, int] = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_NAMES: dict[int, str] = {codec: name for name, codec in CODECS.items()}

# xerial's framing of snappy, used by the Java client: a header, then blocks preceded by their size.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024  # snappy-java's default

# An LZ4 frame of independent 64 KiB blocks without checksums: magic, FLG, BD and the header's checksum (xxHash of the
# two, a constant). The Java client refuses frames of dependent blocks, which is what cramjam's own frame writer makes.
_LZ4_FRAME_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_UNCOMPRESSED_BLOCK = 0x8000_0000
_LZ4_END_MARK = b"\x00\x00\x00\x00"

#: As in Kafka, this level selects lz4's fast compressor, not a level of the high-compression one.
LZ4_DEFAULT_LEVEL = 9

# First guess of the decompressed size; the output grows from there, so that honest small batches stay cheap.
_GUESS_RATIO = 6
_GUESS_BYTES_MIN = 16 * 1024
_GROWTH = 4


class CorruptRecordsError(ValueError):
    """Record bytes are invalid: damaged compression, a wrong length, or a malformed record."""


class OverlargeRecordsError(CorruptRecordsError):
    """Records decompress to more than the limit."""


def compress(codec: int, data: Buffer, *, level: int | None = None) -> bytes:
    """Return `data` compressed by `codec` (one of CODECS' values) in the framing that Kafka clients expect.

    `level` applies to gzip (1 to 9), lz4 (1 to 17) and zstd (-131072 to 22); None is the default of Kafka's clients.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level is None else level))
    if codec == SNAPPY:
        return b"".join(_snappy_frame(memoryview(data)))
    if codec == LZ4:
        if level is None or level == LZ4_DEFAULT_LEVEL:
            return b"".join(_lz4_frame(memoryview(data)))
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise CorruptRecordsError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, *, limit_bytes: int) -> bytes:
    """Return `data` decompressed, at most `limit_bytes`.

    Raises CorruptRecordsError if the data is damaged, the codec unknown, or the result larger than the limit.
    """
    if codec == NONE:
        if len(data) > limit_bytes:
            raise _too_large(codec, limit_bytes)
        return bytes(data)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit_bytes)
    if codec == GZIP:
        return _decompress_growing(codec, cramjam.gzip.decompress_into, data, limit_bytes)
    if codec == LZ4:
        return _decompress_growing(codec, cramjam.lz4.decompress_into, data, limit_bytes)
    if codec == ZSTD:
        return _decompress_growing(codec, cramjam.zstd.decompress_into, data, limit_bytes)
    raise CorruptRecordsError(f"unknown compression codec {codec}")


def _too_large(codec: int, limit_bytes: int) -> OverlargeRecordsError:
    return OverlargeRecordsError(
        f"{CODEC_NAMES[codec]} data decompresses to more than the limit of {limit_bytes} bytes"
    )


def _snappy_frame(data: memoryview) -> Iterator[bytes]:
    yield _XERIAL_HEADER
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        yield len(block).to_bytes(4, "big")
        yield block


def _lz4_frame(data: memoryview) -> Iterator[bytes]:
    yield _LZ4_FRAME_HEADER
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield len(block).to_bytes(4, "little")
            yield block
        else:  # the format wants incompressible blocks stored, with the highest bit of the size set
            yield (len(plain) | _LZ4_UNCOMPRESSED_BLOCK).to_bytes(4, "little")
            yield bytes(plain)
    yield _LZ4_END_MARK


def _decompress_snappy(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress framed snappy (Java) or raw snappy (librdkafka, Sarama), distinguished by the frame's magic."""
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    left_bytes = limit_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if position + size > len(view) or size == 0:
            raise CorruptRecordsError(f"a snappy block of {size} bytes does not fit into the {len(view)} bytes of data")
        part = _decompress_snappy_block(view[position : position + size], left_bytes, limit_bytes)
        left_bytes -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, left_bytes: int, limit_bytes: int) -> bytes:
    try:
        # The size at the block's start is checked before any allocation.
        if cramjam.snappy.decompress_raw_len(block) > left_bytes:
            raise _too_large(SNAPPY, limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordsError(f"snappy data is damaged: {error}") from None


def _decompress_growing(codec: int, into: Callable[[Buffer, Any], int], data: Buffer, limit_bytes: int) -> bytes:
    """Decompress into a buffer that grows up to the limit: memory stays within a small factor of the result."""
    # One byte above the limit distinguishes "exactly the limit" from "more".
    ceiling_bytes = limit_bytes + 1
    capacity = min(ceiling_bytes, max(_GUESS_BYTES_MIN, len(data) * _GUESS_RATIO))
    while True:
        output = bytearray(capacity)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            # Freed before a larger buffer is allocated, or an error keeps it with its traceback.
            del output
            # cramjam reports a full output only by this text (of Rust's standard library, WriteZero).
            if "failed to write whole buffer" not in str(error):
                raise CorruptRecordsError(f"{CODEC_NAMES[codec]} data is damaged: {error}") from None
            if capacity == ceiling_bytes:
                raise _too_large(codec, limit_bytes) from None
            capacity = min(ceiling_bytes, capacity * _GROWTH)
            continue
        if size > limit_bytes:
            raise _too_large(codec, limit_bytes)
        return bytes(memoryview(output)[:size])
