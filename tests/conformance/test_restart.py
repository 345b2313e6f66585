"""What a broker knew before it stopped or was killed, it knows when it is back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = pytest.mark.slow

# Kafka's default is to wait three seconds for more members of a new group.
NO_WAIT_FOR_MEMBERS = {"group.initial.rebalance.delay.ms": "0"}

ends = pytest.mark.parametrize("end", ["stop", "kill"])


def end_broker(broker: BrokerProcess, end: str) -> None:
    if end == "stop":
        broker.stop()
    else:
        broker.kill()


def produce(address: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def consumer_of(address: str, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )


@ends
def test_records_topics_and_configs_survive(start_broker: StartBroker, tmp_path: Path, end: str) -> None:
    broker = start_broker(tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("kept", 3, 1, config={"retention.ms": "123456789"})])["kept"].result(30)
    admin.create_topics([NewTopic("gone", 1, 1)])["gone"].result(30)
    admin.delete_topics(["gone"])["gone"].result(30)
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    entry = ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "kept", incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result()
    [topic_id] = [d.result().topic_id for d in admin.describe_topics(TopicCollection(["kept"])).values()]
    cluster_id = admin.describe_cluster().result().cluster_id
    produce(broker.address, "kept", [b"%d" % i for i in range(1000)])
    end_broker(broker, end)

    again = start_broker(tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": again.address})
    topics = admin.list_topics(timeout=30).topics
    assert "gone" not in topics
    assert sorted(topics["kept"].partitions) == [0, 1, 2]
    configs = admin.describe_configs([resource])[resource].result()
    assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("123456789", "2000000")
    assert [str(d.result().topic_id) for d in admin.describe_topics(TopicCollection(["kept"])).values()] == [
        str(topic_id)
    ]
    assert admin.describe_cluster().result().cluster_id == cluster_id
    produce(again.address, "kept", [b"1000"])
    consumer = consumer_of(again.address, "reader")
    consumer.assign([TopicPartition("kept", 0, 0)])
    messages = consumer.consume(1001, 30)
    consumer.close()
    assert [(m.offset(), m.value()) for m in messages] == [(i, b"%d" % i) for i in range(1001)]
    again.stop()


def test_a_broker_starts_without_a_dynamic_config_that_its_properties_no_longer_allow(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data", properties={"node.id": "1"})
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    entry = ConfigEntry("message.max.bytes", "90000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result()
    broker.stop()

    again = start_broker(tmp_path / "data", properties={"node.id": "1", "socket.request.max.bytes": "50000000"})
    assert again.log().count("message.max.bytes (90000000) is above socket.request.max.bytes (50000000)") == 1
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": again.address})
    configs = admin.describe_configs([resource])[resource].result()
    assert configs["message.max.bytes"].value == "1048588"
    again.stop()


@ends
def test_committed_offsets_survive(start_broker: StartBroker, tmp_path: Path, end: str) -> None:
    broker = start_broker(tmp_path / "data", properties=NO_WAIT_FOR_MEMBERS)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    produce(broker.address, "orders", [b"%d" % i for i in range(10)])
    consumer = consumer_of(broker.address, "billing")
    consumer.subscribe(["orders"])
    messages = consumer.consume(7, 30)
    assert len(messages) == 7
    consumer.commit(message=messages[-1], asynchronous=False)
    consumer.close()
    # A member that was killed before it could leave keeps its place for its session's time, as in Kafka.
    while admin.describe_consumer_groups(["billing"])["billing"].result().state.name != "EMPTY":
        time.sleep(0.05)
    del admin
    end_broker(broker, end)

    again = start_broker(tmp_path / "data", properties=NO_WAIT_FOR_MEMBERS)
    consumer = consumer_of(again.address, "billing")
    [committed] = consumer.committed([TopicPartition("orders", 0)], 30)
    assert committed.offset == 7
    consumer.subscribe(["orders"])
    assert [m.value() for m in consumer.consume(3, 30)] == [b"7", b"8", b"9"]
    consumer.close()
    again.stop()
