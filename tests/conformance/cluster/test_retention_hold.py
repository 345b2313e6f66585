"""A group holds back retention on every replica, wherever its coordinator is, and also while there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.state_topic.topic import partition_for
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "flights"
IDS = (1, 2, 3)
OFFSETS_PARTITIONS = 3
RECORDS = 300
SOME_PASSES_S = 2.0
NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
PROPERTIES = {
    "log_retention_check_interval_ms": "200",
    "offsets_topic_num_partitions": str(OFFSETS_PARTITIONS),
    # One replica each: with its broker a coordinator is away.
    "offsets_topic_replication_factor": "1",
    "group_initial_rebalance_delay_ms": "0",
}


def base_offsets(cluster: ClusterProcesses, broker_id: int) -> list[int]:
    return sorted(int(path.stem) for path in (cluster.folder / f"data-{broker_id}" / f"{TOPIC}-0").glob("*.log"))


def begins(cluster: ClusterProcesses) -> dict[int, int]:
    """Where each replica begins on disk."""
    return {each: base_offsets(cluster, each)[0] for each in IDS}


def produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 1})
    for _ in range(RECORDS):
        producer.produce(TOPIC, value=b"." * 1_000)
    assert producer.flush(60) == 0


def is_done(ask: Callable[[], object]) -> bool:
    """Ask a coordinator, which may be about to begin."""
    try:
        ask()
    except KafkaException as error:
        assert error.args[0].code() in NOT_YET
        return False
    return True


def test_each_replica_keeps_what_a_group_of_another_broker_has_not_passed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.serve(*IDS, **PROPERTIES)
    admin = AdminClient({"bootstrap.servers": cluster.servers()})
    # Any group makes brokers create `__consumer_offsets`. Then a group is chosen whose coordinator is not the leader.
    finder = Consumer({"bootstrap.servers": cluster.servers(), "group.id": "finder"})
    until(lambda: is_done(lambda: finder.committed([TopicPartition("none", 0)], timeout=30)))
    finder.close()
    until(lambda: "__consumer_offsets" in admin.list_topics(timeout=30).topics)
    coordinators = admin.list_topics("__consumer_offsets", timeout=30).topics["__consumer_offsets"].partitions
    group, coordinator = next(
        (name, coordinators[partition_for(name, OFFSETS_PARTITIONS)].leader)
        for number in range(100)
        if coordinators[partition_for(name := f"archive-{number}", OFFSETS_PARTITIONS)].leader == 3
    )
    configs = {
        "segment.bytes": "10000",
        "retention.ms": "1",
        "file.delete.delay.ms": "0",
        "retention.hold.groups": group,
    }
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2, 3]], config=configs)])[TOPIC].result(60)
    produce(cluster.servers())
    for each in IDS:
        until(lambda each=each: base_offsets(cluster, each)[-1] > RECORDS // 2)  # type: ignore[misc]
    time.sleep(SOME_PASSES_S)
    assert set(begins(cluster).values()) == {0}, "a group without an offset holds all"

    def commit(offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, 0, offset)])
        until(lambda: is_done(lambda: admin.alter_consumer_group_offsets([wanted])[group].result(60)))

    bound = base_offsets(cluster, 1)[5]
    commit(bound)
    until(lambda: set(begins(cluster).values()) == {bound}, f"{begins(cluster)} instead of {bound}")
    # The group's offset is not known while its coordinator is away.
    assert coordinator == 3
    commit(RECORDS)
    until(lambda: set(begins(cluster).values()) == {RECORDS}, f"{begins(cluster)} instead of {RECORDS}")
    cluster.kill(coordinator)
    produce(cluster.servers())
    time.sleep(SOME_PASSES_S)
    assert base_offsets(cluster, 1)[0] == base_offsets(cluster, 2)[0] == RECORDS
    assert base_offsets(cluster, 1)[-1] > RECORDS
    cluster.serve(coordinator, **PROPERTIES)
    commit(2 * RECORDS)
    until(lambda: set(begins(cluster).values()) == {2 * RECORDS}, f"{begins(cluster)}")
