"""Kafka 4.1.1's administration tools on three brokers, each reached through any of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.faults.processes import FaultyCluster, until

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
WAIT_S = 60
#: A consumer's coordinator is there whichever broker is away: elections of all partitions find one for each.
PROPERTIES = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    started = FaultyCluster(tmp_path_factory.mktemp("cluster"), properties=PROPERTIES)
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


def until_isr(server: str, topic: str, *expected: int) -> None:
    """Wait for the ISR of partition 0. Each look of a tool would be the start of a JVM."""
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    deadline_s = time.monotonic() + WAIT_S
    while sorted(isr := admin.list_topics(topic, WAIT_S).topics[topic].partitions[0].isrs) != list(expected):
        until(deadline_s, f"the ISR of {topic} was {isr} and not {expected}")


def produce(servers: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for number in values:
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


def consume(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """Offsets and values of the next records."""
    found: list[tuple[int, int]] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count:
        until(deadline_s, f"{count} records did not come, but {found}")
        for message in consumer.consume(count - len(found), 1):
            offset, value = message.offset(), message.value()
            assert message.error() is None, message.error()
            assert offset is not None
            assert isinstance(value, bytes)
            found.append((offset, int(value)))
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
    def run(through: int, entity: list[str], *arguments: str, ends: int = 0) -> str:
        arguments = ("--bootstrap-server", cluster.brokers[through].address, *entity, *arguments)
        return kafka_tool(CONFIGS, *arguments, ends=ends)

    entities = {each: ["--entity-type", "brokers", "--entity-name", str(each)] for each in cluster.brokers}
    through = {1: 2, 2: 3, 3: 1}
    for broker_id, entity in entities.items():
        adding = ["--alter", "--add-config", f"log.cleaner.threads={broker_id},log.retention.bytes=987654321"]
        output = run(through[broker_id], entity, *adding)
        assert f"Completed updating config for broker {broker_id}." in output
    for broker_id, entity in entities.items():
        # The tool refuses to delete what the broker does not have.
        run(broker_id, entity, "--alter", "--delete-config", "log.retention.bytes")
        output = run(through[broker_id], entity, "--describe")
        assert f"log.cleaner.threads={broker_id} " in output
        assert "log.retention.bytes" not in output
    default = ["--entity-type", "brokers", "--entity-default"]
    output = run(3, default, "--alter", "--add-config", "message.max.bytes=123456")
    assert "Completed updating default config for brokers in the cluster." in output
    for broker_id, entity in entities.items():
        assert "message.max.bytes=123456 " in run(broker_id, entity, "--all", "--describe")
    run(2, default, "--alter", "--delete-config", "message.max.bytes")
    assert "message.max.bytes" not in run(1, default, "--describe")


def test_configs_of_topics_clients_and_users_are_changed_through_any_broker(
    kafka_tool: KafkaTool, cluster: FaultyCluster
) -> None:
    first, second, third = (broker.address for broker in cluster.brokers.values())
    # On a broker that no test takes down.
    making = ["--create", "--topic", "set", "--replica-assignment", "1", "--config", "cleanup.policy=compact"]
    kafka_tool(TOPICS, "--bootstrap-server", first, *making, "--config", "min.insync.replicas=2")
    user = ["--entity-type", "users", "--entity-name", "ann", "--alter"]
    kafka_tool(CONFIGS, "--bootstrap-server", third, *user, "--add-config", "SCRAM-SHA-256=[password=a-secret]")
    for kind, name, added, removed, seen in (
        ("topic", "set", "retention.ms=1234567", "cleanup.policy", ["min.insync.replicas=2 ", "retention.ms=1234567 "]),
        ("client", "app", "producer_byte_rate=1000,request_percentage=50", "request_percentage", ["_byte_rate=1000.0"]),
        ("user", "ann", "SCRAM-SHA-512=[password=another]", "SCRAM-SHA-512", ["SCRAM-SHA-256=iterations=4096"]),
    ):
        entity = ["--entity-type", f"{kind}s", "--entity-name", name]
        changed = f"Completed updating config for {kind} {name}."
        output = kafka_tool(CONFIGS, "--bootstrap-server", second, *entity, "--alter", "--add-config", added)
        assert changed in output
        output = kafka_tool(CONFIGS, "--bootstrap-server", third, *entity, "--alter", "--delete-config", removed)
        assert changed in output
        output = kafka_tool(CONFIGS, "--bootstrap-server", first, *entity, "--describe")
        assert [each for each in seen if each not in output] == []
        assert removed not in output


def test_preferred_leaders_are_elected(kafka_tool: KafkaTool, cluster: FaultyCluster) -> None:
    server = cluster.brokers[2].address
    making = ["--create", "--topic", "led", "--replica-assignment", "1:2:3"]
    kafka_tool(TOPICS, "--bootstrap-server", server, *making)
    cluster.brokers[1].terminate()
    assert described(kafka_tool, server, "led")[0][0] in (2, 3)
    cluster.start_missing()
    until_isr(cluster.brokers[2].address, "led", 1, 2, 3)
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


def test_reports_name_the_partitions_that_a_broker_takes_down_and_elections_lead_them_again(
    kafka_tool: KafkaTool, cluster: FaultyCluster
) -> None:
    server = cluster.brokers[1].address

    def run(main: str, *arguments: str, ends: int = 0) -> str:
        return kafka_tool(main, "--bootstrap-server", server, *arguments, ends=ends)

    def listed(report: str) -> set[str]:
        """Topics of the lines of a report."""
        output = run(TOPICS, "--describe", f"--{report}", "--topic", "down-.*")
        return set(re.findall(r"Topic: (\S+)\s+Partition: 0", output))

    def elect(kind: str, *partitions: str, ends: int = 0) -> str:
        return run(ELECTION, "--election-type", kind, *partitions, ends=ends)

    for topic, assignment, least in (("trio", "1:2:3", 2), ("pair", "3:2", 1), ("alone", "2", 1)):
        placed = ["--replica-assignment", assignment, "--config", f"min.insync.replicas={least}"]
        assert f"Created topic down-{topic}." in run(TOPICS, "--create", "--topic", f"down-{topic}", *placed)
    refused = run(TOPICS, "--create", "--topic", "down-bad", "--config", "min.insync.replicas=0", ends=1)
    assert "min.insync.replicas" in refused

    # A consumer of what the unclean election will lose: it learns of the truncation by the leader's epoch (KIP-320).
    produce(server, "down-pair", range(10))
    servers = cluster.bootstrap_servers
    reader = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "latest", "log_level": 0}
    )
    reader.assign([TopicPartition("down-pair", 0, 0)])
    cluster.brokers[2].terminate()
    until_isr(server, "down-pair", 3)
    produce(server, "down-pair", range(10, 20))
    assert consume(reader, 20) == [(number, number) for number in range(20)]
    until_isr(server, "down-trio", 1, 3)
    assert listed("under-replicated-partitions") == {"down-trio", "down-pair", "down-alone"}
    assert listed("at-min-isr-partitions") == {"down-trio", "down-pair"}
    assert listed("unavailable-partitions") == listed("under-min-isr-partitions") == {"down-alone"}
    no_other = elect("unclean", "--topic", "down-alone", "--partition", "0", ends=1)
    assert "down-alone-0" in no_other

    cluster.brokers[3].terminate()
    cluster.brokers[2].start()
    cluster.brokers[2].await_ready()
    until_isr(server, "down-trio", 1, 2)
    assert listed("unavailable-partitions") == {"down-pair"}
    elected = elect("unclean", "--all-topic-partitions")
    assert "Successfully completed leader election (UNCLEAN) for partitions down-pair-0" in elected
    until_isr(server, "down-pair", 2)
    # It has read to offset 20, which lies within the new records.
    produce(cluster.brokers[2].address, "down-pair", range(100, 115))
    assert consume(reader, 15) == [(number - 90, number) for number in range(100, 115)]
    reader.close()

    cluster.start_missing()
    until_isr(server, "down-pair", 2, 3)
    until_isr(server, "down-trio", 1, 2, 3)
    leader, replicas, _ = described(kafka_tool, server, "down-pair")[0]
    assert (leader, replicas) == (2, [3, 2])
    elected = elect("preferred", "--all-topic-partitions")
    assert re.search(r"Successfully completed leader election \(PREFERRED\) for partitions .*down-pair-0", elected)
    assert described(kafka_tool, server, "down-pair")[0][0] == 3
