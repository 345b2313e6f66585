"""Record batches that are not what they say, on topics that the broker has to look into: codecs of their own, keys."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import cramjam
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from headwater.logtier.records.batch import ATTRIBUTES, CRC, HEADER, HEADER_BYTES, LOG_OVERHEAD, Record, build_batch
from headwater.logtier.records.compression import CODECS, compress

if TYPE_CHECKING:
    from tests.conformance.fuzz.conftest import Target, Wire

pytestmark = pytest.mark.slow

#: Two threads hold a decompressed batch of at most 256 MiB each, and what is made of it.
MEMORY_BYTES_MAX: Final = 1400 << 20
MIB: Final = 1 << 20
ANSWER_S: Final = 60
PRODUCE, LIST_OFFSETS = 0, 2
#: The first that takes zstd, and written like version 3.
PRODUCE_VERSION: Final = 7
NONE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD = 0, 2, 10, 32, 87
REFUSALS: Final = {CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD}
TIME_MS: Final = 1_700_000_000_000

TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "lz4": {"compression.type": "lz4"},
    "zstd": {"compression.type": "zstd"},
    "uncompressed": {"compression.type": "uncompressed"},
    "compacted": {"cleanup.policy": "compact"},
    "compacted-gzip": {"cleanup.policy": "compact,delete", "compression.type": "gzip"},
}


@pytest.fixture(scope="module")
def topics(fuzzed_broker: Target) -> Mapping[str, str]:
    """Topics by what the broker has to do with their records."""
    names = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in TOPICS}
    admin = AdminClient({"bootstrap.servers": fuzzed_broker.addresses["PLAINTEXT"]})
    made = admin.create_topics([NewTopic(names[kind], 1, 1, config=dict(TOPICS[kind])) for kind in TOPICS])
    for future in made.values():
        future.result(30)
    return names


# -- batches


def wrapped(codec: int, payload: bytes, record_count: int = 1, **changes: int) -> bytes:
    """A batch with a correct checksum around whatever payload; `changes` are those of fields of its header."""
    fields = {
        "base_offset": 0,
        "length": HEADER_BYTES - LOG_OVERHEAD + len(payload),
        "leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": codec,
        "last_offset_delta": record_count - 1,
        "base_timestamp": TIME_MS,
        "max_timestamp": TIME_MS,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": record_count,
    } | changes
    batch = bytearray(HEADER.pack(*fields.values()) + payload)
    batch[CRC:ATTRIBUTES] = crc32c(memoryview(batch)[ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(batch)


def record_bytes(count: int) -> bytes:
    """Records with keys, as they stand in a batch."""
    return build_batch([Record(b"key", b"value " * 20, TIME_MS)] * count)[HEADER_BYTES:]


#: One record of 7 bytes: its length, attributes, both deltas, an empty key, no value, no headers.
TINY_RECORD: Final = b"\x0c\x00\x00\x00\x00\x01\x00"


@cache
def bomb(codec: str, size_bytes: int, pattern: bytes = bytes(MIB)) -> bytes:
    """A megabyte at most that decompresses to so many bytes."""
    whole = pattern * (size_bytes // len(pattern))
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(whole, level=3))
    return compress(CODECS[codec], whole)


def damaged_payloads(codec: int) -> Iterator[bytes]:
    noise = random.Random(codec)
    whole = compress(codec, record_bytes(20))
    yield b""
    yield noise.randbytes(300)
    for size in sorted(noise.sample(range(len(whole)), min(12, len(whole)))):
        yield whole[:size]
    for _ in range(30):
        flipped = bytearray(whole)
        for _ in range(noise.choice([1, 1, 3, 20])):
            flipped[noise.randrange(len(flipped))] = noise.randrange(256)
        yield bytes(flipped)
    yield whole + b"\x00" * 7
    yield whole + whole
    # Records that are not what their batch says, and varints without an end.
    for plain in (b"\xff" * 40, b"\x80" * 40, b"\x0c" + b"\xff" * 9, TINY_RECORD[:-1], b"\xfe\xff\xff\xff\x0f" * 3):
        yield compress(codec, plain)


def damaged_headers() -> Iterator[bytes]:
    payload = record_bytes(3)
    limits = {"b": 7, "h": 15, "i": 31, "q": 63, "I": 32}
    names = {
        "base_offset": "q",
        "length": "i",
        "leader_epoch": "i",
        "magic": "b",
        "attributes": "h",
        "last_offset_delta": "i",
        "base_timestamp": "q",
        "max_timestamp": "q",
        "producer_id": "q",
        "producer_epoch": "h",
        "base_sequence": "i",
        "count": "i",
    }
    for name, kind in names.items():
        for value in (0, 1, -1, -2, (1 << limits[kind]) - 1, -(1 << limits[kind])):
            yield wrapped(0, payload, 3, **{name: value})
    for bit in range(15):
        yield wrapped(0, payload, 3, attributes=1 << bit)
    for codec in (5, 6, 7):
        yield wrapped(codec, payload, 3)
    bad_checksum = bytearray(wrapped(0, payload, 3))
    bad_checksum[CRC] ^= 1
    yield bytes(bad_checksum)
    good = wrapped(0, payload, 3)
    yield good * 3
    yield good + good[:40]
    yield good[:30]


# -- requests


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, 4) + b"fuzz" + body


def produce(topic: str, records: bytes) -> bytes:
    name = topic.encode()
    head = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">ih", 1, len(name)) + name
    return head + struct.pack(">iii", 1, 0, len(records)) + records


def list_offsets(topic: str, timestamp_ms: int) -> bytes:
    name = topic.encode()
    return struct.pack(">ibih", -1, 0, 1, len(name)) + name + struct.pack(">iiq", 1, 0, timestamp_ms)


async def send_batches(wire: type[Wire], address: str, topic: str, batches: Sequence[bytes]) -> list[int]:
    """The error code of each, on one connection, which has to bear them all."""
    connection = await wire.open(address)
    codes = []
    try:
        for i, batch in enumerate(batches):
            connection.send(request(PRODUCE, PRODUCE_VERSION, i, produce(topic, batch)))
            frame = await connection.receive(ANSWER_S)
            assert frame, f"batch {i} was not answered: {frame!r}"
            assert struct.unpack_from(">i", frame) == (i,)
            codes.append(struct.unpack_from(">h", frame, 4 + 4 + 2 + len(topic) + 4 + 4)[0])
    finally:
        connection.close()
    return codes


@pytest.mark.parametrize("kind", TOPICS)
def test_the_batches_that_are_damaged_here_are_taken_when_they_are_whole(
    target: Target, wire: type[Wire], topics: Mapping[str, str], kind: str
) -> None:
    batches = [wrapped(codec, compress(codec, record_bytes(3)), 3) for codec in CODECS.values()]
    codes = asyncio.run(send_batches(wire, target.addresses["PLAINTEXT"], topics[kind], batches))
    assert codes == [NONE] * len(batches)


@pytest.mark.parametrize("kind", TOPICS)
def test_a_header_that_lies_is_refused_or_harmless(
    target: Target, wire: type[Wire], topics: Mapping[str, str], kind: str
) -> None:
    batches = [*damaged_headers(), wrapped(0, record_bytes(3), 3)]
    codes = asyncio.run(send_batches(wire, target.addresses["PLAINTEXT"], topics[kind], batches))
    assert -1 not in codes, "an unknown server error is a fault of ours"
    assert codes[-1] == NONE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", TOPICS)
def test_a_payload_that_is_damaged_is_refused_where_the_broker_looks_into_it(
    target: Target, wire: type[Wire], topics: Mapping[str, str], kind: str, codec: str
) -> None:
    batches = [wrapped(CODECS[codec], payload, 20) for payload in damaged_payloads(CODECS[codec])]
    good = wrapped(CODECS[codec], compress(CODECS[codec], record_bytes(20)), 20)
    codes = asyncio.run(send_batches(wire, target.addresses["PLAINTEXT"], topics[kind], [*batches, good]))
    assert codes[-1] == NONE
    assert set(codes) <= REFUSALS | {NONE}
    if kind.startswith("compacted"):
        # Nothing but a flip within a value is like what it was.
        assert codes[0] in REFUSALS and set(codes[-6:-1]) <= REFUSALS


BOMBS: Final = [("zstd", 300 * MIB), ("gzip", 300 * MIB), ("lz4", 200 * MIB), ("zstd", 200 * MIB), ("snappy", 16 * MIB)]


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize(("codec", "size_bytes"), BOMBS, ids=[f"{codec}-{size >> 20}M" for codec, size in BOMBS])
def test_decompression_bombs_from_many_at_once_take_bounded_memory_and_hold_nobody_up(
    target: Target, wire: type[Wire], topics: Mapping[str, str], kind: str, codec: str, size_bytes: int
) -> None:
    batch = wrapped(CODECS[codec], bomb(codec, size_bytes))
    assert len(batch) < MIB

    async def attack() -> list[list[int]]:
        address = target.addresses["PLAINTEXT"]
        return await asyncio.gather(*(send_batches(wire, address, topics[kind], [batch]) for _ in range(6)))

    codes = asyncio.run(attack())
    target.check()
    assert {code for each in codes for code in each} <= REFUSALS | {NONE}
    if kind == "uncompressed" or kind.startswith("compacted"):
        assert {code for each in codes for code in each} <= REFUSALS
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX


@pytest.mark.parametrize("kind", TOPICS)
def test_a_batch_of_millions_of_tiny_records_can_be_looked_up_in_and_holds_nobody_up(
    target: Target, wire: type[Wire], topics: Mapping[str, str], kind: str
) -> None:
    count = 20 * MIB
    payload = bomb("zstd", count * len(TINY_RECORD), TINY_RECORD * MIB)
    batch = wrapped(CODECS["zstd"], payload, count, base_timestamp=TIME_MS + 5, max_timestamp=TIME_MS + 5)

    async def attack() -> bytes | None:
        [code] = await send_batches(wire, target.addresses["PLAINTEXT"], topics[kind], [batch])
        assert code in REFUSALS | {NONE}
        connection = await wire.open(target.addresses["PLAINTEXT"])
        try:
            connection.send(request(LIST_OFFSETS, 2, 1, list_offsets(topics[kind], TIME_MS + 5)))
            return await connection.receive(ANSWER_S)
        finally:
            connection.close()

    assert asyncio.run(attack())
    target.check()
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX
