"""`headwater cluster verify` on three brokers, while a producer writes: equal replicas, and planted records."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from headwater.logtier.records.batch import ATTRIBUTES, CRC, decode_records, iterate_batches
from tests.conformance.cluster.conftest import headwater
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = pytest.mark.slow

IDS = (1, 2, 3)
PATIENCE_S = 120
RECORDS = 3_000
PLANTED = b"value that is changed"
PROPERTIES = {
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "log_cleaner_backoff_ms": "200",
    "log_cleaner_min_cleanable_ratio": "0.01",
}


def verify(cluster: ClusterProcesses, *arguments: str, ends: int = 0) -> tuple[str, str]:
    """The output and the errors of the command."""
    done = headwater("cluster", "verify", "-b", cluster.servers(), *arguments, ends=ends)
    return done.stdout, done.stderr


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ClusterProcesses:
    """Three brokers with a plain topic, a compacted one, and one of transactions, each with records."""
    made = make_cluster()
    made.serve(*IDS, **PROPERTIES)
    admin = AdminClient({"bootstrap.servers": made.address(1), "log_level": 0})
    compact = {"cleanup.policy": "compact", "segment.ms": "500", "min.insync.replicas": "1"}
    futures = admin.create_topics(
        [NewTopic("plain", 2, 3), NewTopic("compacted", 1, 3, config=compact), NewTopic("transactional", 1, 3)],
        operation_timeout=PATIENCE_S,
    )
    for future in futures.values():
        future.result()
    produce(made, RECORDS)
    transact(made)
    return made


def produce(cluster: ClusterProcesses, records: int) -> None:
    producer = producer_of(cluster)
    for number in range(records):
        write(producer, number)
    # No later record has its key: no cleaner removes it.
    producer.produce("compacted", PLANTED, key=b"kept")
    assert producer.flush(PATIENCE_S) == 0


def transact(cluster: ClusterProcesses) -> None:
    """A transaction that is committed, one that is aborted, and another one that is committed."""
    producer = Producer({"bootstrap.servers": cluster.servers(), "transactional.id": "mover", "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    for values, commits in (((b"first", PLANTED), True), ((b"aborted", b"also aborted"), False), ((b"last",), True)):
        producer.begin_transaction()
        for value in values:
            producer.produce("transactional", value)
        assert producer.flush(PATIENCE_S) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)


def producer_of(cluster: ClusterProcesses) -> Producer:
    return Producer({"bootstrap.servers": cluster.servers(), "acks": "all", "log_level": 0, "batch.size": 4_000})


def write(producer: Producer, number: int) -> None:
    producer.produce("plain", b"value %d" % number, partition=number % 2)
    producer.produce("compacted", b"value %d" % number, key=b"key %d" % (number % 50))
    producer.poll(0)


@contextmanager
def writing(cluster: ClusterProcesses) -> Iterator[None]:
    """A producer writes to both topics all the time."""
    ended = threading.Event()

    def run() -> None:
        producer = producer_of(cluster)
        number = 0
        while not ended.wait(0.001):
            write(producer, number)
            number += 1
        assert producer.flush(PATIENCE_S) == 0

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(run)
        try:
            yield
        finally:
            ended.set()
        writer.result()


def plant(folder: Path, topic: str, value: bytes) -> int:
    """Change a value in a stopped broker's replica, with a valid checksum; return its offset.

    The value is the only one of its batch that has the text: of that batch, all else stays as it is.
    """
    for segment in (folder / f"{topic}-0").glob("*.log"):
        data = bytearray(segment.read_bytes())
        position = 0
        for header, batch in iterate_batches(bytes(data)):
            end = position + len(batch)
            found = data.find(value, position, end)
            if found >= 0:
                data[found : found + 1] = b"V"
                data[position + CRC : position + ATTRIBUTES] = crc32c(data[position + ATTRIBUTES : end]).to_bytes(4)
                segment.write_bytes(bytes(data))
                [offset] = [
                    each.offset for each in decode_records(data[position:end]) if each.value == b"V" + value[1:]
                ]
                assert header.base_offset <= offset <= header.last_offset
                return offset
            position = end
    raise AssertionError(f"no segment of {topic} has {value!r}")


def outcomes(text: str) -> dict[str, dict[str, Any]]:
    return {f"{each['topic']}-{each['partition']}": each for each in json.loads(text)}


def test_replicas_are_equal_while_a_producer_writes_and_cleaners_run(cluster: ClusterProcesses) -> None:
    with writing(cluster):
        for _ in range(3):
            found = outcomes(verify(cluster, "-o", "json")[0])
            for name in ("plain-0", "plain-1", "compacted-0", "transactional-0"):
                outcome = found[name]
                assert outcome["differences"] == [], outcome
                assert sorted(outcome["compared_brokers"]) == [1, 2, 3], outcome
                assert outcome["end_offset"] > 0
    text, _ = verify(cluster)
    assert text.splitlines()[-1].endswith("no difference"), text
    _, errors = verify(cluster, "--topic", "missing", ends=2)
    assert errors == (
        "headwater: cluster verify: there is no topic 'missing'; `headwater topic list` shows those that exist\n"
    )


def test_records_planted_in_a_follower_are_found_and_a_broker_that_is_away_is_listed(
    cluster: ClusterProcesses,
) -> None:
    cluster.stop(3)
    folder = cluster.folder / "data-3"
    offset = plant(folder, "plain", b"value 42")
    planted = {
        "compacted-0": plant(folder, "compacted", PLANTED),
        "transactional-0": plant(folder, "transactional", PLANTED),
    }
    text, _ = verify(cluster, "--topic", "plain")
    assert "broker 3: " in text
    cluster.serve(3, **PROPERTIES)
    with writing(cluster):
        await_in_sync(cluster)
        text, errors = verify(cluster, "--topic", "plain", ends=1)
        found = outcomes(verify(cluster, "-o", "json", ends=1)[0])
    [line] = [line for line in text.splitlines() if "DIFFERENT" in line]
    assert line.startswith(f"plain-0: DIFFERENT at offset {offset}, brokers ")
    assert "3" in line.partition("brokers ")[2].partition(":")[0]
    assert line.endswith("the value of the record differs")
    assert errors.startswith("headwater: cluster verify: ")
    assert "differ" in errors
    for name, expected in planted.items():
        differences = found[name]["differences"]
        assert [(each["offset"], each["reason"]) for each in differences] == [
            (expected, "the value of the record differs")
        ] * len(differences), found[name]
        assert differences
        assert all(3 in each["brokers"] for each in differences)


def await_in_sync(cluster: ClusterProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.address(1), "log_level": 0})

    def is_in_sync() -> bool:
        topic = admin.list_topics("plain", timeout=PATIENCE_S).topics["plain"]
        return all(len(partition.isrs) == 3 for partition in topic.partitions.values())

    until(is_in_sync, "the broker does not catch up")
