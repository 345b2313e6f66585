"""`headwater cluster verify` on three brokers, while a producer writes: equal replicas, and a planted record."""

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

from headwater.logtier.records.batch import build_batch, decode_records, iterate_batches
from tests.conformance.cluster.conftest import headwater
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = pytest.mark.slow

IDS = (1, 2, 3)
PATIENCE_S = 120
RECORDS = 3_000
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
    """Three brokers with a plain topic and a compacted one, each with records."""
    made = make_cluster()
    made.serve(*IDS, **PROPERTIES)
    admin = AdminClient({"bootstrap.servers": made.address(1), "log_level": 0})
    compact = {"cleanup.policy": "compact", "segment.ms": "500", "min.insync.replicas": "1"}
    futures = admin.create_topics(
        [NewTopic("plain", 2, 3), NewTopic("compacted", 1, 3, config=compact)], operation_timeout=PATIENCE_S
    )
    for future in futures.values():
        future.result()
    produce(made, RECORDS)
    return made


def produce(cluster: ClusterProcesses, records: int) -> None:
    producer = producer_of(cluster)
    for number in range(records):
        write(producer, number)
    assert producer.flush(PATIENCE_S) == 0


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


def plant(folder: Path, topic: str) -> int:
    """Change a value in the first segment of a stopped broker's replica, with a valid checksum; return its offset."""
    segment = min((folder / f"{topic}-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    position = 0
    for number, (header, batch) in enumerate(iterate_batches(bytes(data))):
        if number == 1:
            records = decode_records(batch)
            value = records[0].value
            assert value is not None
            records[0] = records[0]._replace(value=b"V" + value[1:])
            changed = build_batch(
                records, base_offset=header.base_offset, partition_leader_epoch=header.partition_leader_epoch
            )
            assert len(changed) == len(batch)
            data[position : position + len(batch)] = changed
            segment.write_bytes(bytes(data))
            return header.base_offset
        position += len(batch)
    raise AssertionError("the segment has less than two batches")


def outcomes(text: str) -> dict[str, dict[str, Any]]:
    return {f"{each['topic']}-{each['partition']}": each for each in json.loads(text)}


def test_replicas_are_equal_while_a_producer_writes_and_cleaners_run(cluster: ClusterProcesses) -> None:
    with writing(cluster):
        for _ in range(3):
            found = outcomes(verify(cluster, "-o", "json")[0])
            for name in ("plain-0", "plain-1", "compacted-0"):
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


def test_a_record_planted_in_a_follower_is_found_and_a_broker_that_is_away_is_listed(
    cluster: ClusterProcesses,
) -> None:
    cluster.stop(3)
    offset = plant(cluster.folder / "data-3", "plain")
    text, _ = verify(cluster, "--topic", "plain")
    assert "broker 3: " in text
    cluster.serve(3, **PROPERTIES)
    with writing(cluster):
        await_in_sync(cluster)
        text, errors = verify(cluster, "--topic", "plain", ends=1)
    [line] = [line for line in text.splitlines() if "DIFFERENT" in line]
    assert line.startswith(f"plain-0: DIFFERENT at offset {offset}, brokers ")
    assert "3" in line.partition("brokers ")[2].partition(":")[0]
    assert line.endswith("the value of the record differs")
    assert errors.startswith("headwater: cluster verify: ")
    assert "differ" in errors


def await_in_sync(cluster: ClusterProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.address(1), "log_level": 0})

    def is_in_sync() -> bool:
        topic = admin.list_topics("plain", timeout=PATIENCE_S).topics["plain"]
        return all(len(partition.isrs) == 3 for partition in topic.partitions.values())

    until(is_in_sync, "the broker does not catch up")
