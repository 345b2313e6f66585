"""Several log folders on a running broker: a failed one, moves between them, and syncs before acknowledgements."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = pytest.mark.slow

WAIT_S = 60


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("one", "two")]


def start(start_broker: StartBroker, folders: list[Path], **properties: str) -> BrokerProcess:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return start_broker(folders[0].parent / "data", properties={"log.dirs": ",".join(map(str, folders))} | named)


def create(address: str, topic: str, partitions: int, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(WAIT_S)


def produce(address: str, topic: str, partition: int, values: range, size: int = 100) -> list[int]:
    """Produce and return the codes of errors."""
    errors: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error.code())

    producer = Producer({"bootstrap.servers": address, "retries": 0, "message.timeout.ms": 10_000, "log_level": 0})
    for value in values:
        producer.produce(topic, b"%d " % value + b"v" * size, partition=partition, on_delivery=note)
        producer.poll(0)
    producer.flush(WAIT_S)
    return errors


def read(address: str, topic: str, partition: int, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 1):
            value = message.value()
            if message.error() is None and value is not None:
                found.append(int(value.split()[0]))
    consumer.close()
    return found


def describe(address: str) -> dict[str, dict[str, object]]:
    """What kafka-python shows, by folder."""
    client = KafkaAdminClient(bootstrap_servers=address)
    [broker] = client.describe_log_dirs()
    client.close()
    return {each["log_dir"]: each for each in broker["log_dirs"]}


def test_a_folder_that_goes_away_takes_its_partitions_offline_and_no_others(
    start_broker: StartBroker, folders: list[Path]
) -> None:
    broker = start(start_broker, folders)
    create(broker.address, "flights", 4, segment_bytes="1000000")
    for partition in range(4):
        assert produce(broker.address, "flights", partition, range(100)) == []
    away = sorted(int(path.name[-1]) for path in folders[1].glob("flights-*"))
    assert len(away) == 2
    folders[1].rename(folders[1].with_name("away"))
    # What is open goes on; the next segment cannot be begun.
    assert KafkaError.KAFKA_STORAGE_ERROR in produce(broker.address, "flights", away[0], range(100, 200), 20_000)
    with ThreadPoolExecutor(4) as pool:
        # Who begins now waits for a leader.
        errors = list(pool.map(lambda each: produce(broker.address, "flights", each, range(100, 110)), range(4)))
    assert errors == [[KafkaError._MSG_TIMED_OUT] * 10 if each in away else [] for each in range(4)]
    assert broker.log().count("is offline until the broker is restarted") == 1
    client = AdminClient({"bootstrap.servers": broker.address})
    described = client.list_topics("flights", timeout=WAIT_S).topics["flights"].partitions
    assert {index: described[index].leader for index in range(4)} == {i: -1 if i in away else 1 for i in range(4)}
    shown = describe(broker.address)
    assert shown[str(folders[1])]["error_code"] == 56
    assert shown[str(folders[0])]["error_code"] == 0
    broker.stop()
    folders[1].with_name("away").rename(folders[1])
    again = start(start_broker, folders)
    assert read(again.address, "flights", away[1], 100) == list(range(100))
    assert produce(again.address, "flights", away[0], range(3)) == []
    again.stop()


def test_the_broker_ends_with_the_folder_of_its_metadata(start_broker: StartBroker, folders: list[Path]) -> None:
    broker = start(start_broker, folders)
    create(broker.address, "flights", 2, segment_bytes="1000000")
    [partition] = [int(path.name[-1]) for path in folders[0].glob("flights-*")]
    folders[0].rename(folders[0].with_name("away"))
    produce(broker.address, "flights", partition, range(200), 20_000)
    assert broker.process.wait(WAIT_S) == 1
    last = broker.log().strip().splitlines()[-1]
    assert str(folders[0]) in last
    assert "metadata" in last
    assert "Traceback" not in broker.log()


def test_a_replica_moves_to_another_folder_while_it_is_written_to(
    start_broker: StartBroker, folders: list[Path]
) -> None:
    broker = start(start_broker, folders, log_segment_delete_delay_ms="0")
    create(broker.address, "flights", 2, segment_bytes="2000000")
    assert produce(broker.address, "flights", 0, range(50_000)) == []
    source = next(each for each in folders if (each / "flights-0").exists())
    target = next(each for each in folders if each != source)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(produce, broker.address, "flights", 0, range(50_000, 150_000))
        client = KafkaAdminClient(bootstrap_servers=broker.address)
        client.alter_replica_log_dirs({("flights", 0, 1): str(target)})
        client.close()
        assert writing.result() == []
    deadline = time.monotonic() + WAIT_S
    while not (target / "flights-0").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (source / "flights-0").exists()
    assert read(broker.address, "flights", 0, 150_000) == list(range(150_000))
    broker.kill()
    again = start(start_broker, folders)
    assert read(again.address, "flights", 0, 150_000) == list(range(150_000))
    assert os.listdir(target / "flights-0")
    again.stop()


def test_with_flush_messages_1_what_is_acknowledged_was_synced(start_broker: StartBroker, folders: list[Path]) -> None:
    broker = start(start_broker, folders)
    create(broker.address, "flights", 3, flush_messages="1")
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(produce, broker.address, "flights", i % 3, range(2_000)) for i in range(6)]
        assert [job.result() for job in jobs] == [[]] * 6
    for partition in range(3):
        assert sorted(read(broker.address, "flights", partition, 4_000)) == sorted([*range(2_000)] * 2)
    broker.stop()
