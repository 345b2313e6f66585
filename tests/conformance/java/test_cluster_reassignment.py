"""Kafka 4.1.1's ReassignPartitionsCommand on three brokers: generate, execute, list, cancel, verify, with throttles."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.reassignments import (
    NO_REASSIGNMENT_IN_PROGRESS,
    alter_partition_reassignments,
    list_partition_reassignments,
)
from tests.faults.processes import FaultyCluster, until

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
WAIT_S = 120
RECORDS, RECORD_BYTES = 200, 50_000
#: Bytes a second: with the first rate, the 10 MB of a partition take longer than any test; with the second, a moment.
SLOW, FAST = 10_000, 1_000_000_000
THROTTLED_REPLICAS = ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"]
THROTTLED_RATES = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    properties = {
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    started = FaultyCluster(tmp_path_factory.mktemp("cluster"), properties=properties)
    try:
        started.start()
        yield started
    finally:
        started.end()


class Moves:
    """The tool with one file of assignments, through any broker."""

    def __init__(self, tool: KafkaTool, cluster: FaultyCluster, folder: Path) -> None:
        self.tool = tool
        self.cluster = cluster
        self.file = folder / "move.json"

    def write(self, **assignments: list[list[int]]) -> None:
        """The brokers of each partition of each topic."""
        partitions = [
            {"topic": topic, "partition": index, "replicas": replicas}
            for topic, found in assignments.items()
            for index, replicas in enumerate(found)
        ]
        self.file.write_text(json.dumps({"version": 1, "partitions": partitions}))

    def run(self, through: int, *arguments: str, ends: int = 0) -> str:
        return self.tool(REASSIGN, "--bootstrap-server", self.cluster.brokers[through].address, *arguments, ends=ends)

    def with_file(self, through: int, *arguments: str, ends: int = 0) -> str:
        return self.run(through, "--reassignment-json-file", str(self.file), *arguments, ends=ends)

    def verified(self, through: int, *completed: str) -> str:
        """Verify until the partitions are moved; the last output, whose verification removed the throttles."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            output = self.with_file(through, "--verify")
            if all(f"Reassignment of partition {each} is completed." in output for each in completed):
                return output
            until(deadline_s, f"{completed} were not moved: {output}")


@pytest.fixture
def moves(kafka_tool: KafkaTool, cluster: FaultyCluster, tmp_path: Path) -> Moves:
    return Moves(kafka_tool, cluster, tmp_path)


def replicas(cluster: FaultyCluster, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of each partition."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(topic, WAIT_S).topics[topic]
    return [(each.leader, each.replicas, sorted(each.isrs)) for _, each in sorted(found.partitions.items())]


def throttles(cluster: FaultyCluster, topic: str) -> dict[str, str]:
    """The configs of throttles that are set: of the topic, and of each broker with its id."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resources = {ConfigResource(ResourceType.TOPIC, topic): ""}
    resources |= {ConfigResource(ResourceType.BROKER, str(each)): f"{each}:" for each in cluster.brokers}
    found = {}
    for resource, prefix in resources.items():
        [future] = admin.describe_configs([resource]).values()
        for name, entry in future.result(WAIT_S).items():
            if name in THROTTLED_REPLICAS + THROTTLED_RATES and not entry.is_default:
                found[prefix + name] = str(entry.value)
    return found


def folders(cluster: FaultyCluster, broker_id: int, topic: str) -> list[str]:
    """The folders of a topic's partitions on a broker, without those that are being deleted."""
    return sorted(each.name for each in cluster.brokers[broker_id].data.glob(f"**/{topic}-*") if each.suffix == "")


def made(cluster: FaultyCluster, topic: str, *assignment: list[int]) -> None:
    """A topic with 10 MB in each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(topic, len(assignment), replica_assignment=list(assignment))
    admin.create_topics([new])[topic].result(WAIT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(RECORDS * len(assignment)):
        producer.produce(topic, f"{number:0{RECORD_BYTES}}", partition=number % len(assignment))
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def read(cluster: FaultyCluster, topic: str, partitions: int) -> list[int]:
    """The numbers in a topic, sorted."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader-of-all"})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    seen: list[int] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(seen) < RECORDS * partitions and time.monotonic() < deadline_s:
        seen += [int((each.value() or b"")[-9:]) for each in consumer.consume(RECORDS, 0.5) if each.error() is None]
    consumer.close()
    return sorted(seen)


def test_a_reassignment_is_proposed_cancelled_carried_out_and_verified(cluster: FaultyCluster, moves: Moves) -> None:
    made(cluster, "moved", [1, 2], [2, 1])
    topics = moves.file.with_name("topics.json")
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    generated = moves.run(2, "--topics-to-move-json-file", str(topics), "--broker-list", "2,3", "--generate")
    present, proposed = re.findall(r'^\{"version".*\}$', generated, re.MULTILINE)
    assert [each["replicas"] for each in json.loads(present)["partitions"]] == [[1, 2], [2, 1]]
    assert {broker for each in json.loads(proposed)["partitions"] for broker in each["replicas"]} == {2, 3}

    moves.write(moved=[[3, 2], [2, 3]])
    started = moves.with_file(3, "--execute", "--throttle", str(SLOW))
    assert f"The inter-broker throttle limit was set to {SLOW} B/s" in started
    assert "Successfully started partition reassignments for moved-0,moved-1" in started
    assert set(throttles(cluster, "moved")) >= {*THROTTLED_REPLICAS, *(f"3:{each}" for each in THROTTLED_RATES)}
    listed = moves.run(1, "--list")
    assert "moved-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    assert "moved-1: replicas: 2,3,1. adding: 3. removing: 1." in listed
    assert "Reassignment of partition moved-0 is still in progress." in moves.with_file(2, "--verify")
    assert "Cannot execute because there is an existing partition assignment" in moves.with_file(1, "--execute", ends=1)

    cancelled = moves.with_file(2, "--cancel")
    assert "Successfully cancelled partition reassignments for: moved-0,moved-1" in cancelled
    assert "No partition reassignments found." in moves.run(3, "--list")
    assert [found[1:] for found in replicas(cluster, "moved")] == [([1, 2], [1, 2]), ([2, 1], [1, 2])]
    assert throttles(cluster, "moved") == {}

    moves.with_file(1, "--execute", "--throttle", str(SLOW))
    assert "still in progress" in moves.with_file(3, "--verify")
    # The broker with the half of the copies is killed, and so is the controller: the reassignment continues.
    controller = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=WAIT_S).controller_id
    for broker_id in sorted({3, controller}):
        cluster.brokers[broker_id].kill()
        cluster.start_missing()
    assert moves.run(1, "--list").count(" adding: 3. removing: 1.") == 2
    moves.with_file(2, "--execute", "--additional", "--throttle", str(FAST))
    verified = moves.verified(1, "moved-0", "moved-1")
    assert "Clearing broker-level throttles on brokers 1,2,3" in verified
    assert "Clearing topic-level throttles on topic moved" in verified
    assert throttles(cluster, "moved") == {}
    assert [found[1:] for found in replicas(cluster, "moved")] == [([3, 2], [2, 3]), ([2, 3], [2, 3])]
    assert read(cluster, "moved", 2) == list(range(2 * RECORDS))
    deadline_s = time.monotonic() + WAIT_S
    while found := folders(cluster, 1, "moved"):
        until(deadline_s, f"broker 1 still has {found}")
    assert folders(cluster, 3, "moved") == ["moved-0", "moved-1"]


def test_what_kafka_refuses_is_refused(cluster: FaultyCluster, moves: Moves) -> None:
    made(cluster, "kept", [1, 2])
    moves.write(kept=[[1, 9]])
    assert "Unknown broker id 9" in moves.with_file(1, "--execute", ends=1)
    moves.write(kept=[[1, 2]])
    assert "None of the specified partition reassignments are active." in moves.with_file(1, "--cancel")
    moves.write(kept=[[1, 2, 3]])
    refused = moves.with_file(1, "--execute", "--disallow-replication-factor-change", ends=1)
    assert "The replication factor is changed from 2 to 3" in refused


def test_our_own_client_sees_and_moves_what_the_tool_does(cluster: FaultyCluster, moves: Moves) -> None:
    made(cluster, "ours", [1, 2])
    key, unknown = ("ours", 0), ("ours", 1)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(cluster.bootstrap_servers))) as client:
        assert list_partition_reassignments(client) == {}
        moves.write(ours=[[3, 2]])
        moves.with_file(1, "--execute", "--throttle", str(SLOW))
        expected = {key: OngoingReassignment((3, 2, 1), (3,), (1,))}
        assert list_partition_reassignments(client) == list_partition_reassignments(client, [key]) == expected
        refused = alter_partition_reassignments(client, {key: [1, 2, 3]}, allow_replication_factor_change=False)[key]
        assert refused is not None
        assert refused.name == "INVALID_REPLICATION_FACTOR"
        cancelled = alter_partition_reassignments(client, {key: None, unknown: None})
        assert {each: error and error.name for each, error in cancelled.items()} == {
            key: None,
            unknown: "UNKNOWN_TOPIC_OR_PARTITION",
        }
        again = alter_partition_reassignments(client, {key: None})[key]
        assert again is not None
        assert again.code == NO_REASSIGNMENT_IN_PROGRESS
    moves.write(ours=[[1, 2]])
    moves.verified(3, "ours-0")
    assert throttles(cluster, "ours") == {}


def test_the_group_goes_on_when_its_coordinators_partition_is_moved(cluster: FaultyCluster, moves: Moves) -> None:
    made(cluster, "grouped", [1, 2])
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "movers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["grouped"])
    seen = 0
    deadline_s = time.monotonic() + WAIT_S
    while not seen and time.monotonic() < deadline_s:
        seen += sum(each.error() is None for each in consumer.consume(10, 0.5))
    consumer.commit(asynchronous=False)
    leaders = [found[0] for found in replicas(cluster, "__consumer_offsets")]
    others = [[each for each in cluster.brokers if each != leader] for leader in leaders]
    moves.write(__consumer_offsets=others)
    moves.with_file(1, "--execute")
    moves.verified(2, "__consumer_offsets-0", "__consumer_offsets-1")
    assert [found[1] for found in replicas(cluster, "__consumer_offsets")] == others
    deadline_s = time.monotonic() + WAIT_S
    while seen < RECORDS and time.monotonic() < deadline_s:
        seen += sum(each.error() is None for each in consumer.consume(RECORDS, 0.5))
    assert seen == RECORDS
    consumer.commit(asynchronous=False)
    [committed] = consumer.committed([TopicPartition("grouped", 0)], WAIT_S)
    assert committed.offset == RECORDS
    consumer.close()
