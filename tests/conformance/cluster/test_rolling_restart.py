"""A cluster is upgraded by a rolling restart, as docs/how-to/upgrading.md says, and no application has an error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.cluster.applications import (
    PARTITIONS,
    PATIENCE_S,
    GroupMember,
    JavaProgram,
    OffsetsMover,
    Running,
    TransactionalWriter,
)
from tests.conformance.cluster.conftest import EARLIER_RELEASE, HEADWATER, headwater
from tests.conformance.cluster.test_members import refusal
from tests.conformance.java.conftest import kafka_jars
from tests.faults.clients import NumberProducer
from tests.faults.movers import read_committed
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

__all__ = ["kafka_jars"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

IDS = (1, 2, 3)
SOURCE, TARGET, MOVED = "numbers", "written", "moved"
#: What Kafka's programs write: by an idempotent producer; to be copied, and its copy.
JAVA, COPIED, COPY = "java", "copied", "copy"
#: More than the copier gets through; at its quota of bytes a second, it copies a few transactions a second.
COPIED_RECORDS, COPIER_BYTES = 60_000, 4_000
COPIER_RECORDS = 10
#: Longer than a client that hangs goes unnoticed.
GO_ON_S = 300.0
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_num_partitions": "3",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_num_partitions": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "leader_imbalance_check_interval_seconds": "2",
}


def is_healthy(cluster: ClusterProcesses) -> bool:
    """What an administrator asks before the next broker."""
    command = [*HEADWATER, "cluster", "health", "-b", cluster.address(IDS[0])]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0


def raised(cluster: ClusterProcesses, ends: int = 0) -> str:
    """What `cluster features upgrade` says when the second level of transactions is asked for."""
    asked = ("--feature", "transaction.version=2", "-b", cluster.servers())
    done = headwater("cluster", "features", "upgrade", *asked, ends=ends)
    return done.stdout + done.stderr


def gone_on(applications: Sequence[Running]) -> Callable[[], bool]:
    """A function that returns whether all have done more since now; it fails with their errors."""
    before = [each.progress() for each in applications]

    def has_gone_on() -> bool:
        done = [each.progress() for each in applications]
        assert [error for each in applications for error in each.errors] == []
        return all(now > then for now, then in zip(done, before, strict=True))

    return has_gone_on


def leaders(admin: AdminClient) -> dict[tuple[str, int], tuple[int, int]]:
    """The leader and the preferred leader of each partition."""
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    return {
        (name, number): (partition.leader, partition.replicas[0])
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
    }


def values(addresses: str, topic: str, isolation: str) -> list[bytes]:
    """What partition 0 of a topic has."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    while True:
        for message in consumer.consume(10_000, 0.2):
            if (error := message.error()) is None:
                found.append(message.value() or b"")
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found


@pytest.fixture
def java_programs(kafka_jars: Path) -> Iterator[Callable[..., JavaProgram]]:
    """Makes Kafka's own programs; none is left after the test."""
    made: list[JavaProgram] = []

    def make(name: str, folder: Path, main: str, *arguments: str) -> JavaProgram:
        made.append(JavaProgram(name, folder, kafka_jars, main, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def test_an_upgrade_by_a_rolling_restart_is_no_error_in_any_application(
    make_cluster: MakeCluster, java_programs: Callable[..., JavaProgram]
) -> None:
    """Brokers of two releases run side by side; the levels are raised once the last one knows them, and not before."""
    cluster = make_cluster(session_ms=6_000)
    cluster.program = EARLIER_RELEASE
    cluster.serve(*IDS, **PROPERTIES)
    addresses = cluster.servers()
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    sizes = {SOURCE: PARTITIONS, TARGET: PARTITIONS, MOVED: PARTITIONS, JAVA: PARTITIONS, COPIED: 1, COPY: 1}
    for future in admin.create_topics([NewTopic(name, size, 3) for name, size in sizes.items()]).values():
        future.result(PATIENCE_S)
    copied = [b"%d" % number for number in range(COPIED_RECORDS)]
    filling = Producer({"bootstrap.servers": addresses})
    for value in copied:
        filling.produce(COPIED, value)
    assert filling.flush(PATIENCE_S) == 0
    quota = f"producer_byte_rate={COPIER_BYTES}"
    headwater("quotas", "set", "--client-id", "producer-copier", quota, "-b", addresses)

    producer = NumberProducer("producer", addresses, SOURCE)
    members = tuple(GroupMember(f"{each}-member", addresses, SOURCE, each) for each in ("classic", "consumer"))
    writer = TransactionalWriter("writer", addresses, TARGET)
    mover = OffsetsMover("mover", addresses, SOURCE, MOVED)
    retrying = cluster.folder / "producer.properties"  # the program's own default is not to
    retrying.write_text("retries=2147483647\n")
    java = java_programs(
        *("java-producer", cluster.folder, "VerifiableProducer", "--bootstrap-server", addresses, "--topic", JAVA),
        *("--throughput", "20", "--acks", "-1", "--producer.config", str(retrying)),
    )
    copier = java_programs(
        *("copier", cluster.folder, "TransactionalMessageCopier", "--broker-list", addresses, "--group-mode"),
        *("--use-group-metadata", "--input-topic", COPIED, "--input-partition", "0", "--output-topic", COPY),
        *("--consumer-group", "copier", "--transactional-id", "copier", "--transaction-size", str(COPIER_RECORDS)),
    )
    applications: tuple[Running, ...] = (*members, writer, mover, java, copier)
    producer.start()
    for application in applications:
        application.start()
    try:
        until(gone_on(applications), "an application does not begin", patience_s=GO_ON_S)
        assignments = [each.assignments for each in members]
        for broker_id in IDS:
            assert f"Broker {broker_id} only supports versions 1" in raised(cluster, ends=1)
            cluster.stop(broker_id)
            cluster.program = HEADWATER
            cluster.serve(broker_id, **PROPERTIES)
            until(lambda: is_healthy(cluster), "the cluster is not healthy")
            until(gone_on(applications), "the applications do not go on", patience_s=GO_ON_S)
        until(lambda: all(each[0] == each[1] for each in leaders(admin).values()), "leaderships did not return")
        assert raised(cluster) == "transaction.version is finalized at level 2\n"
        until(gone_on(applications), "the applications do not go on with the new level", patience_s=GO_ON_S)
        assert producer.finish(PATIENCE_S) == 0
        sent = sorted(each.value for each in producer.acknowledged)
        until(lambda: min(each.progress() for each in members) >= len(sent), "not all was consumed")
        moved = read_committed(addresses, MOVED, PARTITIONS, len(sent), GO_ON_S)
    finally:
        producer.finish(0)
        for application in applications:
            application.finish()
    assert [*producer.errors, *(error for application in applications for error in application.errors)] == []
    assert [each.assignments for each in members] == assignments, "a group has rebalanced"
    for each in members:
        assert sorted(value for seen in each.seen.values() for value in seen) == sent
    committed = read_committed(addresses, TARGET, PARTITIONS, len(writer.committed), PATIENCE_S)
    assert sorted(committed) == sorted(writer.committed)
    print(f"clients of the mover that hung: {mover.hangs}")
    assert sorted(moved) == sent
    copy = values(addresses, COPY, "read_committed")
    assert copy == copied[: len(copy)]
    # The copier tries again after an error, without a word; at its own end it may abort one transaction.
    everything = values(addresses, COPY, "read_uncommitted")
    assert everything[: len(copy)] == copy
    assert len(everything) - len(copy) <= COPIER_RECORDS

    cluster.stop(IDS[-1])
    cluster.program = EARLIER_RELEASE
    line = refusal(cluster.begin(IDS[-1], **PROPERTIES))
    assert "transaction.version is finalized at level 2 and supported at 1; start the release that the other" in line
    for broker_id in IDS[:-1]:
        cluster.stop(broker_id)
    for broker_id in IDS:
        assert "Traceback" not in (cluster.folder / f"{broker_id}.log").read_text()
