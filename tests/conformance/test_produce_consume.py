"""Records go in by either client and come out of both as they went in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from tests.conformance.conftest import Client, ConfluentClient, Record
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

START_MS = 1_700_000_000_000


def without_times(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_shape_survive_every_codec(
    client: Client,
    second_client: ConfluentClient,
    new_topic: TopicFactory,
    record_kinds: Mapping[str, Record],
    compression: str,
) -> None:
    topic = new_topic()
    records = [*record_kinds.values()] * 20
    client.produce(topic, records, compression=compression)
    assert without_times(client.consume(topic, len(records))) == without_times(records)
    assert without_times(second_client.consume(topic, len(records))) == without_times(records)


def test_nothing_but_nulls_is_a_record_too(
    second_client: ConfluentClient, new_topic: TopicFactory, record: type[Record]
) -> None:
    topic = new_topic()
    records = [record(None, None), record(b"key", None, (("null", None),))]
    second_client.produce(topic, records)
    assert without_times(second_client.consume(topic, 2)) == without_times(records)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_delivers(client: Client, new_topic: TopicFactory, record: type[Record], acks: str) -> None:
    topic = new_topic()
    records = [record(b"key", b"%d" % i) for i in range(500)]
    client.produce(topic, records, acks=acks)
    assert without_times(client.consume(topic, len(records))) == without_times(records)


def test_an_idempotent_producer_delivers_each_record_once_and_in_order(
    client: Client, new_topic: TopicFactory, record: type[Record]
) -> None:
    topic = new_topic()
    records = [record(b"%d" % (i % 7), b"%d" % i) for i in range(20_000)]
    client.produce(topic, records, idempotence=True)
    client.produce(topic, records, idempotence=True, compression="lz4")
    assert without_times(client.consume(topic, 40_000)) == without_times(records + records)


def test_timestamps_come_back_and_find_their_offsets(
    client: Client, new_topic: TopicFactory, record: type[Record]
) -> None:
    topic = new_topic()
    # Several requests, so that the answer lies in different batches.
    for start in range(0, 300, 100):
        client.produce(topic, [record(None, b"%d" % i, (), START_MS + i * 1000) for i in range(start, start + 100)])
    assert [r.timestamp_ms for r in client.consume(topic, 300)] == [START_MS + i * 1000 for i in range(300)]
    assert client.offset_for_time(topic, START_MS - 1) == 0
    assert client.offset_for_time(topic, START_MS) == 0
    assert client.offset_for_time(topic, START_MS + 150_000) == 150
    assert client.offset_for_time(topic, START_MS + 150_001) == 151
    assert client.offset_for_time(topic, START_MS + 299_000) == 299
    assert client.offset_for_time(topic, START_MS + 299_001) is None


def test_log_append_time_is_the_brokers(client: Client, new_topic: TopicFactory, record: type[Record]) -> None:
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    client.produce(topic, [record(None, b"v", (), START_MS)] * 3)
    stamps = {r.timestamp_ms for r in client.consume(topic, 3)}
    assert START_MS not in stamps


def test_a_topic_is_created_by_the_first_record_sent_to_it(
    admin: AdminClient, client: Client, new_topic: TopicFactory, record: type[Record]
) -> None:
    topic = f"{new_topic()}-{client.name}"
    client.produce(topic, [record(b"key", b"value")])
    assert without_times(client.consume(topic, 1)) == [(b"key", b"value", ())]
    admin.delete_topics([topic])[topic].result(30)


def test_a_record_over_the_topics_limit_is_refused_and_the_next_one_taken(
    bootstrap_servers: str, new_topic: TopicFactory, second_client: ConfluentClient
) -> None:
    topic = new_topic(config={"max.message.bytes": "1000"})
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    for value in (b"x" * 5000, b"small"):
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _: errors.append(e and e.name()))
        assert producer.flush(30) == 0
    assert errors == ["MSG_SIZE_TOO_LARGE", None]
    assert [r.value for r in second_client.consume(topic, 1)] == [b"small"]
