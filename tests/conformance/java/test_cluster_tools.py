"""Kafka 4.1.1's administration tools on three brokers, each reached through any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import FaultyCluster

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    started = FaultyCluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.end()


def described(tool: KafkaTool, server: str, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of each partition."""
    found = {}
    output = tool(TOPICS, "--bootstrap-server", server, "--describe", "--topic", topic)
    for line in output.splitlines():
        if match := re.search(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S*)", line):
            replicas, isr = ([int(each) for each in match[n].split(",") if each] for n in (3, 4))
            found[int(match[1])] = (int(match[2]) if match[2] != "none" else -1, replicas, isr)
    return found


def test_topics_are_made_grown_and_deleted_through_any_broker(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    first, second, third = (broker.address for broker in cluster.brokers.values())
    making = ["--create", "--topic", "grown", "--partitions", "3", "--replication-factor", "3"]
    kafka_tool(TOPICS, "--bootstrap-server", first, *making)
    found = described(kafka_tool, second, "grown")
    assert {leader for leader, _, _ in found.values()} == {1, 2, 3}
    assert all(sorted(replicas) == sorted(isr) == [1, 2, 3] for _, replicas, isr in found.values())
    kafka_tool(TOPICS, "--bootstrap-server", second, "--alter", "--topic", "grown", "--partitions", "6")
    assert len(described(kafka_tool, third, "grown")) == 6
    kafka_tool(TOPICS, "--bootstrap-server", third, "--delete", "--topic", "grown")
    assert "grown" not in kafka_tool(TOPICS, "--bootstrap-server", first, "--list").split()
    too_many = ["--create", "--topic", "wide", "--replication-factor", "4"]
    assert "only 3 broker(s) are registered" in kafka_tool(TOPICS, "--bootstrap-server", first, *too_many, ends=1)


def test_assignments_are_taken_and_unknown_brokers_refused(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    server = cluster.brokers[2].address
    making = ["--bootstrap-server", server, "--create", "--topic", "placed", "--replica-assignment"]
    kafka_tool(TOPICS, *making, "3:1,2:3")
    assert described(kafka_tool, server, "placed") == {0: (3, [3, 1], [3, 1]), 1: (2, [2, 3], [2, 3])}
    refused = [*making[:-2], "lost", "--replica-assignment", "1:9"]
    assert "names broker 9, which is not registered" in kafka_tool(TOPICS, *refused, ends=1)


def test_configs_of_each_broker_and_of_all(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    server = cluster.brokers[1].address
    for broker_id in cluster.brokers:
        entity = ["--entity-type", "brokers", "--entity-name", str(broker_id)]
        altering = [*entity, "--alter", "--add-config", f"log.cleaner.threads={broker_id}"]
        kafka_tool(CONFIGS, "--bootstrap-server", server, *altering)
    for broker_id in cluster.brokers:
        entity = ["--entity-type", "brokers", "--entity-name", str(broker_id)]
        output = kafka_tool(CONFIGS, "--bootstrap-server", server, *entity, "--describe")
        assert f"log.cleaner.threads={broker_id} " in output
    default = ["--entity-type", "brokers", "--entity-default"]
    kafka_tool(CONFIGS, "--bootstrap-server", server, *default, "--alter", "--add-config", "message.max.bytes=123456")
    for broker in cluster.brokers.values():
        entity = ["--entity-type", "brokers", "--entity-name", str(broker.node_id), "--all", "--describe"]
        assert "message.max.bytes=123456 " in kafka_tool(CONFIGS, "--bootstrap-server", broker.address, *entity)


def test_preferred_leaders_are_elected(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    server = cluster.brokers[2].address
    making = ["--create", "--topic", "led", "--replica-assignment", "1:2:3"]
    kafka_tool(TOPICS, "--bootstrap-server", server, *making)
    cluster.brokers[1].terminate()
    assert described(kafka_tool, server, "led")[0][0] in (2, 3)
    cluster.start_missing()
    until_full(kafka_tool, server, "led")
    election = ["--election-type", "preferred", "--topic", "led", "--partition", "0"]
    output = kafka_tool(ELECTION, "--bootstrap-server", server, *election)
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in output
    assert described(kafka_tool, server, "led")[0][0] == 1
    assert "Valid replica already elected for partitions led-0" in kafka_tool(
        ELECTION, "--bootstrap-server", server, *election
    )


def test_log_folders_of_every_broker_are_described(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    server = cluster.brokers[3].address
    kafka_tool(TOPICS, "--bootstrap-server", server, "--create", "--topic", "kept", "--replica-assignment", "1:2:3")
    output = kafka_tool(LOG_DIRS, "--bootstrap-server", server, "--describe", "--topic-list", "kept")
    answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert {
        broker["broker"]: [partition["partition"] for folder in broker["logDirs"] for partition in folder["partitions"]]
        for broker in answer["brokers"]
    } == {1: ["kept-0"], 2: ["kept-0"], 3: ["kept-0"]}


def until_full(tool: KafkaTool, server: str, topic: str) -> None:
    """Wait until all replicas are in the ISR: each look is the start of a JVM."""
    for _ in range(30):
        if all(sorted(isr) == sorted(replicas) for _, replicas, isr in described(tool, server, topic).values()):
            return
    raise AssertionError(f"the ISRs of {topic} did not fill")
