"""Codecs: what we write is what Kafka's clients read, what they write is read, and damage is bounded."""

import struct

import cramjam
import pytest

from headwater.logtier.records.compression import CODECS, LZ4, SNAPPY, CorruptRecordsError, compress, decompress

DATA = b"delayed " * 20_000
LIMIT = 1 << 20
COMPRESSING = [codec for name, codec in CODECS.items() if name != "none"]


@pytest.mark.parametrize("codec", CODECS.values())
@pytest.mark.parametrize("data", [b"", b"x", DATA, bytes(range(256)) * 300])
def test_every_codec_gives_back_what_it_took(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), limit_bytes=LIMIT) == data


@pytest.mark.parametrize("codec", CODECS.values())
def test_data_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(codec: int) -> None:
    data = compress(codec, DATA)
    assert len(decompress(codec, data, limit_bytes=len(DATA))) == len(DATA)
    with pytest.raises(CorruptRecordsError, match="limit"):
        decompress(codec, data, limit_bytes=len(DATA) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_decompression_bomb_ends_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(8 << 20))
    with pytest.raises(CorruptRecordsError, match="more than the limit of 65536 bytes"):
        decompress(codec, bomb, limit_bytes=65_536)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize(
    "data", [b"\xff", b"no compressed data at all", b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x7f"]
)
def test_damaged_data_is_an_error_of_its_own_type(codec: int, data: bytes) -> None:
    with pytest.raises(CorruptRecordsError):
        decompress(codec, data, limit_bytes=LIMIT)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_data_is_refused(codec: int) -> None:
    data = compress(codec, DATA)
    with pytest.raises(CorruptRecordsError):
        decompress(codec, data[: len(data) // 2], limit_bytes=LIMIT)


def test_raw_snappy_of_librdkafka_is_read() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(DATA)), limit_bytes=LIMIT) == DATA


def test_snappy_is_written_in_blocks_with_the_java_frame() -> None:
    framed = compress(SNAPPY, DATA)
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (block,) = struct.unpack_from(">i", framed, 16)
    assert len(bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + block]))) == 32 * 1024


def test_a_snappy_frame_of_many_blocks_has_one_limit_for_all() -> None:
    with pytest.raises(CorruptRecordsError, match="limit"):
        decompress(SNAPPY, compress(SNAPPY, DATA), limit_bytes=100_000)


@pytest.mark.parametrize("level", [None, 1, 3, 9, 12, 17])
def test_lz4_is_written_with_independent_blocks_as_java_demands(level: int | None) -> None:
    frame = compress(LZ4, DATA, level=level)
    flags = frame[4]
    assert flags >> 6 == 1  # version
    assert flags & 0x20  # independent blocks
    assert frame[5] == 0x40  # of 64 KiB
    assert bytes(cramjam.lz4.decompress(frame)) == DATA
    assert decompress(LZ4, frame, limit_bytes=LIMIT) == DATA


@pytest.mark.parametrize("data", [b"", b"x", bytes(1 << 20)])
def test_lz4_of_any_level_takes_any_data(data: bytes) -> None:
    for level in range(1, 18):
        assert decompress(LZ4, compress(LZ4, data, level=level), limit_bytes=LIMIT) == data


def test_lz4_stores_blocks_that_do_not_shrink() -> None:
    noise = bytes(cramjam.zstd.compress(DATA))
    assert decompress(LZ4, compress(LZ4, noise), limit_bytes=LIMIT) == noise


def test_lz4_frames_of_other_writers_are_read() -> None:
    assert decompress(LZ4, bytes(cramjam.lz4.compress(DATA)), limit_bytes=LIMIT) == DATA


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CorruptRecordsError, match="codec 7"):
        decompress(7, b"", limit_bytes=LIMIT)
    with pytest.raises(CorruptRecordsError, match="codec 7"):
        compress(7, b"")


def test_views_of_receive_buffers_are_accepted() -> None:
    for codec in CODECS.values():
        buffer = memoryview(bytearray(b"head" + compress(codec, DATA)))[4:]
        assert decompress(codec, buffer, limit_bytes=LIMIT) == DATA
