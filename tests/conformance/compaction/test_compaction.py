"""Compacted topics on a live broker: under load, killed in the middle, and as two clients see them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tests.compaction import await_compacted, log_bytes
from tests.conftest import BrokerProcess, StartBroker
from tests.waiting import until

pytestmark = pytest.mark.slow

TOPIC = "latest"
CLEANER = {"log.cleaner.backoff.ms": "100", "group.initial.rebalance.delay.ms": "0"}
KEYS = 500
WAIT_S = 60


def create(broker: BrokerProcess, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    settings = {"cleanup.policy": "compact", "segment.bytes": "300000", "min.cleanable.dirty.ratio": "0.1"} | {
        name.replace("_", "."): value for name, value in configs.items()
    }
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(30)


def produce(broker: BrokerProcess, first: int, count: int, **settings: object) -> dict[bytes, bytes | None]:
    """Write `count` records over KEYS keys, every tenth a tombstone; return the last value of each key."""
    # Batches have to fit into the segments.
    common = {"bootstrap.servers": broker.address, "enable.idempotence": True, "batch.size": 60_000}
    producer = Producer({**common, **settings})
    refused: list[object] = []
    last: dict[bytes, bytes | None] = {}
    for number in range(first, first + count):
        key = b"key-%d" % ((number * 2_654_435_761 % 2**32 >> 12) % KEYS)
        value = None if number % 10 == 3 else b"%d" % number + b"." * 100
        last[key] = value
        producer.produce(
            TOPIC, key=key, value=value, on_delivery=lambda error, _: refused.append(error) if error else None
        )
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert refused == []
    return last


def read(broker: BrokerProcess, offset: int = 0) -> list[tuple[int, bytes, bytes | None]]:
    """Everything from an offset to the end, with librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[int, bytes, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            key, position = message.key(), message.offset()
            assert key is not None
            assert position is not None
            found.append((position, key, message.value()))
    finally:
        consumer.close()


def latest(found: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    """What a table made of the records holds."""
    table: dict[bytes, bytes | None] = {}
    for _, key, value in found:
        table[key] = value
    return {key: value for key, value in table.items() if value is not None}


def live(expected: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in expected.items() if value is not None}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> Iterator[BrokerProcess]:
    yield start_broker(tmp_path / "data", properties=CLEANER)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_topic_is_compacted_while_it_is_written_and_keeps_the_last_of_each_key(
    broker: BrokerProcess, codec: str
) -> None:
    create(broker)
    expected: dict[bytes, bytes | None] = {}
    for first in range(0, 60_000, 10_000):
        expected |= produce(broker, first, 10_000, **{"compression.type": codec})
    if codec == "none":
        await_compacted(broker, TOPIC, 1_000_000)
    found = read(broker)
    assert latest(found) == live(expected)
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})


def test_two_clients_see_the_same_records_and_find_their_way_over_gaps(broker: BrokerProcess) -> None:
    create(broker)
    expected = produce(broker, 0, 20_000)
    await_compacted(broker, TOPIC, 1_000_000)
    # Segments are replaced in the folder before readers see the new ones.
    until(lambda: len(read(broker)) < 20_000)
    found = read(broker)
    assert latest(found) == live(expected)
    offsets = [offset for offset, _, _ in found]
    gap = next(i for i in range(len(offsets) - 1) if offsets[i + 1] > offsets[i] + 1)
    assert read(broker, offsets[gap] + 1)[0][0] == offsets[gap + 1]
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None, enable_auto_commit=False)
    try:
        partition = PythonTopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = consumer.end_offsets([partition])[partition]
        seen: list[tuple[int, bytes, bytes | None]] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1_000).values():
                seen += [(record.offset, record.key, record.value) for record in records]
    finally:
        consumer.close()
    assert seen == read(broker)


def test_a_broker_killed_while_it_compacts_loses_nothing_and_leaves_no_process(
    broker: BrokerProcess, start_broker: StartBroker
) -> None:
    create(broker)
    expected: dict[bytes, bytes | None] = {}
    for round_ in range(4):
        expected |= produce(broker, round_ * 15_000, 15_000)
        workers = children(broker.pid)
        time.sleep(0.05 * round_)
        # The broker alone: its cleaner has to notice by itself.
        os.kill(broker.pid, signal.SIGKILL)
        broker.process.wait(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while any(Path(f"/proc/{worker}").exists() for worker in workers):
            assert time.monotonic() < deadline, "the cleaner process outlives its broker"
            time.sleep(0.02)
        broker = start_broker(broker.data_dir, properties=CLEANER)
        assert latest(read(broker)) == live(expected)
        left = [path.name for path in (broker.data_dir / f"{TOPIC}-0").iterdir() if path.suffix == ".swap"]
        assert left == []
    await_compacted(broker, TOPIC, 1_000_000)
    assert latest(read(broker)) == live(expected)


def test_the_cleaner_process_ends_when_there_is_nothing_to_do_and_with_a_clean_stop(broker: BrokerProcess) -> None:
    create(broker)
    produce(broker, 0, 20_000)
    await_compacted(broker, TOPIC, 1_000_000)
    deadline = time.monotonic() + WAIT_S
    while children(broker.pid):
        assert time.monotonic() < deadline, "an idle cleaner process keeps its memory"
        time.sleep(0.05)
    produce(broker, 20_000, 20_000)
    broker.stop()


def test_a_transactions_markers_and_aborted_records_survive_compaction_rightly(broker: BrokerProcess) -> None:
    create(broker)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "compacted"})
    producer.init_transactions(WAIT_S)
    expected: dict[bytes, bytes | None] = {}
    for round_ in range(60):
        producer.begin_transaction()
        written: dict[bytes, bytes | None] = {}
        for number in range(100):
            key, value = b"key-%d" % (number * (round_ + 1) % KEYS), b"%d-%d" % (round_, number) + b"." * 100
            written[key] = value
            producer.produce(TOPIC, key=key, value=value)
        if round_ % 3 == 2:
            assert producer.flush(WAIT_S) == 0
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            expected |= written
    size = log_bytes(broker, TOPIC)
    await_compacted(broker, TOPIC, size // 2 if size > 600_000 else size)
    assert latest(read(broker)) == live(expected)


def test_offsets_that_groups_committed_are_there_after_their_topic_was_compacted(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    properties = CLEANER | {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "20000",
        "log.cleaner.min.cleanable.ratio": "0.1",
    }
    broker = start_broker(tmp_path / "data", properties=properties)
    create(broker)
    produce(broker, 0, 1_000)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "group", "enable.auto.commit": False})
    try:
        for offset in range(500):
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    finally:
        consumer.close()
    folder = broker.data_dir / "__consumer_offsets-0"
    await_compacted(broker, "__consumer_offsets", 45_000)
    broker.kill()
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    broker = start_broker(tmp_path / "data", properties=properties)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "group"})
    try:
        (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)
        assert committed.offset == 499
    finally:
        consumer.close()
