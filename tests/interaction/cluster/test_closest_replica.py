"""A consumer with a client.rack, librdkafka's and ours, reads from the replica in its rack (KIP-392).

Kafka's system test fetch_from_follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.logtier.broker import Broker
from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.logtier.config.cluster import RACK_AWARE_SELECTOR
from headwater.logtier.controller.commands import NewTopic
from tests.interaction.cluster.test_members import Cluster

RECORDS = 200
PATIENCE_S = 30


def bytes_out(broker: Broker, topic: str) -> int:
    assert broker.parts is not None
    traffic = broker.parts.services.metrics.topics.get(topic)
    return 0 if traffic is None else traffic.bytes_out


def produce(address: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for _ in range(count):
        producer.produce("flights", b"x" * 1000)
    assert producer.flush(PATIENCE_S) == 0


def consume(consumer: Consumer, count: int) -> int:
    found = 0
    while found < count:
        records = consumer.consume(count - found, PATIENCE_S)
        assert records, f"{found} of {count} records came"
        found += sum(record.error() is None for record in records)
    return found


def consume_by_librdkafka(address: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "readers", "client.rack": "b", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("flights", 0, 0)])
    assert consume(consumer, RECORDS) == RECORDS
    produce(address, RECORDS)
    assert consume(consumer, RECORDS) == RECORDS
    consumer.close()


def consume_by_our_client(address: str) -> None:
    key = ("flights", 0)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(address), rack="b")) as client:
        position = 0
        for _ in range(2):
            end = client.list_offsets({key: LATEST})[key]
            assert end == position + RECORDS
            for fetched in read_partition(client, *key, position, end, FetchConfig()):
                position = fetched.next_offset
            assert position == end
            if end == RECORDS:
                produce(address, RECORDS)


@pytest.mark.parametrize("consume_all", [consume_by_librdkafka, consume_by_our_client])
def test_a_consumer_reads_from_the_follower_in_its_rack(consume_all: Callable[[str], None], tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        try:
            for each, rack in ((1, "a"), (2, "b"), (3, "c")):
                selector = {"broker.rack": rack, "replica.selector.class": RACK_AWARE_SELECTOR}
                await cluster.start(each, properties=selector)
            await cluster.settled()
            (created,) = await cluster.controller().create_topics([NewTopic("flights", -1, -1, {0: [1, 2, 3]})])
            assert created.error is None
            address = cluster.brokers[1].bootstrap_address
            await asyncio.to_thread(produce, address, RECORDS)
            await asyncio.to_thread(consume_all, address)
            sent = [bytes_out(cluster.brokers[each], "flights") for each in (1, 2, 3)]
            assert sent[1] >= 2 * RECORDS * 1000
            assert sent[0] == sent[2] == 0
        finally:
            for each in list(cluster.brokers):
                await cluster.stop(each)

    asyncio.run(main())
