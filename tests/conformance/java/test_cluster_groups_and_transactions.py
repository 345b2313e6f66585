"""Kafka 4.1.1's ConsumerGroupCommand and TransactionsCommand on three brokers, whose coordinators are killed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.logtier.state_topic.topic import partition_for
from tests.conformance.transactions.test_transactions import write_late
from tests.faults.full_isrs import await_full_isrs
from tests.faults.processes import FaultyCluster, until

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
OFFSETS_PARTITIONS = 6
CLUSTER = {
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
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
    """A member of a group that has read a topic to its end and committed; a group's name begins with its protocol."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "group.protocol": group.partition("-")[0],
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


def rows_of(output: str, group: str, topic: str, *columns: str) -> int:
    """The number of partitions that a description or a plan of offsets shows with these columns."""
    return len(re.findall(rf"{group} +{topic} +\d +{' +'.join(columns)}(?!\S)", output))


def test_groups_through_any_broker(kafka_tool: KafkaTool, cluster: FaultyCluster, topic: str, tmp_path: Path) -> None:
    """A group of the classic protocol and one of KIP-848, of one coordinator, which dies."""
    run = runner(kafka_tool, cluster, GROUPS)
    classic = "classic-billing"
    consumer = next(
        name
        for name in (f"consumer-billing-{number}" for number in range(1_000))
        if partition_for(name, OFFSETS_PARTITIONS) == partition_for(classic, OFFSETS_PARTITIONS)
    )
    groups = (classic, consumer)
    members = [consumed(cluster, topic, each) for each in groups]
    everything = ["--describe", "--all-groups"]
    state = run(1, *everything, "--state")
    assert re.search(rf"{classic} .*range +Stable +1\b", state), state
    found = re.search(rf"{consumer} +127\.0\.0\.1:\d+ +\((\d)\) +uniform +Stable +1\b", state)
    assert found, state
    coordinator = int(found[1])
    assert len(re.findall(rf"billing.* 127\.0\.0\.1:\d+ +\({coordinator}\)", state)) == 2
    others = [each for each in cluster.brokers if each != coordinator]
    described = run(others[0], *everything)
    assert [rows_of(described, each, topic, "20", "20", "0") for each in groups] == [3, 3], described

    lose(cluster, coordinator)
    for group in groups:
        moved = until_shown(
            lambda of=group: run(others[0], "--describe", "--group", of, "--state"),  # type: ignore[misc]
            rf"{group} +127\.0\.0\.1:\d+ +\((\d)\)",
        )
        assert int(moved[1]) != coordinator
    assert {*groups} <= {*run(others[1], "--list").split()}
    for group, member in zip(groups, members, strict=True):
        until_shown(
            lambda of=group, by=member: (  # type: ignore[misc]
                f"{by.poll(0.5)}" + run(others[1], "--describe", "--group", of, "--members", "--verbose")
            ),
            rf"{group} .*\b{topic}[:(]0,1,2",
        )
    described = run(others[1], *everything)
    assert [rows_of(described, each, topic, "20", "20", "0") for each in groups] == [3, 3], described
    reset = ["--reset-offsets", "--all-groups", "--topic", topic]
    assert run(others[0], *reset, "--to-earliest", "--execute").lower().count("inactive") == 2
    for member in members:
        member.close()

    cluster.start_missing()
    planned = run(coordinator, *reset, "--to-offset", "5", "--dry-run", "--export")
    lines = [line for line in planned.splitlines() if topic in line]
    assert len(lines) == 6, planned
    plan = tmp_path / "offsets.csv"
    plan.write_text("".join(f"{line}\n" for line in lines))
    done = run(others[0], "--reset-offsets", "--all-groups", "--from-file", str(plan), "--execute")
    assert [rows_of(done, each, topic, "5") for each in groups] == [3, 3], done
    described = run(others[0], *everything)
    assert [rows_of(described, each, topic, "5", "20", "15") for each in groups] == [3, 3], described
    for group in groups:
        run(others[1], "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    described = run(coordinator, *everything)
    assert [rows_of(described, each, topic, "5", "20", "15") for each in groups] == [2, 2], described
    deleted = run(others[0], "--delete", "--all-groups")
    assert all(f"'{each}'" in deleted for each in groups), deleted
    assert {*groups}.isdisjoint(run(coordinator, "--list").split())


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

    # An administrator ends a transaction that its coordinator knows; its producer is fenced.
    stuck = begun(cluster, topic, "stuck")
    run(others[0], "forceTerminateTransaction", "--transactionalId", "stuck")
    until_shown(lambda: run(others[1], "list"), r"stuck\s+\d\s+\d+\s+Empty")
    with pytest.raises(KafkaException) as fenced:
        stuck.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()


def test_a_hanging_transaction_is_found_and_aborted(kafka_tool: KafkaTool, cluster: FaultyCluster, topic: str) -> None:
    """Without verification, a batch that comes late opens a transaction that no coordinator will end."""
    run = runner(kafka_tool, cluster, TRANSACTIONS)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    leader = admin.list_topics(topic, WAIT_S).topics[topic].partitions[2].leader
    switch(admin, leader, "transaction.partition.verification.enable", "false")
    begun(cluster, topic, "late").commit_transaction(WAIT_S)
    owner = re.search(r"\d\s+late\s+(\d+)\s+(\d+)\s+CompleteCommit", described := run(1, "describe",
                      "--transactional-id", "late"))  # fmt: skip
    assert owner, described
    open_one = begun(cluster, topic, "open")
    write_late(cluster.brokers[leader].address, topic, 2, "late", int(owner[1]), int(owner[2]))
    switch(admin, leader, "transaction.partition.verification.enable", None)
    searched = ["find-hanging", "--max-transaction-timeout", "0"]
    # Asked of the topic, and of the broker; the transaction that is open is not hanging.
    for scope in (["--topic", topic], ["--broker-id", str(leader)]):
        shown = until_shown(lambda of=scope: run(1, *searched, *of), rf"{topic}\s+2\s+{owner[1]}\s.*")  # type: ignore[misc]
        assert shown[0].split()[5] == "20"
    assert not re.search(rf"{topic}\s+1\s", run(2, *searched, "--topic", topic))
    run(3, "abort", "--topic", topic, "--partition", "2", "--start-offset", "20")
    assert topic not in run(1, *searched, "--topic", topic)
    open_one.commit_transaction(WAIT_S)


def switch(admin: AdminClient, broker_id: int, name: str, value: str | None) -> None:
    """Set a config of a broker, or take it back."""
    kind = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


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
