"""`compression.type` of a topic: batches in another codec are compressed anew, and nothing else of them changes."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.appending.recompression import is_quick, recompressed
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    HEADER_BYTES,
    TRANSACTIONAL,
    Record,
    RecordBatchHeader,
    build_batch,
    check_batch,
    decode_records,
)
from headwater.logtier.records.compression import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from tests.unit.log.conftest import NOW_MS, LogFolder

TYPES = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
RECORDS = [
    Record(b"N14228", b"late " * 200, NOW_MS, (("source", b"tower"), ("empty", None))),
    Record(None, b"on time", NOW_MS + 7),
    Record(b"N24211", None, NOW_MS - 3),
]


def batch_of(codec: int, **fields: Any) -> bytes:
    return build_batch(RECORDS, codec=codec, **fields)


def topic(compression_type: str, **changes: Any) -> TopicConfig:
    return replace(TopicConfig(), compression_type=compression_type, **changes)


def unlike(header: RecordBatchHeader) -> tuple[Any, ...]:
    """What recompressing must not touch."""
    return (
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        header.attributes & ~7,
    )


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("source", CODECS.values(), ids=CODECS)
def test_a_batch_gets_the_codec_of_the_topic_and_keeps_everything_else(source: int, to: str) -> None:
    batch = batch_of(source, producer_id=9, producer_epoch=2, base_sequence=7, attributes=TRANSACTIONAL)
    made = bytes(recompressed(batch, topic(to)))
    header = check_batch(made)
    assert header.codec == TYPES[to]
    assert unlike(header) == unlike(check_batch(batch))
    assert decode_records(made) == decode_records(batch)


@pytest.mark.parametrize("to", TYPES)
def test_a_batch_that_has_the_codec_is_not_touched(to: str) -> None:
    batch = batch_of(TYPES[to])
    assert recompressed(batch, topic(to)) is batch


def test_levels_are_obeyed() -> None:
    noise = random.Random(4)
    text = b" ".join(noise.choice([b"EWR", b"IAH", b"MIA", b"late", b"on time"]) for _ in range(20_000))
    batch = build_batch([Record(None, text, NOW_MS)])

    def size(compression_type: str, **levels: int) -> int:
        return len(recompressed(batch, topic(compression_type, **levels)))

    assert size("gzip", compression_gzip_level=1) > size("gzip", compression_gzip_level=9)
    assert size("gzip", compression_gzip_level=-1) == size("gzip", compression_gzip_level=6)
    assert size("lz4", compression_lz4_level=9) > size("lz4", compression_lz4_level=4)
    assert size("lz4", compression_lz4_level=4) > size("lz4", compression_lz4_level=17)
    assert size("zstd", compression_zstd_level=-50) > size("zstd", compression_zstd_level=19)


def test_damage_is_left_to_those_who_check() -> None:
    batch = batch_of(NONE)
    broken = bytearray(batch)
    broken[-1] ^= 1
    old = bytearray(batch)
    old[16] = 1
    for records in (bytes(broken), bytes(old), batch[:-1], batch[:40], b"", batch + b"x", batch + batch):
        assert recompressed(records, topic("gzip")) is records


def rewrapped(codec: int, payload: bytes) -> bytes:
    """A batch with a right checksum and any payload."""
    head = bytearray(build_batch([Record(None, b"x", NOW_MS)])[:HEADER_BYTES])
    head[8:12] = struct.pack(">i", HEADER_BYTES - 12 + len(payload))
    head[21:23] = struct.pack(">h", codec)
    batch = head + payload
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("seed", range(25))
def test_a_payload_that_is_not_what_its_codec_says_is_refused(codec: int, seed: int) -> None:
    noise = random.Random(f"{codec} {seed}")
    payload = bytearray(compress(codec, noise.randbytes(500) + bytes(500)))
    for _ in range(noise.randrange(1, 9)):
        payload[noise.randrange(len(payload))] = noise.randrange(256)
    del payload[noise.randrange(len(payload) // 2, len(payload) + 1) :]
    to = "zstd" if codec != ZSTD else "gzip"
    try:
        made = recompressed(rewrapped(codec, bytes(payload)), topic(to))
    except KafkaError as refusal:
        assert refusal.code in (ErrorCode.corrupt_message, ErrorCode.message_too_large)
    else:
        check_batch(bytes(made))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_ends_at_the_limit_of_the_topic(codec: int) -> None:
    bomb = rewrapped(codec, compress(codec, bytes(40 << 20)))
    config = topic("uncompressed", max_message_bytes=4 << 20)
    with pytest.raises(KafkaError) as refused:
        recompressed(bomb, config)
    assert refused.value.code is ErrorCode.message_too_large


def test_quick_work_is_told_from_slow_work() -> None:
    plain = build_batch([Record(None, bytes(64 << 10), NOW_MS)])
    assert is_quick(plain, topic("zstd"))
    assert is_quick(plain, topic("lz4"))
    assert not is_quick(plain, topic("gzip"))
    assert not is_quick(batch_of(NONE), topic("zstd", compression_zstd_level=19))
    assert not is_quick(batch_of(NONE), topic("lz4", compression_lz4_level=12))
    assert not is_quick(build_batch([Record(None, bytes(1 << 20), NOW_MS)]), topic("zstd"))


def test_what_is_compressed_in_another_codec_may_be_any_size_and_is_not_quick() -> None:
    assert is_quick(batch_of(ZSTD), topic("zstd"))
    assert not is_quick(batch_of(GZIP), topic("zstd"))
    assert is_quick(batch_of(GZIP)[:30], topic("zstd")), "no batch: there is nothing to compress"


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("to", TYPES)
def test_the_log_stores_batches_in_the_codec_of_the_topic(folder: LogFolder, to: str, stamp: str) -> None:
    folder.configure(compression_type=to, message_timestamp_type=stamp)
    info = folder.append(batch_of(GZIP, producer_id=9, producer_epoch=0, base_sequence=0))
    again = folder.append(batch_of(GZIP, producer_id=9, producer_epoch=0, base_sequence=0))
    assert (again.duplicate, again.first_offset) == (True, info.first_offset)
    [batch] = list(folder.log.batches())
    header = check_batch(bytes(batch))
    assert (header.codec, header.producer_id, header.is_log_append_time) == (TYPES[to], 9, stamp == "LogAppendTime")
    times = {record.timestamp_ms for record in decode_records(bytes(batch))}
    assert times == ({NOW_MS} if stamp == "LogAppendTime" else {NOW_MS, NOW_MS + 7, NOW_MS - 3})
    assert [value for _, value in folder.read_all()] == [record.value for record in RECORDS]


def test_a_batch_counts_against_the_limit_as_it_came_and_as_it_is_stored(folder: LogFolder) -> None:
    folder.configure(compression_type="uncompressed", max_message_bytes=2000)
    small = build_batch([Record(None, bytes(5000), NOW_MS)], codec=ZSTD)
    assert len(small) < 2000
    with pytest.raises(KafkaError) as refused:
        folder.append(small)
    assert refused.value.code is ErrorCode.message_too_large
    folder.configure(compression_type="zstd")
    with pytest.raises(KafkaError) as refused:
        folder.append(build_batch([Record(None, bytes(5000), NOW_MS)]))
    assert refused.value.code is ErrorCode.message_too_large
    assert folder.log.log_end_offset == 0
