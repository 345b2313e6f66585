"""Two unmodified Kafka clients behind one small face, and a socket for requests no client would send."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

DELIVERY_S = 30
SOCKET_S = 20


Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """What goes in and what must come out again."""

    key: bytes | None
    value: bytes | None
    headers: Headers = field(default=())
    timestamp_ms: int | None = None


class Client(Protocol):
    """One Kafka client library; settings are those of `acks`, `compression` and `idempotence` in Kafka's terms."""

    name: str

    def produce(self, topic: str, records: Sequence[Record], **settings: Any) -> None:
        """Returns once every record is acknowledged (or sent, with acks=0); partition 0."""

    def consume(self, topic: str, count: int) -> list[Record]:
        """The first `count` records of partition 0, in order of offset; fails when they do not come."""

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        """The first offset of partition 0 at or after a time; None when there is none."""


class ConfluentClient:
    """confluent-kafka, that is librdkafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], **settings: Any) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "acks": settings.get("acks", "all"),
                "compression.type": settings.get("compression", "none"),
                "enable.idempotence": settings.get("idempotence", False),
                "linger.ms": 20,
            }
        )
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                partition=0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=delivered,
            )
        left = producer.flush(DELIVERY_S)
        assert not failures, failures[:3]
        assert left == 0, f"{left} records were not acknowledged"

    def consume(self, topic: str, count: int) -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": f"{topic}-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.list_topics(topic, DELIVERY_S)  # or librdkafka idles half a second before it asks for the leader
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages: list[Message] = []
            while len(messages) < count:
                some = consumer.consume(count - len(messages), DELIVERY_S)
                assert some, f"{len(messages)} of {count} records came"
                for message in some:
                    error = message.error()
                    assert error is None, error
                messages += some
        finally:
            consumer.close()
        offsets = [message.offset() for message in messages]
        assert offsets == list(range(count))
        return [Record(m.key(), m.value(), tuple(cast(Headers, m.headers() or ())), m.timestamp()[1]) for m in messages]

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": topic})
        try:
            [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], DELIVERY_S)
        finally:
            consumer.close()
        assert found.error is None, found.error
        return None if found.offset < 0 else found.offset


class KafkaPythonClient:
    """kafka-python: another reading of the protocol, in pure Python."""

    name = "kafka-python"

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], **settings: Any) -> None:
        acks = settings.get("acks", "all")
        compression = settings.get("compression", "none")
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=settings.get("idempotence", False),
            linger_ms=20,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    key=r.key,
                    value=r.value,
                    partition=0,
                    headers=list(r.headers),
                    timestamp_ms=r.timestamp_ms,
                )
                for r in records
            ]
            producer.flush(DELIVERY_S)
            for future in futures:
                future.get(DELIVERY_S)
        finally:
            producer.close(DELIVERY_S)

    def consume(self, topic: str, count: int) -> list[Record]:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap_servers, enable_auto_commit=False, check_crcs=True)
        try:
            partition = KafkaPythonPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            rows: list[Any] = []
            while len(rows) < count:
                some = consumer.poll(DELIVERY_S * 1000, max_records=count - len(rows)).get(partition)
                assert some, f"{len(rows)} of {count} records came"
                rows += some
        finally:
            consumer.close()
        assert [row.offset for row in rows] == list(range(count))
        return [Record(r.key, r.value, tuple((n, v) for n, v in r.headers), r.timestamp) for r in rows]

    def offset_for_time(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap_servers)
        try:
            partition = KafkaPythonPartition(topic, 0)
            found = consumer.offsets_for_times({partition: timestamp_ms})[partition]
        finally:
            consumer.close()
        return None if found is None else int(found.offset)


@pytest.fixture(params=[ConfluentClient, KafkaPythonClient], ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, bootstrap_servers: str) -> Client:
    """Each of the two client libraries in turn."""
    chosen: Client = request.param(bootstrap_servers)
    return chosen


@pytest.fixture
def second_client(bootstrap_servers: str) -> ConfluentClient:
    """The bystander whose work must not be disturbed."""
    return ConfluentClient(bootstrap_servers)


class RawConnection:
    """A socket that speaks Kafka's frames and lets a test put anything into them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SOCKET_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_request(self, api_key: int, version: int, body: bytes, correlation_id: int = 1) -> None:
        """A frame with request header v1, as the non-flexible versions have it."""
        header = struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test"
        self.send(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self) -> bytes:
        """One response frame without its length; b"" when the broker closed the connection."""
        size = self._receive_exactly(4)
        return self._receive_exactly(struct.unpack(">i", size)[0]) if size else b""

    def is_closed_by_broker(self) -> bool:
        """Waits for the end of the stream; False when the broker keeps it open or answers."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                some = self.socket.recv(size - len(data))
            except ConnectionResetError:
                some = b""
            if not some:
                return b""
            data += some
        return bytes(data)


class Connect(Protocol):
    """Opens one more raw connection to the broker under test; all are closed after the test."""

    def __call__(self) -> RawConnection: ...


@pytest.fixture
def connect(bootstrap_servers: str) -> Iterator[Connect]:
    """A factory of raw connections."""
    opened: list[RawConnection] = []

    def open_one() -> RawConnection:
        opened.append(RawConnection(bootstrap_servers))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def record() -> type[Record]:
    """The class of a record: test modules cannot import it from here."""
    return Record


@pytest.fixture
def record_kinds() -> Mapping[str, Record]:
    """One record of each shape that a format tends to get wrong and both clients can send."""
    return {
        "plain": Record(b"key", b"value"),
        "null key": Record(None, b"value"),
        "null value": Record(b"key", None),
        "empty, not null": Record(b"", b""),
        "headers": Record(b"key", b"value", (("a", b"1"), ("a", b"2"), ("empty", b""))),
        "every byte": Record(bytes(range(256)), bytes(reversed(range(256)))),
        "a long value": Record(b"key", b"0123456789abcdef" * 20_000),
    }
