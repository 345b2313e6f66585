"""Kafka 4.1.1's ConsumerGroupCommand and TransactionsCommand on three brokers, whose coordinators are killed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.full_isrs import await_full_isrs
from tests.faults.processes import FaultyCluster, until

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CLUSTER = {
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "group.initial.rebalance.delay.ms": 0,
}
RECORDS = 60
WAIT_S = 60
Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    started = FaultyCluster(tmp_path_factory.mktemp("cluster"), properties=CLUSTER)
    try:
        started.start()
        yield started
    finally:
        started.end()


@pytest.fixture
def topic(cluster: FaultyCluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions with 60 records, on brokers that all run."""
    cluster.start_missing()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    name = str(request.node.name).removeprefix("test_")[:40]
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(WAIT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(name, str(number), partition=number % 3)
    assert producer.flush(WAIT_S) == 0
    return name


def runner(kafka_tool: KafkaTool, cluster: FaultyCluster, main: str) -> Run:
    """Runs a tool through the broker given by its id."""

    def run(through: int, *arguments: str, ends: int = 0) -> str:
        return kafka_tool(main, "--bootstrap-server", cluster.brokers[through].address, *arguments, ends=ends)

    return run


def until_shown(look: Callable[[], str], expression: str) -> re.Match[str]:
    """Repeat a look until its output matches."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := re.search(expression, output := look())):
        until(deadline_s, f"{expression!r} was not shown in {output!r}")
    return found


def consumed(cluster: FaultyCluster, topic: str, group: str) -> Consumer:
    """A member of a group that has read a topic to its end and committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen, deadline_s = 0, time.monotonic() + WAIT_S
    while seen < RECORDS:
        assert time.monotonic() < deadline_s
        seen += sum(message.error() is None for message in consumer.consume(RECORDS, 0.5))
    consumer.commit(asynchronous=False)
    return consumer


def test_groups_through_any_broker(kafka_tool: KafkaTool, cluster: FaultyCluster, topic: str) -> None:
    run = runner(kafka_tool, cluster, GROUPS)
    consumer = consumed(cluster, topic, "billing")
    described = ["--describe", "--group", "billing"]
    state = run(1, *described, "--state")
    assert re.search(r"billing .*range +Stable +1\b", state), state
    coordinator = int(re.search(r"127\.0\.0\.1:\d+ +\((\d)\)", state)[1])  # type: ignore[index]
    others = [each for each in cluster.brokers if each != coordinator]
    assert len(re.findall(rf"billing +{topic} +\d +20 +20 +0 ", run(others[0], *described))) == 3

    lose(cluster, coordinator)
    moved = until_shown(lambda: run(others[0], *described, "--state"), r"127\.0\.0\.1:\d+ +\((\d)\)")
    assert int(moved[1]) != coordinator
    assert "billing" in run(others[1], "--list").split()
    until_shown(
        lambda: f"{consumer.poll(0.5)}" + run(others[1], *described, "--members", "--verbose"),
        rf"billing .*\b{topic}[:(]0,1,2",
    )
    assert len(re.findall(rf"billing +{topic} +\d +20 +20 +0 ", run(others[1], *described))) == 3
    assert "inactive" in run(others[0], "--reset-offsets", "--group", "billing", "--topic", topic, "--to-earliest",
                             "--execute").lower()  # fmt: skip
    consumer.close()

    cluster.start_missing()
    reset = ["--reset-offsets", "--group", "billing", "--topic", topic, "--to-earliest", "--execute"]
    assert len(re.findall(rf"billing +{topic} +\d +0\b", run(coordinator, *reset))) == 3
    assert len(re.findall(rf"billing +{topic} +\d +0 +20 +20 ", run(others[0], *described))) == 3
    run(others[1], "--delete-offsets", "--group", "billing", "--topic", f"{topic}:0")
    assert len(re.findall(rf"billing +{topic} +\d +0 ", run(coordinator, *described))) == 2
    assert "'billing'" in run(others[0], "--delete", "--group", "billing")
    assert "billing" not in run(coordinator, "--list").split()


def test_transactions_through_any_broker(kafka_tool: KafkaTool, cluster: FaultyCluster, topic: str) -> None:
    run = runner(kafka_tool, cluster, TRANSACTIONS)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    producer = begun(cluster, topic, "mover")
    described = ["describe", "--transactional-id", "mover"]
    output = run(1, *described)
    found = re.search(rf"(\d)\s+mover\s+(\d+)\s+(\d+)\s+Ongoing\s+\d+\s+\d+\s+\d+\s+{topic}-1", output)
    assert found, output
    coordinator = int(found[1])
    others = [each for each in cluster.brokers if each != coordinator]
    producers = run(others[0], "describe-producers", "--topic", topic, "--partition", "1")
    assert open_transactions(producers) == ["20"], producers

    lose(cluster, coordinator)
    until_shown(lambda: run(others[1], "list"), r"mover\s+\d\s+\d+\s+Ongoing")
    producer.commit_transaction(WAIT_S)
    until_shown(lambda: run(others[0], "list"), r"mover\s+\d\s+\d+\s+CompleteCommit")

    cluster.start_missing()
    await_full_isrs(admin, len(cluster.brokers), 9)
    hanging = begun(cluster, topic, "forgotten")
    producers = run(coordinator, "describe-producers", "--topic", topic, "--partition", "1")
    (start,) = open_transactions(producers)
    run(others[0], "abort", "--topic", topic, "--partition", "1", "--start-offset", start)
    # The partition's readers go on: the record after it is committed, and those of the transaction are not seen.
    after = begun(cluster, topic, "after")
    after.commit_transaction(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    values: list[str | bytes | None] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(values) < RECORDS + 2 and time.monotonic() < deadline_s:
        values += [message.value() for message in consumer.consume(RECORDS, 0.5) if message.error() is None]
    consumer.close()
    assert values.count(b"of mover") == values.count(b"of after") == 1
    assert b"of forgotten" not in values
    del hanging


def lose(cluster: FaultyCluster, broker_id: int) -> None:
    """Kill a broker, and wait until its session is over: tools that list ask every broker of the metadata."""
    cluster.brokers[broker_id].kill()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    deadline_s = time.monotonic() + WAIT_S
    while broker_id in admin.list_topics(timeout=WAIT_S).brokers:
        until(deadline_s, f"broker {broker_id} was not gone")


def open_transactions(producers: str) -> list[str]:
    """The last column of `describe-producers`: where the open transaction of each producer begins."""
    rows = [line.split() for line in producers.splitlines() if line[:1].isdigit()]
    return [row[-1] for row in rows if row[-1].isdigit()]


def begun(cluster: FaultyCluster, topic: str, transactional_id: str) -> Producer:
    """A producer whose transaction is open in partition 1."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 120_000,
        }
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, f"of {transactional_id}", partition=1)
    assert producer.flush(WAIT_S) == 0
    return producer
