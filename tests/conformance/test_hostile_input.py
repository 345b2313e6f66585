"""What no honest client sends: an answer in Kafka's terms or a closed connection, and nobody else notices.

Requests are written by hand here, in old non-flexible versions, so that no encoder of ours is trusted.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import crc32c
import pytest
from confluent_kafka import KafkaError, Message, Producer

if TYPE_CHECKING:
    from tests.conformance.conftest import ConfluentClient, Connect
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
UNKNOWN_TOPIC_OR_PARTITION, CORRUPT_MESSAGE, UNSUPPORTED_VERSION = 3, 2, 35
INVALID_TOPIC, INVALID_RECORD = 17, 87
REQUEST_MAX_BYTES = 104_857_600


@pytest.fixture(autouse=True)
def bystander(bootstrap_servers: str, new_topic: TopicFactory, second_client: ConfluentClient) -> Iterator[None]:
    """A producer that worked before the fault goes on after it, on the connection it has, and its records are there."""
    errors: list[KafkaError] = []
    topic = new_topic()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "error_cb": errors.append, "linger.ms": 0})
    producer.produce(topic, b"before", on_delivery=delivered)
    assert producer.flush(30) == 0
    yield
    producer.produce(topic, b"after", on_delivery=delivered)
    assert producer.flush(30) == 0
    assert errors == []
    assert [r.value for r in second_client.consume(topic, 2)] == [b"before", b"after"]


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def batch(value: bytes = b"value") -> bytes:
    """A record batch of one record, format version 2."""

    def zigzag(number: int) -> bytes:
        number = number << 1
        out = bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    body = b"\0" + zigzag(0) + zigzag(0) + zigzag(3) + b"key" + zigzag(len(value)) + value + zigzag(0)
    record = zigzag(len(body)) + body
    checked = struct.pack(">hiqqqhii", 0, 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1) + record
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c.crc32c(checked)) + checked


def produce_v3(topic: str, records: bytes, acks: int = 1, partition: int = 0) -> bytes:
    return (
        struct.pack(">hhi", -1, acks, 10_000)
        + struct.pack(">i", 1)
        + string(topic)
        + struct.pack(">iii", 1, partition, len(records))
        + records
    )


def produced(response: bytes, topic: str) -> tuple[int, int]:
    """(error code, base offset) of the one partition in a Produce v3 response."""
    start = 4 + 4 + 2 + len(topic) + 4 + 4
    error, offset = struct.unpack_from(">hq", response, start)
    return int(error), int(offset)


def test_the_batch_these_tests_write_is_taken(connect: Connect, new_topic: TopicFactory) -> None:
    topic = new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(connection.receive(), topic) == (0, 0)


@pytest.mark.parametrize(
    "position", [17, 20, 40, 61, -2], ids=["crc", "crc end", "timestamps", "records", "last bytes"]
)
def test_a_corrupt_batch_is_refused_and_the_connection_goes_on(
    connect: Connect, new_topic: TopicFactory, position: int
) -> None:
    topic = new_topic()
    connection = connect()
    corrupt = bytearray(batch())
    corrupt[position] ^= 0x40
    connection.send_request(PRODUCE, 3, produce_v3(topic, bytes(corrupt)))
    assert produced(connection.receive(), topic)[0] == CORRUPT_MESSAGE
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(connection.receive(), topic) == (0, 0)


def test_a_corrupt_batch_without_acks_closes_the_connection(connect: Connect, new_topic: TopicFactory) -> None:
    connection = connect()
    corrupt = bytearray(batch())
    corrupt[-2] ^= 0x40
    connection.send_request(PRODUCE, 3, produce_v3(new_topic(), bytes(corrupt), acks=0))
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("records", [batch()[:30], batch()[:-1]], ids=["header", "tail"])
def test_a_batch_cut_short_stores_nothing(connect: Connect, new_topic: TopicFactory, records: bytes) -> None:
    topic = new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, records))
    response = connection.receive()
    assert response == b"" or produced(response, topic)[0] != 0
    other = connect()
    other.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(other.receive(), topic) == (0, 0)


def test_a_second_batch_cut_short_is_never_stored(connect: Connect, new_topic: TopicFactory) -> None:
    topic = new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch() + batch()[:20]))
    response = connection.receive()
    # Kafka takes the whole batch before it; to refuse both is as good.
    taken = 1 if response and produced(response, topic)[0] == 0 else 0
    other = connect()
    other.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(other.receive(), topic) == (0, taken)


def test_two_batches_for_a_partition_are_refused_and_neither_is_stored(
    connect: Connect, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch() + batch()))
    assert produced(connection.receive(), topic)[0] == INVALID_RECORD
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(connection.receive(), topic) == (0, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_an_invalid_record(connect: Connect, new_topic: TopicFactory, magic: int) -> None:
    topic = new_topic()
    connection = connect()
    old = bytearray(batch())
    old[16] = magic
    connection.send_request(PRODUCE, 3, produce_v3(topic, bytes(old)))
    assert produced(connection.receive(), topic)[0] == INVALID_RECORD


@pytest.mark.parametrize(("name", "partition"), [("test-no-such-topic", 0), ("", 7)], ids=["topic", "partition"])
def test_an_unknown_topic_or_partition_is_named_as_such(
    connect: Connect, new_topic: TopicFactory, name: str, partition: int
) -> None:
    topic = name or new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch(), partition=partition))
    assert produced(connection.receive(), topic)[0] == UNKNOWN_TOPIC_OR_PARTITION
    fetch = struct.pack(">iiiibi", -1, 100, 1, 1_000_000, 0, 1) + string(topic)
    connection.send_request(FETCH, 4, fetch + struct.pack(">iiqi", 1, partition, 0, 1_000_000))
    response = connection.receive()
    [error] = struct.unpack_from(">h", response, 4 + 4 + 4 + 2 + len(topic) + 4 + 4)
    assert error == UNKNOWN_TOPIC_OR_PARTITION


def test_nobody_writes_what_groups_have_committed_by_hand(connect: Connect) -> None:
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3("__consumer_offsets", batch()))
    assert produced(connection.receive(), "__consumer_offsets")[0] == INVALID_TOPIC


def test_api_versions_of_an_unknown_version_is_answered_in_version_0(connect: Connect) -> None:
    connection = connect()
    connection.send_request(API_VERSIONS, 127, b"\0\x05test\x021\0", correlation_id=77)
    response = connection.receive()
    correlation_id, error, count = struct.unpack_from(">ihi", response)
    assert (correlation_id, error) == (77, UNSUPPORTED_VERSION)
    ranges = [struct.unpack_from(">hhh", response, 10 + 6 * i) for i in range(count)]
    assert [(key, low) for key, low, _ in ranges if key == API_VERSIONS] == [(API_VERSIONS, 0)]
    assert len(response) == 10 + 6 * count
    connection.send_request(API_VERSIONS, 0, b"", correlation_id=78)
    assert struct.unpack_from(">ih", connection.receive()) == (78, 0)


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 99), (METADATA, -1), (500, 0), (-1, 0), (32767, 32767)])
def test_an_unknown_api_or_version_closes_the_connection(connect: Connect, api_key: int, version: int) -> None:
    connection = connect()
    connection.send_request(api_key, version, b"\0" * 20)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("length", [-1, -(2**31), REQUEST_MAX_BYTES + 1, 2**31 - 1])
def test_a_hostile_length_closes_the_connection(connect: Connect, length: int) -> None:
    connection = connect()
    connection.send(struct.pack(">i", length) + b"x" * 8)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0",
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 1000) + string("a"),
        struct.pack(">ih", 1, 32767) + b"short",
        struct.pack(">ih", 1, -7) + b"negative",
    ],
    ids=["nothing", "half a count", "endless count", "count too high", "string too long", "negative string"],
)
def test_a_request_that_ends_early_closes_the_connection(connect: Connect, body: bytes) -> None:
    connection = connect()
    connection.send_request(METADATA, 1, body)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\x03\0\x01", b"\0\x03\0\x01\0\0\0\x01\x7f\xff"])
def test_a_frame_without_a_whole_header_closes_the_connection(connect: Connect, frame: bytes) -> None:
    connection = connect()
    connection.send(struct.pack(">i", len(frame)) + frame)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_disturb_nobody(connect: Connect, seed: int) -> None:
    connection = connect()
    noise = random.Random(seed)
    try:
        connection.send(noise.randbytes(noise.choice([1, 3, 50, 5000, 200_000])))
    except (BrokenPipeError, ConnectionResetError):
        return
    connection.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_request_is_answered_or_closed(connect: Connect, new_topic: TopicFactory, seed: int) -> None:
    topic = new_topic()
    noise = random.Random(seed)
    connection = connect()
    body = bytearray(produce_v3(topic, batch()))
    for _ in range(3):
        body[noise.randrange(len(body))] = noise.randrange(256)
    connection.send_request(PRODUCE, 3, bytes(body))
    # Without acks (a flip may say so) nothing comes: the next request shows whether the connection lives.
    connection.send_request(API_VERSIONS, 0, b"", correlation_id=2)
    response = connection.receive()
    assert response == b"" or struct.unpack_from(">i", response)[0] in {1, 2}


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_client_that_goes_away_in_the_middle_of_a_request_leaves_no_trace(
    connect: Connect, new_topic: TopicFactory, share: float
) -> None:
    topic = new_topic()
    connection = connect()
    body = produce_v3(topic, batch(b"x" * 500_000))
    frame = struct.pack(">hhih", PRODUCE, 3, 1, 4) + b"test" + body
    whole = struct.pack(">i", len(frame)) + frame
    connection.send(whole[: int(len(whole) * share)])
    connection.close()
    other = connect()
    other.send_request(PRODUCE, 3, produce_v3(topic, batch()))
    assert produced(other.receive(), topic) == (0, 0)


def test_a_client_that_never_reads_its_answers_disturbs_nobody(connect: Connect, new_topic: TopicFactory) -> None:
    topic = new_topic()
    connection = connect()
    connection.send_request(PRODUCE, 3, produce_v3(topic, batch(b"x" * 900_000)))
    assert produced(connection.receive(), topic) == (0, 0)
    fetch = struct.pack(">iiiibi", -1, 100, 1, 10_000_000, 0, 1) + string(topic)
    for i in range(50):
        connection.send_request(FETCH, 4, fetch + struct.pack(">iiqi", 1, 0, 0, 10_000_000), correlation_id=i)
