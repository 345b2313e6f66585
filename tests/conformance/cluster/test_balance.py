"""A broker with an empty disk joins three and gets its share, the first one is drained and removed; nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.snapshot import ClusterSnapshot, PartitionSnapshot
from headwater.cli.reassignment.throttle import ReassignmentThrottle
from headwater.logtier.client.cluster import LATEST
from headwater.logtier.client.replicas import ReplicaAdmin
from headwater.logtier.client.topics import ensure_topic
from tests.acknowledged_records import PARTITIONS, PATIENCE_S, TOPIC, client, each_read_once
from tests.conformance.cluster.conftest import headwater
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FILLING = bytes(100_000)
RECORDS = 100
#: Bytes a second: a move of one partition takes a second at the most.
THROTTLE = ("--throttle", str(20 * RECORDS * len(FILLING) // 10))
#: Two partitions of one replica, both on broker 1: more than what counts as negligible, and differs from the mean.
LARGE, LARGE_RECORD = "large", bytes(900_000)
LARGE_RECORDS = 90
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_num_partitions": "2",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_num_partitions": "2",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
}


def arguments(cluster: ClusterProcesses, *of_cluster: str) -> tuple[str, ...]:
    return ("cluster", *of_cluster, "-b", cluster.servers())


def run(cluster: ClusterProcesses, *of_cluster: str) -> str:
    """Run a command to its end; return what it printed."""
    done = headwater(*arguments(cluster, *of_cluster), within_s=PATIENCE_S)
    return done.stdout + done.stderr


def fill(addresses: str) -> None:
    """Give the moved topic a size."""
    producer = Producer({"bootstrap.servers": addresses, "acks": "all", "compression.type": "none"})
    for partition in range(PARTITIONS):
        for _ in range(RECORDS):
            producer.produce("filled", os.urandom(len(FILLING)), partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def weigh_down(addresses: str) -> None:
    """Give broker 1 more bytes than the others."""
    topic = NewTopic(LARGE, 2, replica_assignment=[[1], [1]])
    admin = AdminClient({"bootstrap.servers": addresses})
    admin.create_topics([topic])[LARGE].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": addresses, "acks": "all", "compression.type": "none"})
    for number in range(2 * LARGE_RECORDS):
        producer.produce(LARGE, LARGE_RECORD, partition=number % 2)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def replicas(snapshot: ClusterSnapshot) -> Counter[int]:
    return Counter(each for part in snapshot.partitions.values() for each in part.replicas)


def sizes(snapshot: ClusterSnapshot) -> Counter[int]:
    """The bytes of each broker's replicas."""
    found: Counter[int] = Counter()
    for part in snapshot.partitions.values():
        found.update(dict.fromkeys(part.replicas, part.size_bytes))
    return found


def parts(admin: ReplicaAdmin) -> list[PartitionSnapshot]:
    return list(read_cluster(admin)[0].partitions.values())


def leaders(snapshot: ClusterSnapshot) -> Counter[int | None]:
    return Counter(part.leader for part in snapshot.partitions.values())


def throttled(admin: ReplicaAdmin) -> list[str]:
    snapshot = read_cluster(admin)[0]
    return ReassignmentThrottle(admin, snapshot.brokers, (key.topic for key in snapshot.partitions)).throttled_topics()


def test_a_broker_is_replaced_by_one_with_an_empty_disk_while_a_producer_runs(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=6_000)
    cluster.serve(1, 2, 3, **PROPERTIES)
    addresses = cluster.servers()
    with client(addresses) as connected:
        admin = ReplicaAdmin(connected)
        for topic in (TOPIC, "filled"):
            ensure_topic(connected, topic, partitions=PARTITIONS, configs={})
        fill(addresses)
        weigh_down(addresses)
        before = sizes(read_cluster(admin)[0])
        assert before[1] > 2 * LARGE_RECORDS * len(LARGE_RECORD) > max(before[2], before[3])
        with each_read_once(addresses) as progress:
            progress.await_commits()
            cluster.serve(4, **PROPERTIES)
            until(lambda: 4 in read_cluster(admin)[0].brokers)
            kill_in_the_middle(cluster)
            printed = run(cluster, "balance", "--yes", *THROTTLE)
            assert "Removing the throttle that an earlier run has left on" in printed
            assert "Done." in printed
            assert throttled(admin) == []
            progress.await_commits()
            snapshot, reassignments = read_cluster(admin)
            assert reassignments == {}
            shares = replicas(snapshot)
            assert max(shares.values()) - min(shares.values()) <= 1 + max(shares.values()) // 5, shares
            assert set(shares) == {1, 2, 3, 4}
            bytes_after = sizes(snapshot)
            assert max(bytes_after.values()) < 2 * LARGE_RECORDS * len(LARGE_RECORD), bytes_after
            band = BalanceBand().of_bytes(bytes_after.values())
            assert [band.excess(each) for each in bytes_after.values()] == [0] * 4, bytes_after
            led = leaders(snapshot)
            assert max(led.values()) - min(led.values()) <= 1, led
            assert set(led) == {1, 2, 3, 4}
            assert "has no replica left" in run(cluster, "drain", "1", "--yes", *THROTTLE)
            assert throttled(admin) == []
            progress.await_commits()
            assert 1 not in replicas(read_cluster(admin)[0])
            cluster.stop(1)
            until(lambda: 1 not in read_cluster(admin)[0].brokers)
            run(cluster, "unregister", "1")
            progress.await_commits()
            until(lambda: all(len(part.isr) == len(part.replicas) for part in parts(admin)))
            assert {len(part.replicas) for part in parts(admin) if part.key.topic != LARGE} == {3}


def test_a_dead_broker_is_drained_from_the_other_replicas(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=6_000)
    cluster.serve(1, 2, 3, default_replication_factor="2")
    addresses = cluster.servers(2, 3)
    with client(addresses) as connected:
        admin = ReplicaAdmin(connected)
        until(lambda: len(read_cluster(admin)[0].brokers) == 3)
        ensure_topic(connected, "filled", partitions=PARTITIONS, configs={})
        fill(addresses)
        cluster.kill(1)
        until(lambda: 1 not in read_cluster(admin)[0].brokers)
        before = replicas(read_cluster(admin)[0])
        assert before[1] > 0
        assert "has no replica left" in run(cluster, "drain", "1", "--yes")
        run(cluster, "unregister", "1")
        after = read_cluster(admin)[0]
        assert replicas(after) == {2: PARTITIONS, 3: PARTITIONS}
        until(lambda: all(len(part.isr) == 2 for part in read_cluster(admin)[0].partitions.values()))
        ends = connected.list_offsets({(key.topic, key.partition): LATEST for key in after.partitions})
        assert ends == {("filled", number): RECORDS for number in range(PARTITIONS)}


def kill_in_the_middle(cluster: ClusterProcesses) -> None:
    """Kill -9 a balance that has started the first of many moves: those that run continue in the brokers."""
    moving = arguments(cluster, "balance", "--yes", "--concurrent-moves", "1", *THROTTLE)
    killed = subprocess.Popen(
        [sys.executable, "-m", "headwater", *moving], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert killed.stderr is not None
    try:
        assert killed.stderr.readline().startswith("moved 0 of "), killed.communicate()[1]
    finally:
        killed.kill()
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "it was not over"
