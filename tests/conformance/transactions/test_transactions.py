"""Transactional producers and the consumers behind them, with unmodified clients; crashes and hanging transactions."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.messages import kio_request
from headwater.logtier.records.batch import HEADER, TRANSACTIONAL, Record, build_batch, decode_records, iterate_batches
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.transaction.metadata import TransactionMetadata, TransactionState
from headwater.logtier.transaction.records import parse_key, parse_value, transaction_key, transaction_value

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker, TopicFactory

pytestmark = pytest.mark.slow

PATIENCE_S = 30
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


def producer_of(address: str, transactional_id: str, **config: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0} | config
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def consumer_of(address: str, group: str, isolation_level: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": isolation_level,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read_committed(address: str, topic: str, count: int, partitions: int = 1) -> list[bytes]:
    """The first `count` values that are committed, and whatever else comes within a moment."""
    consumer = consumer_of(address, uuid.uuid4().hex)
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        values: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            messages = consumer.consume(1000, 0.5)
            values += [message.value() or b"" for message in messages if message.error() is None]
            if len(values) >= count and not messages:
                break
        return values
    finally:
        consumer.close()


def committed(address: str, group: str, topic: str) -> int:
    """What the group has committed for partition 0, whether a transaction is about to change it or not."""
    consumer = consumer_of(address, group, "read_uncommitted")
    try:
        [found] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


def code_of(failure: pytest.ExceptionInfo[KafkaException]) -> int:
    error = failure.value.args[0]
    assert isinstance(error, KafkaError)
    return error.code()


@pytest.mark.parametrize("commits", [True, False])
def test_a_groups_offsets_are_committed_with_what_it_produced(
    bootstrap_servers: str, new_topic: TopicFactory, commits: bool
) -> None:
    source, target, group = new_topic(), new_topic(), uuid.uuid4().hex
    plain = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(10):
        plain.produce(source, b"%d" % number, partition=0)
    assert plain.flush(PATIENCE_S) == 0
    consumer = consumer_of(bootstrap_servers, group)
    producer = producer_of(bootstrap_servers, f"id-{group}")
    try:
        consumer.subscribe([source])
        messages = consumer.consume(10, PATIENCE_S)
        assert len(messages) == 10
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), PATIENCE_S
        )
        assert committed(bootstrap_servers, group, source) < 0
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        expected = 10 if commits else 0
        assert len(read_committed(bootstrap_servers, target, expected)) == expected
        assert max(committed(bootstrap_servers, group, source), 0) == expected
    finally:
        consumer.close()


def test_a_second_producer_fences_the_first(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    transactional_id = f"id-{topic}"
    first = producer_of(bootstrap_servers, transactional_id)
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    assert first.flush(PATIENCE_S) == 0
    second = producer_of(bootstrap_servers, transactional_id)
    with pytest.raises(KafkaException) as failure:
        first.commit_transaction(PATIENCE_S)
    assert code_of(failure) == KafkaError._FENCED
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(PATIENCE_S)
    assert read_committed(bootstrap_servers, topic, 1) == [b"of the second"]


def test_a_transaction_that_is_open_for_too_long_holds_nobody_up(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data", properties=QUICK)
    slow = producer_of(broker.address, "slow", **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce("timed", b"never", partition=0)
    assert slow.flush(PATIENCE_S) == 0
    quick = producer_of(broker.address, "quick")
    quick.begin_transaction()
    quick.produce("timed", b"at once", partition=0)
    quick.commit_transaction(PATIENCE_S)
    assert read_committed(broker.address, "timed", 1) == [b"at once"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_S)
    broker.stop()


def test_another_client_writes_transactions_too(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=f"id-{topic}")
    try:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close(PATIENCE_S)
    assert read_committed(bootstrap_servers, topic, 2) == [b"0", b"2"]


def test_what_was_promised_survives_kill_9_between_any_two_steps(start_broker: StartBroker, tmp_path: Path) -> None:
    """Producers commit as fast as they can; the broker is killed in the middle of it, three times."""
    broker = start_broker(tmp_path / "data", properties=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("kept", 3, 1)])["kept"].result(PATIENCE_S)
    promised: list[bytes] = []
    uncertain: set[bytes] = set()
    aborted: set[bytes] = set()
    for life in range(3):
        stop = threading.Event()
        before = len(promised)
        writers = [
            threading.Thread(target=_commit_until, args=(broker, f"{life}-{each}", stop, promised, uncertain, aborted))
            for each in range(2)
        ]
        for writer in writers:
            writer.start()
        time.sleep(1)
        while len(promised) == before and any(writer.is_alive() for writer in writers):
            time.sleep(0.05)
        broker.kill()
        stop.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        broker = start_broker(tmp_path / "data", properties=QUICK)
        for each in range(2):
            producer_of(broker.address, f"{life}-{each}")  # ends what was left open
    values = read_committed(broker.address, "kept", 3 * len(promised), partitions=3)
    counts = {value: values.count(value) for value in set(values)}
    assert promised
    assert all(counts.get(value) == 3 for value in promised), "a transaction that was committed is not whole"
    assert all(count == 3 for count in counts.values()), "part of a transaction is visible"
    assert not aborted & counts.keys(), "an aborted transaction is visible"
    assert counts.keys() <= set(promised) | uncertain
    broker.stop()


def _commit_until(
    broker: BrokerProcess,
    name: str,
    stop: threading.Event,
    promised: list[bytes],
    uncertain: set[bytes],
    aborted: set[bytes],
) -> None:
    producer = producer_of(broker.address, name)
    number = 0
    while not stop.is_set():
        number += 1
        value = f"{name}-{number}".encode()
        uncertain.add(value)
        try:
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("kept", value, partition=partition)
            if number % 5 == 0:
                assert producer.flush(5) == 0
                producer.abort_transaction(2)
                aborted.add(value)
            else:
                producer.commit_transaction(2)
                promised.append(value)
        except (KafkaException, AssertionError):
            return


def test_an_outcome_whose_markers_were_not_written_is_completed_at_the_next_start(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data", properties=QUICK)
    producer = producer_of(broker.address, "payments")
    producer.begin_transaction()
    for index in range(10):
        producer.produce("promised", b"%d" % index, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    broker.kill()
    # What a broker that dies right after it has written the outcome leaves behind.
    _append_outcome(tmp_path / "data", "payments", TransactionState.PREPARE_COMMIT)
    broker = start_broker(tmp_path / "data", properties=QUICK)
    assert len(read_committed(broker.address, "promised", 10)) == 10
    broker.stop()


def _append_outcome(data_dir: Path, transactional_id: str, state: TransactionState) -> None:
    folder = data_dir / f"__transaction_state-{partition_for(transactional_id, 50)}"
    path = folder / f"{0:020d}.log"
    batches = list(iterate_batches(path.read_bytes()))
    records = [record for _, batch in batches for record in decode_records(batch)]
    last = [record for record in records if record.key is not None and parse_key(record.key) == transactional_id][-1]
    assert last.value is not None
    metadata = parse_value(last.value)
    assert metadata.state is TransactionState.ONGOING
    outcome = TransactionMetadata(
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.previous_producer_id,
        timeout_ms=metadata.timeout_ms,
        state=state,
        partitions=metadata.partitions,
        start_ms=metadata.start_ms,
        last_update_ms=metadata.last_update_ms,
        client_version=metadata.client_version,
    )
    record = Record(transaction_key(transactional_id), transaction_value(outcome), metadata.last_update_ms)
    batch = build_batch(
        [record], base_offset=records[-1].offset + 1, partition_leader_epoch=HEADER.unpack_from(batches[-1][1])[2]
    )
    with path.open("ab") as file:
        file.write(batch)


# ---- hanging transactions ----


def headwater(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headwater", "transactions", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = headwater(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_transactions_are_listed_and_described(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic(2)
    transactional_id = f"id-{topic}"
    producer = producer_of(bootstrap_servers, transactional_id)
    at = ("-b", bootstrap_servers)
    [listed] = rows("list", *at, "--pattern", f"id-{topic}")
    assert listed["state"] == "Empty"
    [described] = rows("describe", *at, transactional_id)
    assert (described["state"], described["started"], described["partitions"]) == ("Empty", None, [])
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    [described] = rows("describe", *at, transactional_id)
    assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-0", f"{topic}-1"])
    assert transactional_id in {row["transactional_id"] for row in rows("list", *at, "--state", "Ongoing")}
    assert rows("find-hanging", *at, "--topic", topic, "--max-transaction-timeout-minutes", "0") == []
    producer.abort_transaction(PATIENCE_S)
    assert headwater("describe", *at, "nobody").returncode == 2


@pytest.mark.parametrize("by_offset", [True, False])
def test_a_hanging_transaction_is_found_with_its_owner_and_aborted_by_one_command(
    start_broker: StartBroker, tmp_path: Path, by_offset: bool
) -> None:
    # Without verification, a batch that comes late opens a transaction that nobody will end.
    without = {**QUICK, "transaction.partition.verification.enable": "false"}
    broker = start_broker(tmp_path / "data", properties=without)
    producer_of(broker.address, "late")
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("hung", 2, 1)])["hung"].result(PATIENCE_S)
    at = ("-b", broker.address)
    [owner] = rows("describe", *at, "late")
    write_late(broker.address, "hung", 1, "late", owner["producer_id"], owner["producer_epoch"])
    plain = Producer({"bootstrap.servers": broker.address})
    plain.produce("hung", b"behind it", partition=1)
    assert plain.flush(PATIENCE_S) == 0

    always: Sequence[str] = (*at, "--max-transaction-timeout-minutes", "0")
    assert rows("find-hanging", *at) == []  # it is young
    [found] = rows("find-hanging", *always)
    assert (found["topic"], found["partition"], found["start_offset"]) == ("hung", 1, 0)
    assert (found["transactional_id"], found["why"]) == ("late", "its transactional id is in state Empty")

    chosen = ("--topic", "hung", "--partition", "1", "--start-offset", "0") if by_offset else ("--all-hanging",)
    refused = headwater("abort", *always, *chosen)
    assert (refused.returncode, "give --yes" in refused.stderr) == (2, True)
    assert "Would abort" in headwater("abort", *always, *chosen, "--dry-run").stderr
    done = headwater("abort", *always, *chosen, "--yes")
    assert done.returncode == 0, done.stderr
    assert rows("find-hanging", *always) == []
    assert read_committed(broker.address, "hung", 1, partitions=2) == [b"behind it"]
    broker.stop()


def write_late(
    address: str, topic: str, partition: int, transactional_id: str, producer_id: int, producer_epoch: int
) -> None:
    """Write a transactional batch, as one that arrives after its transaction has ended."""
    host, _, port = address.rpartition(":")
    connection = BlockingConnection(
        host,
        int(port),
        client_id="late",
        connect_timeout_ms=5_000,
        request_timeout_ms=30_000,
        receive_buffer_bytes=0,
    )
    batch = build_batch(
        [Record(None, b"late", int(time.time() * 1000))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    try:
        response = connection.call(
            kio_request(
                0,
                9,
                {
                    "transactional_id": transactional_id,
                    "acks": -1,
                    "timeout": timedelta(seconds=30),
                    "topic_data": ({"name": topic, "partition_data": ({"index": partition, "records": batch},)},),
                },
            )
        )
        assert response.responses[0].partition_responses[0].error_code.value == 0
    finally:
        connection.close()
