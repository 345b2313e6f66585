"""The lag of a group is whole on the endpoint of its coordinator, whichever brokers lead the partitions."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from headwater.logtier.cluster import group_ends
from headwater.logtier.controller.commands import NewTopic
from tests.interaction.cluster import test_members
from tests.interaction.cluster.test_members import Cluster, run

pytestmark = pytest.mark.slow

TOPIC = "flights"
#: The first of these leads: each broker two of six partitions. Two others have no replica on it.
REPLICAS = {0: [1, 2], 1: [2, 3], 2: [1, 3], 3: [2, 1], 4: [3, 1], 5: [3, 2]}
PATIENCE_S = 60
POLL_S = 0.2
LAG = "kafka_consumergroup_lag"

PROPERTIES = {
    "prometheus.port": 0,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
}

Lags = dict[str, float]


def scraped(url: str) -> Lags:
    """The lag of the group on one endpoint by partition, and the sum."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.labels.get("partition", "sum"): sample.value
        for family in families
        for sample in family.samples
        if sample.name in (LAG, f"{LAG}_sum") and sample.labels["topic"] == TOPIC
    }


def produce(address: str, counts: Mapping[int, int]) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0})
    for partition, count in counts.items():
        for _ in range(count):
            producer.produce(TOPIC, b"x", partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def commit(address: str, offsets: Mapping[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(TOPIC, *each) for each in offsets.items()], asynchronous=False)
    consumer.close()


async def await_lags(cluster: Cluster, expected: Mapping[int, int]) -> int:
    """Wait until exactly one broker has the lag of each partition, and no other broker any; return its id."""
    whole = {str(partition): float(lag) for partition, lag in expected.items()} | {"sum": float(sum(expected.values()))}
    found: dict[int, Lags] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for broker_id, broker in cluster.brokers.items():
                    assert broker.metrics_url is not None
                    found[broker_id] = await asyncio.to_thread(scraped, broker.metrics_url)
                [*having] = (broker_id for broker_id in cluster.brokers if found[broker_id])
                if len(having) == 1 and found[having[0]] == whole:
                    return having[0]
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not {whole}: {found}") from None


def test_one_broker_reports_the_lag_of_all_partitions_wherever_their_leaders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ends, "INTERVAL_S", 0.5)
    # Of no interest here, and a busy machine should not change the leaders.
    monkeypatch.setattr(test_members, "SESSION_MS", 30_000)
    monkeypatch.setattr(test_members, "PATIENCE_S", PATIENCE_S)

    async def scenario(cluster: Cluster) -> None:
        (created,) = await cluster.controller().create_topics([NewTopic(TOPIC, -1, -1, REPLICAS)])
        assert created.error is None
        address = ",".join(each.bootstrap_address for each in cluster.brokers.values())
        await asyncio.to_thread(produce, address, {partition: 10 + partition for partition in REPLICAS})
        await asyncio.to_thread(commit, address, {partition: partition for partition in REPLICAS})
        leaders = [each.leader for each in cluster.image(1).topics[TOPIC].partitions]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        coordinator = await await_lags(cluster, dict.fromkeys(REPLICAS, 10))

        # The coordinator repeats its requests.
        await asyncio.to_thread(produce, address, {0: 5, 3: 7, 4: 9})
        lags = {0: 15, 1: 10, 2: 10, 3: 17, 4: 19, 5: 10}
        assert await await_lags(cluster, lags) == coordinator

        # The next one has loaded the group's offsets, and asks; the ends of all partitions have leaders.
        await cluster.stop(coordinator)
        await cluster.settled()
        successor = await await_lags(cluster, lags)
        assert successor != coordinator
        # Back, the former one tells nothing that it knew.
        await cluster.start(coordinator, properties=PROPERTIES)
        await cluster.settled()
        address = ",".join(each.bootstrap_address for each in cluster.brokers.values())
        await asyncio.to_thread(produce, address, {5: 3})
        await await_lags(cluster, lags | {5: 13})

    run(tmp_path, scenario, PROPERTIES)
