"""Kafka 4.1.1's command-line tools, unmodified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool
    from tests.conftest import StartBroker, TopicFactory

pytestmark = pytest.mark.slow


def events(output: str, name: str) -> list[dict[str, Any]]:
    """Events of a kind among the JSON lines that the verifiable clients print."""
    lines = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return [line for line in lines if line["name"] == name]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_producer_and_consumer(
    kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory, protocol: str
) -> None:
    topic = new_topic(2)
    arguments = ["--bootstrap-server", bootstrap_servers, "--topic", topic]
    keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
    kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer", *arguments, *keyed, stdin="".join(f"k{i}:v{i}\n" for i in range(50))
    )
    output = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *arguments,
        "--from-beginning",
        "--max-messages",
        "50",
        "--consumer-property",
        f"group.protocol={protocol}",
        "--property",
        "print.key=true",
    )
    found = sorted(line for line in output.splitlines() if line.startswith("k"))
    assert found == sorted(f"k{i}\tv{i}" for i in range(50))


@pytest.mark.parametrize("level", ["1", "4", "17"])
def test_the_console_consumer_reads_what_we_compress_by_lz4_at_any_level(
    kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory, level: str
) -> None:
    topic = new_topic(config={"compression.type": "lz4", "compression.lz4.level": level})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 100})
    values = [f"v{number:06d}" + "late" * (number % 40) for number in range(3_000)]
    for value in values:
        producer.produce(topic, value.encode())
    producer.flush(60)
    arguments = ["--bootstrap-server", bootstrap_servers, "--topic", topic]
    output = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments, "--from-beginning", "--max-messages", "3000"
    )
    assert [line for line in output.splitlines() if line.startswith("v")] == values


@pytest.mark.parametrize("protocol", ["CLASSIC", "CONSUMER"])
def test_the_verifiable_producer_and_consumer(
    kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory, protocol: str
) -> None:
    topic = new_topic(3)
    arguments = ["--bootstrap-server", bootstrap_servers, "--topic", topic, "--max-messages", "2000"]
    produced = kafka_tool("org.apache.kafka.tools.VerifiableProducer", *arguments)
    assert len(events(produced, "producer_send_success")) == 2000
    assert not events(produced, "producer_send_error")
    consumed = kafka_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *arguments,
        "--group-id",
        f"{topic}-verifiable",
        "--group-protocol",
        protocol,
        "--verbose",
    )
    values = [int(event["value"]) for event in events(consumed, "record_data")]
    assert sorted(values) == list(range(2000))
    assert all(event["success"] for event in events(consumed, "offsets_committed"))


def test_the_transactional_message_copier_with_random_aborts(
    kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    source, target = new_topic(1), new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(1000):
        producer.produce(source, str(number))
    assert producer.flush(30) == 0
    kafka_tool(
        "org.apache.kafka.tools.TransactionalMessageCopier",
        "--broker-list",
        bootstrap_servers,
        "--input-topic",
        source,
        "--input-partition",
        "0",
        "--output-topic",
        target,
        "--consumer-group",
        f"{source}-copier",
        "--transaction-size",
        "50",
        "--transactional-id",
        f"{source}-copier",
        "--enable-random-aborts",
        "--use-group-metadata",
    )
    output = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap_servers,
        "--topic",
        target,
        "--from-beginning",
        "--isolation-level",
        "read_committed",
        "--timeout-ms",
        "10000",
    )
    assert [int(line) for line in output.splitlines() if line.isdigit()] == list(range(1000))


ADMINISTRATION = {
    "topics": ("org.apache.kafka.tools.TopicCommand", ["--describe", "--topic", "{topic}"], "PartitionCount: 2"),
    "configs": (
        "kafka.admin.ConfigCommand",
        ["--alter", "--entity-type", "topics", "--entity-name", "{topic}", "--add-config", "retention.ms=1000"],
        "Completed updating config",
    ),
    "all configs": (
        "kafka.admin.ConfigCommand",
        ["--describe", "--all", "--entity-type", "topics", "--entity-name", "{topic}"],
        "synonyms={{",
    ),
    "groups": ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", ["--list"], ""),
    "offsets": ("org.apache.kafka.tools.GetOffsetShell", ["--topic", "{topic}"], "{topic}:0:"),
    "largest timestamps": (
        "org.apache.kafka.tools.GetOffsetShell",
        ["--topic", "{topic}", "--time", "max-timestamp"],
        "{topic}:",
    ),
    "log dirs": ("org.apache.kafka.tools.LogDirsCommand", ["--describe", "--topic-list", "{topic}"], '"partitions"'),
    "transactions": ("org.apache.kafka.tools.TransactionsCommand", ["list"], "TransactionalId"),
    "features": ("org.apache.kafka.tools.FeatureCommand", ["describe"], "transaction.version"),
    "elections' feature": (
        "org.apache.kafka.tools.FeatureCommand",
        ["describe"],
        "eligible.leader.replicas.version\tSupportedMinVersion: 1\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 1",
    ),
    "eligible leader replicas": (
        "org.apache.kafka.tools.TopicCommand",
        ["--describe", "--topic", "{topic}"],
        "Elr: \tLastKnownElr: ",
    ),
    "versions": ("org.apache.kafka.tools.BrokerApiVersionsCommand", [], "Produce(0): 0 to 13"),
    "cluster": ("org.apache.kafka.tools.ClusterTool", ["cluster-id"], "Cluster ID: "),
    "reassignments": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", ["--list"], "No partition"),
}


@pytest.mark.parametrize("name", ADMINISTRATION)
def test_administration(kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory, name: str) -> None:
    main, arguments, expected = ADMINISTRATION[name]
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    given = [argument.format(topic=topic) for argument in arguments]
    server = ["--bootstrap-server", bootstrap_servers]
    # Some have verbs, which options of their own follow, others take it among all the others.
    output = kafka_tool(main, *(given + server if name == "cluster" else server + given))
    assert expected.format(topic=topic) in output, output


def test_a_config_of_all_brokers_is_shown_and_deleted_beside_a_brokers_own(
    kafka_tool: KafkaTool, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data", properties={"node.id": "1"})

    def configs(*arguments: str) -> str:
        server = ["--bootstrap-server", broker.address, "--entity-type", "brokers"]
        return kafka_tool("kafka.admin.ConfigCommand", *server, *arguments)

    configs("--entity-default", "--alter", "--add-config", "log.retention.ms=7")
    configs("--entity-name", "1", "--alter", "--add-config", "log.retention.ms=8")
    shown = configs("--entity-default", "--describe")
    assert "log.retention.ms=7 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7}" in shown
    configs("--entity-default", "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in configs("--entity-default", "--describe")
    assert "log.retention.ms=8" in configs("--entity-name", "1", "--describe")


def test_dump_log_segments_reads_what_we_write(
    kafka_tool: KafkaTool, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(2000):
        producer.produce("dumped", f"value {number}" * 20, key=str(number % 7))
    assert producer.flush(30) == 0
    transactional = Producer({"bootstrap.servers": broker.address, "transactional.id": "dumper"})
    transactional.init_transactions(30)
    for commit in (True, False):
        transactional.begin_transaction()
        transactional.produce("dumped", b"in a transaction")
        transactional.flush(30)  # an abort would take it back from the queue
        if commit:
            transactional.commit_transaction(30)
        else:
            transactional.abort_transaction(30)
    broker.stop()
    [folder] = (tmp_path / "data").glob("dumped-*")
    log, *_ = sorted(folder.glob("*.log"))
    dumped = kafka_tool("kafka.tools.DumpLogSegments", "--files", str(log), "--print-data-log", "--deep-iteration")
    assert dumped.count(" payload: ") == 2000 + 2
    assert "isvalid: true" in dumped
    assert "isvalid: false" not in dumped
    assert "endTxnMarker: COMMIT" in dumped
    assert "endTxnMarker: ABORT" in dumped
    for suffix in ("*.index", "*.timeindex"):
        [index] = folder.glob(suffix)
        checked = kafka_tool("kafka.tools.DumpLogSegments", "--files", str(index), "--verify-index-only")
        assert "Mismatch" not in checked
        assert "out of order" not in checked.lower()
    [aborted] = folder.glob("*.txnindex")
    assert "producerId" in kafka_tool("kafka.tools.DumpLogSegments", "--files", str(aborted))
    snapshot = max(folder.glob("*.snapshot"))
    assert "producerId" in kafka_tool("kafka.tools.DumpLogSegments", "--files", str(snapshot))
