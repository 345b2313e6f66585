"""Where logs begin and end, what is read of them, and in which codec it lies there: by real clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient

from headwater.logtier.records.batch import iterate_batches
from headwater.logtier.records.compression import CODECS

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, TopicFactory

pytestmark = pytest.mark.slow

POLLS_MAX = 200


@pytest.fixture
def kafka_python_admin(bootstrap_servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    yield client
    client.close()


def produce(
    bootstrap_servers: str, topic: str, values: list[bytes], partition: int = 0, compression: str = "none"
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 50,
            "compression.type": compression,
            "enable.idempotence": True,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=partition, headers=[("source", b"tower")])
    assert producer.flush(30) == 0


def consume(bootstrap_servers: str, topic: str, count: int) -> list[tuple[int | None, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0)])
    found: list[tuple[int | None, bytes | None]] = []
    try:
        for _ in range(POLLS_MAX):
            for message in consumer.consume(count, 1):
                assert message.error() is None
                assert message.headers() == [("source", b"tower")]
                found.append((message.offset(), message.value()))
            if len(found) == count:
                break
    finally:
        consumer.close()
    return found


def test_deleted_records_are_gone_for_readers(
    admin: AdminClient, bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    produce(bootstrap_servers, topic, [b"%d" % i for i in range(10)])
    [result] = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    assert result.result(30).low_watermark == 4
    assert consume(bootstrap_servers, topic, 6) == [(i, b"%d" % i) for i in range(4, 10)]
    [refused] = admin.delete_records([TopicPartition(topic, 0, 99)]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(30)
    assert caught.value.args[0].name() == "OFFSET_OUT_OF_RANGE"


def test_kafka_python_deletes_records(
    kafka_python_admin: KafkaAdminClient, bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    produce(bootstrap_servers, topic, [b"%d" % i for i in range(10)])
    kafka_python_admin.delete_records({KafkaPythonPartition(topic, 0): 7})
    assert consume(bootstrap_servers, topic, 3) == [(i, b"%d" % i) for i in range(7, 10)]


def test_librdkafka_lists_offsets_by_their_names_and_by_time(
    admin: AdminClient, bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    produce(bootstrap_servers, topic, [b"a", b"b", b"c"])
    partition = TopicPartition(topic, 0)
    specs: Any = OffsetSpec

    def offset(spec: Any) -> int:
        [result] = admin.list_offsets({partition: spec}).values()
        return int(result.result(30).offset)

    assert offset(specs.earliest()) == 0
    assert offset(specs.latest()) == 3
    assert offset(specs.max_timestamp()) in range(3)
    assert offset(specs.for_timestamp(0)) == 0
    assert offset(specs.for_timestamp(2**60)) == -1


@pytest.mark.parametrize("sent", ["none", "lz4", "gzip"])
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_keeps_its_own_codec(
    headwater_broker: BrokerProcess, bootstrap_servers: str, new_topic: TopicFactory, sent: str, stored: str
) -> None:
    topic = new_topic(config={"compression.type": stored})
    values = [b"%06d " % i * 20 for i in range(500)]
    produce(bootstrap_servers, topic, values, compression=sent)
    assert [value for _, value in consume(bootstrap_servers, topic, 500)] == values
    segment = headwater_broker.data_dir / f"{topic}-0" / f"{0:020}.log"
    codecs = {header.codec for header, _ in iterate_batches(segment.read_bytes())}
    assert codecs == {CODECS["none" if stored == "uncompressed" else stored]}


def test_kafka_python_follows_many_partitions_in_a_session(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    """kafka-python keeps incremental fetch sessions: what is quiet is not asked for again."""
    topic = new_topic(partitions=20)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=100)
    partitions = [KafkaPythonPartition(topic, index) for index in range(20)]
    try:
        consumer.assign(partitions)
        found: list[tuple[int, bytes]] = []
        for round_ in range(3):
            for index in (3, 11, 19):
                produce(bootstrap_servers, topic, [b"%d" % round_], partition=index)
            for _ in range(POLLS_MAX):
                for partition, records in consumer.poll(timeout_ms=500).items():
                    found += [(partition.partition, record.value) for record in records]
                if len(found) == 3 * (round_ + 1):
                    break
        # A partition is given back and another one begins anew within the session.
        consumer.assign(partitions[:12])
        consumer.seek(partitions[11], 0)
        again: list[tuple[int, bytes]] = []
        for _ in range(POLLS_MAX):
            for partition, records in consumer.poll(timeout_ms=500).items():
                again += [(partition.partition, record.value) for record in records]
            if [each for each in again if each[0] == 11] == [(11, b"%d" % i) for i in range(3)]:
                break
    finally:
        consumer.close()
    assert sorted(found) == [(index, b"%d" % i) for index in (3, 11, 19) for i in range(3)]
    assert [each for each in again if each[0] == 11] == [(11, b"%d" % i) for i in range(3)]
