"""Recompresses batches into the codec of a topic (`compression.type` other than producer).

Only the payload changes, with the codec, the length and the checksum in the header: offsets, timestamps, sequence
numbers, transaction fields and record headers are preserved. Pure, and safe to call in any thread: compressing a large
batch takes milliseconds.
"""

from typing import Final

from crc32c import crc32c

from headwater.logtier.config import TopicConfig
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CRC,
    DECOMPRESSED_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)
from headwater.logtier.records.compression import (
    GZIP,
    LZ4,
    LZ4_DEFAULT_LEVEL,
    NONE,
    SNAPPY,
    ZSTD,
    Buffer,
    CorruptRecordsError,
    OverlargeRecordsError,
    compress,
    decompress,
)

#: The value of `compression.type` that preserves the codec of the producer.
PRODUCER: Final = "producer"

_CODECS: Final = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

#: Bytes compressed in at most about a millisecond, by codec, at the levels that clients use.
_QUICK_BYTES: Final = {NONE: 1 << 20, SNAPPY: 256 << 10, LZ4: 256 << 10, GZIP: 16 << 10, ZSTD: 128 << 10}
_ZSTD_QUICK_LEVEL_MAX: Final = 6


def is_quick(records: Buffer, config: TopicConfig) -> bool:
    """Whether recompressing a batch is cheaper on the event loop than on another thread.

    A batch compressed with another codec is never quick: a kilobyte of it may expand to many megabytes.
    """
    codec = _CODECS[config.compression_type]
    if codec == ZSTD and config.compression_zstd_level > _ZSTD_QUICK_LEVEL_MAX:
        return False
    if codec == LZ4 and config.compression_lz4_level != LZ4_DEFAULT_LEVEL:
        return False
    return len(records) <= _QUICK_BYTES[codec] and codec_of(records) in (NONE, codec)


def codec_of(records: Buffer) -> int:
    """Return the codec in the header of a batch, NONE for an incomplete header; the checksum is not verified."""
    return records[ATTRIBUTES + 1] & COMPRESSION_MASK if len(records) >= HEADER_BYTES else NONE


def recompressed(records: Buffer, config: TopicConfig) -> Buffer:
    """Return the batch in the topic's codec; data that is not one whole, valid batch is returned unchanged.

    The append then rejects invalid data. `config.compression_type` must not be `producer`.

    Raises:
        KafkaError: corrupt_message (a payload that its codec cannot decompress), message_too_large (a batch that
            exceeds max.message.bytes or the decompression limit).
    """
    codec = _CODECS[config.compression_type]
    view = memoryview(records)
    return _recompressed_batch(view, codec, config) if _is_other(view, codec, config) else records


def _is_other(batch: memoryview, codec: int, config: TopicConfig) -> bool:
    """Whether the batch is valid and has another codec. A batch that is too large is rejected by the append."""
    if len(batch) < HEADER_BYTES:
        return False
    fields = HEADER.unpack_from(batch)
    return (
        fields[1] + LOG_OVERHEAD == len(batch)
        and fields[3] == MAGIC_V2
        and fields[5] & COMPRESSION_MASK != codec
        and len(batch) <= config.max_message_bytes
        and crc32c(batch[ATTRIBUTES:]) == fields[4]
    )


def _recompressed_batch(batch: memoryview, codec: int, config: TopicConfig) -> bytearray:
    base_offset, _, epoch, magic, _, attributes, *others = HEADER.unpack_from(batch)
    limit_bytes = DECOMPRESSED_BYTES_MAX
    if codec == NONE:
        limit_bytes = min(limit_bytes, config.max_message_bytes)
    try:
        plain = decompress(attributes & COMPRESSION_MASK, batch[HEADER_BYTES:], limit_bytes=limit_bytes)
    except OverlargeRecordsError as error:
        raise KafkaError(ErrorCode.message_too_large, str(error)) from None
    except CorruptRecordsError as error:
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from None
    payload = compress(codec, plain, level=_level(codec, config))
    made = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        made,
        0,
        base_offset,
        HEADER_BYTES - LOG_OVERHEAD + len(payload),
        epoch,
        magic,
        0,
        attributes & ~COMPRESSION_MASK | codec,
        *others,
    )
    made += payload
    made[CRC:ATTRIBUTES] = crc32c(memoryview(made)[ATTRIBUTES:]).to_bytes(4, "big")
    return made


def _level(codec: int, config: TopicConfig) -> int | None:
    if codec == ZSTD:
        return config.compression_zstd_level
    if codec == LZ4:
        return config.compression_lz4_level
    if codec == GZIP and config.compression_gzip_level > 0:
        return config.compression_gzip_level
    return None
