"""Groups that hold back retention and compaction on a live broker, as a consumer's commits move them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compaction import log_bytes
from tests.conftest import BrokerProcess, StartBroker
from tests.waiting import until

pytestmark = pytest.mark.slow

TOPIC, GROUP = "flights", "archive"
PROPERTIES = {
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}
RECORDS = 400
VALUE = b"." * 1_000
#: Batches of one record each, a few in a segment.
SEGMENT_BYTES = 10_000
#: Passes of retention and of the cleaner that would have done what is held.
SOME_PASSES_S = 1.5


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> Iterator[BrokerProcess]:
    yield start_broker(tmp_path / "data", properties=PROPERTIES)


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def create(broker: BrokerProcess, **configs: str) -> None:
    settings = {"segment.bytes": str(SEGMENT_BYTES), "retention.hold.groups": GROUP, "file.delete.delay.ms": "0"} | {
        name.replace("_", "."): value for name, value in configs.items()
    }
    admin = admin_of(broker)
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(30)


def produce(broker: BrokerProcess, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 1})
    for number in range(count):
        producer.produce(TOPIC, key=b"key-%d" % (number % 10), value=VALUE)
    assert producer.flush(60) == 0


def commit(broker: BrokerProcess, offset: int) -> None:
    wanted = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0, offset)])
    admin = admin_of(broker)
    admin.alter_consumer_group_offsets([wanted])[GROUP].result(30)


def start_and_end(broker: BrokerProcess) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
    finally:
        consumer.close()
    return low, high


def start(broker: BrokerProcess) -> int:
    return start_and_end(broker)[0]


def base_offsets(broker: BrokerProcess) -> list[int]:
    return sorted(int(path.stem) for path in (broker.data_dir / f"{TOPIC}-0").glob("*.log"))


def test_retention_deletes_what_the_group_has_passed_and_no_more(broker: BrokerProcess) -> None:
    create(broker, retention_ms="1")
    produce(broker)
    time.sleep(SOME_PASSES_S)
    assert start(broker) == 0, "a group without an offset holds all"
    segments = base_offsets(broker)
    assert len(segments) > 10
    commit(broker, segments[4] + 1)
    until(lambda: start(broker) == segments[4])
    commit(broker, segments[9])
    until(lambda: start(broker) == segments[9])
    time.sleep(SOME_PASSES_S)
    assert start(broker) == segments[9]
    admin = admin_of(broker)
    admin.delete_consumer_groups([GROUP])[GROUP].result(30)
    produce(broker)
    time.sleep(SOME_PASSES_S)
    assert start(broker) == segments[9], "a deleted group holds all"
    commit(broker, 2 * RECORDS + 1)
    time.sleep(SOME_PASSES_S)
    assert start(broker) == segments[9], "an offset beyond the log's end holds all"
    commit(broker, 2 * RECORDS)
    until(lambda: start(broker) == 2 * RECORDS)


def test_delete_records_is_obeyed(broker: BrokerProcess) -> None:
    create(broker, retention_ms="1")
    produce(broker)
    wanted = TopicPartition(TOPIC, 0, RECORDS // 2)
    admin = admin_of(broker)
    admin.delete_records([wanted])[TopicPartition(TOPIC, 0)].result(30)
    assert start(broker) == RECORDS // 2
    until(lambda: base_offsets(broker)[1] > RECORDS // 2)


def test_a_full_hold_is_given_up_from_the_oldest_record_on(broker: BrokerProcess) -> None:
    limit = 15 * SEGMENT_BYTES
    create(broker, retention_ms="1", retention_hold_max_bytes=str(limit))
    produce(broker)
    until(lambda: start(broker) > 0)
    time.sleep(SOME_PASSES_S)
    assert 0 < start(broker) < RECORDS
    assert limit - SEGMENT_BYTES < log_bytes(broker, TOPIC) <= limit
    assert "flights-0: retention.hold.max.bytes (150000) is reached" in broker.log()


def test_an_offset_of_a_deleted_topic_does_not_release_a_new_one_of_its_name(broker: BrokerProcess) -> None:
    create(broker, retention_ms="1")
    produce(broker)
    commit(broker, RECORDS)
    until(lambda: start(broker) == RECORDS)
    admin = admin_of(broker)
    admin.delete_topics([TOPIC])[TOPIC].result(30)
    create(broker, retention_ms="1")
    produce(broker)
    time.sleep(SOME_PASSES_S)
    assert start_and_end(broker) == (0, RECORDS)


def test_compaction_removes_no_record_that_the_group_has_not_passed(broker: BrokerProcess) -> None:
    create(broker, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    produce(broker)
    segments = base_offsets(broker)
    bound = segments[len(segments) // 2]

    def offsets() -> list[int]:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            found: list[int] = []
            while not found or found[-1] < RECORDS - 1:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                offset = message.offset()
                assert offset is not None
                found.append(offset)
        finally:
            consumer.close()
        return found

    time.sleep(SOME_PASSES_S)
    assert offsets() == list(range(RECORDS))
    commit(broker, bound)
    until(lambda: len(offsets()) < RECORDS)
    time.sleep(SOME_PASSES_S)
    found = offsets()
    assert len([each for each in found if each < bound]) == 10, "the last of each key"
    assert [each for each in found if each >= bound] == list(range(bound, RECORDS))
