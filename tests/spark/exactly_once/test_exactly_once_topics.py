"""The exactly-once topic sink on real Spark, against our broker and an Apache Kafka: what is read after faults."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark import cloudpickle

from headwater.logtier.client import transactional_producer
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.logtier.records.batch import Record
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks.exactly_once import encoded_batches
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import FENCES_TOPIC, Batch, Step
from headwater.pipelines.sinks.exactly_once.exactly_once_topics import ATTEMPTS_MAX, ExactlyOnceTopics, TopicRecords
from tests.bench.peers import apache_kafka
from tests.spark.conftest import KAFKA_JVM
from tests.spark.exactly_once.conftest import (
    ReadCommitted,
    Sink,
    Stored,
    committed_offset,
    create_topic,
    read_committed_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
ROWS = 4000
HEADERS = "headers array<struct<key: string, value: binary>>"

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def carried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How encoded batches come to the tasks that send them: to an Apache Kafka in files, as on one machine; to ours in
    rows, as on a cluster. No broker knows of it.
    """
    if request.node.callspec.params["bootstrap_servers"] != "kafka":
        monkeypatch.setattr(encoded_batches, "is_local", lambda master: False)


def batch(number: int, checkpoint: str = "c") -> Batch:
    return Batch(checkpoint, number, ({"in": {"0": number + 1}},))


def numbered(spark: SparkSession, start: int, rows: int = ROWS) -> DataFrame:
    """Each value is a number, its key one of fifty; in the order of the numbers."""
    frame = spark.range(start, start + rows, 1, 3)
    return frame.selectExpr(
        "cast(concat('k', id % 50) AS binary) AS key", "cast(cast(id AS string) AS binary) AS value"
    )


def write(
    sink: ExactlyOnceTopics,
    number: int,
    outputs: list[TopicRecords],
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    assert sink.step(batch(number)) is Step.WRITE
    sink.write(batch(number), outputs, {("in", 0): number + 1}, on_step)


def encoded_folders(spark: SparkSession) -> list[Path]:
    """Folders of encoded batches that were not removed."""
    return list(Path(spark.sparkContext._temp_dir).glob("encoded-*"))


def values(stored: list[Stored]) -> list[int]:
    return sorted(int(record.value or b"-1") for record in stored)


def in_order(stored: list[Stored]) -> bool:
    """Whether the numbers of each key ascend, and each key is in one partition."""
    by_key: dict[bytes | None, list[tuple[int, int]]] = {}
    for record in stored:
        by_key.setdefault(record.key, []).append((record.partition, int(record.value or b"-1")))
    return all(
        len({partition for partition, _ in found}) == 1
        and all(before < after for (_, before), (_, after) in itertools.pairwise(found))
        for found in by_key.values()
    )


@pytest.mark.usefixtures("carried")
def test_topics_dead_letters_and_offsets_of_a_batch_appear_together(
    retrying_spark: SparkSession,
    sink: Sink,
    stage: str,
    new_topic: NewTopic,
    read_committed: ReadCommitted,
    bootstrap_servers: str,
) -> None:
    first, second, source = new_topic(5), new_topic(1), new_topic(1)
    letters = retrying_spark.createDataFrame(
        [(None, b"{", [("error", b"no JSON"), ("note", None)])], f"key binary, value binary, {HEADERS}"
    )
    seen: dict[str, tuple[int, int, int]] = {}
    one = sink()

    def look(step: str) -> None:
        offset, _ = committed_offset(bootstrap_servers, f"p.{stage}", source, 0)
        seen[step] = (visible(bootstrap_servers, first), visible(bootstrap_servers, second), offset)

    for number in range(3):
        outputs = [
            TopicRecords(first, numbered(retrying_spark, number * ROWS), ROWS),
            TopicRecords(second, letters, 1),
            TopicRecords(first, numbered(retrying_spark, 10**6 + number, 1), 1),
        ]
        assert one.step(batch(number)) is Step.WRITE
        one.write(batch(number), outputs, {(source, 0): number + 1}, look if number == 0 else lambda step: None)
    assert seen["transaction_open"][:2] == (0, 0)
    assert seen["records_sent"] == (0, 0, -1001), "before the commit nothing is visible"
    stored = read_committed(first)
    assert values(stored) == [*range(3 * ROWS), *range(10**6, 10**6 + 3)]
    assert in_order([record for record in stored if int(record.value or b"") < 10**6])
    assert [(r.value, r.headers) for r in read_committed(second)] == [
        (b"{", (("error", b"no JSON"), ("note", None)))
    ] * 3
    assert committed_offset(bootstrap_servers, f"p.{stage}", source, 0) == (3, "batch=2")


def visible(servers: str, topic: str) -> int:
    """How many records a read_committed consumer gets now (of the first ten); it stops before an open transaction."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "peek", "isolation.level": "read_committed"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found = consumer.consume(10, 1.5)
    consumer.close()
    return len(found)


@pytest.mark.usefixtures("carried")
def test_keys_go_where_the_java_clients_put_them(
    retrying_spark: SparkSession,
    sink: Sink,
    new_topic: NewTopic,
    read_committed: ReadCommitted,
    bootstrap_servers: str,
) -> None:
    ours, theirs = new_topic(7), new_topic(7)
    keys = [f"key {number} {'x' * (number % 13)}".encode() for number in range(300)]
    frame = retrying_spark.createDataFrame(
        [(bytearray(key), bytearray(b"v")) for key in keys], "key binary, value binary"
    )
    write(sink(), 0, [TopicRecords(ours, frame, 300)])
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, key=key, value=b"v")
    assert producer.flush(30) == 0
    placed = [{record.key: record.partition for record in read_committed(topic)} for topic in (ours, theirs)]
    assert placed[0] == placed[1]
    assert len(placed[0]) == 300


@pytest.mark.usefixtures("carried")
def test_tombstones_timestamps_and_large_records_are_kept(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, read_committed: ReadCommitted
) -> None:
    topic = new_topic(2, {"max.message.bytes": "4000000"})
    rows = [(b"a", None, 1_700_000_000_123), (b"b", b"x" * 700_000, None), (b"c", b"", 5)]
    frame = retrying_spark.createDataFrame(rows, "key binary, value binary, timestamp_ms bigint")
    before_ms = int(time.time() * 1000)
    write(sink(), 0, [TopicRecords(topic, frame, 3)])
    found = {record.key: record for record in read_committed(topic)}
    assert found[b"a"].value is None
    assert found[b"a"].timestamp_ms == 1_700_000_000_123
    assert found[b"b"].value == b"x" * 700_000
    assert found[b"b"].timestamp_ms >= before_ms
    assert (found[b"c"].value, found[b"c"].timestamp_ms) == (b"", 5)


def fail_once(mark: Path, when: int) -> Callable[[int, bool], None]:
    """A task that has sent everything, and then fails; the first time only."""

    def after_send(target: int, is_first: bool) -> None:
        if target == when and not mark.exists():
            mark.touch()
            raise RuntimeError("the task fails after it has written")

    return after_send


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("protocol", ["the cluster's", "before transaction.version 2"])
def test_a_task_that_fails_and_is_run_again_doubles_nothing(
    protocol: str,
    retrying_spark: SparkSession,
    sink: Sink,
    new_topic: NewTopic,
    read_committed: ReadCommitted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if protocol != "the cluster's":
        monkeypatch.setattr(transactional_producer, "FEATURE", "unknown.feature")
    topic = new_topic(3)
    one = sink(after_send=fail_once(tmp_path / "failed", 1))
    steps: list[str] = []
    for number in range(3):
        write(one, number, [TopicRecords(topic, numbered(retrying_spark, number * ROWS), ROWS)], steps.append)
        if number == 1:
            (tmp_path / "failed").unlink()
    assert one.transaction_version == (2 if protocol == "the cluster's" else 0)
    assert Counter(steps) == {"transaction_open": 5, "records_sent": 5, "committed": 3}
    stored = read_committed(topic)
    assert values(stored) == list(range(3 * ROWS))
    assert in_order(stored)


def test_a_batch_that_cannot_be_written_leaves_nothing_and_blocks_nobody(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, read_committed: ReadCommitted
) -> None:
    topic = new_topic(3)
    one = sink()
    frame = numbered(retrying_spark, 0)
    failing = frame.selectExpr(
        "key", "if(value = cast('7' AS binary), raise_error('no attempt succeeds'), value) AS value"
    )
    with pytest.raises(Exception, match="no attempt succeeds"):
        write(one, 0, [TopicRecords(topic, frame, ROWS), TopicRecords(topic, failing, ROWS)])
    assert read_committed(topic) == []
    assert encoded_folders(retrying_spark) == []
    write(one, 0, [TopicRecords(topic, frame, ROWS)])
    assert values(read_committed(topic)) == list(range(ROWS))
    assert encoded_folders(retrying_spark) == []


def test_a_task_that_never_runs_once_only_is_given_up_after_some_attempts(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, read_committed: ReadCommitted, tmp_path: Path
) -> None:
    topic = new_topic(1)

    def first_attempts(target: int, is_first: bool) -> None:
        raise RuntimeError("the first attempt fails")

    one = sink(after_send=first_attempts)
    steps: list[str] = []
    with pytest.raises(PipelineFailed, match=f"aborted {ATTEMPTS_MAX} times.*ran more than once"):
        write(one, 0, [TopicRecords(topic, numbered(retrying_spark, 0, 10), 10)], steps.append)
    assert steps.count("transaction_open") == ATTEMPTS_MAX
    assert read_committed(topic) == []


def test_a_record_that_is_too_large_is_told_and_nothing_is_left(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, read_committed: ReadCommitted
) -> None:
    topic = new_topic(2)
    frame = retrying_spark.sql("SELECT cast('k' AS binary) AS key, cast(repeat('x', 3000000) AS binary) AS value")
    good = numbered(retrying_spark, 0, 10)
    with pytest.raises(PipelineFailed, match="MESSAGE_TOO_LARGE"):
        write(sink(), 0, [TopicRecords(topic, good, 10), TopicRecords(topic, frame, 1)])
    assert read_committed(topic) == []


def test_a_zombie_driver_is_fenced_and_ends(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, read_committed: ReadCommitted
) -> None:
    topic = new_topic(3)
    frame = numbered(retrying_spark, 0)
    zombie, successor = sink(), sink()
    write(zombie, 0, [TopicRecords(topic, frame, ROWS)])

    def take_over(step: str) -> None:
        # The zombie has sent everything and hangs; its successor runs the batch again.
        if step == "records_sent":
            write(successor, 1, [TopicRecords(topic, numbered(retrying_spark, ROWS), ROWS)])

    with pytest.raises(PipelineFailed, match="another run of it has taken over"):
        write(zombie, 1, [TopicRecords(topic, numbered(retrying_spark, ROWS), ROWS)], take_over)
    with pytest.raises(PipelineFailed, match="another run of it has taken over"):
        zombie.write(batch(2), [TopicRecords(topic, frame, ROWS)], {})
    write(successor, 2, [TopicRecords(topic, numbered(retrying_spark, 2 * ROWS), ROWS)])
    assert values(read_committed(topic)) == list(range(3 * ROWS))


def test_a_new_run_skips_what_is_committed_and_aborts_what_was_left_open(
    retrying_spark: SparkSession,
    sink: Sink,
    stage: str,
    new_topic: NewTopic,
    read_committed: ReadCommitted,
    bootstrap_servers: str,
) -> None:
    topic = new_topic(2)
    write(sink(), 0, [TopicRecords(topic, numbered(retrying_spark, 0), ROWS)])
    options = WriteOptions.parse({"kafka.bootstrap.servers": bootstrap_servers})
    with ClusterClient(options.client) as cluster:
        died = TransactionalProducer(cluster, TransactionConfig(f"headwater.p.{stage}"))
        died.begin([(topic, 0), (FENCES_TOPIC, 0)])
        died.send(FENCES_TOPIC, 0, [Record(f"headwater.p.{stage}".encode(), b'{"version":1}', 1)])
        died.send(topic, 0, [Record(b"k", b"99", 1)])
    again = sink()
    assert again.step(batch(0)) is Step.SKIP
    with pytest.raises(PipelineFailed, match="older copy"):
        again.step(Batch("c", 0, ({"in": {"0": 99}},)))
    write(again, 1, [TopicRecords(topic, numbered(retrying_spark, ROWS), ROWS)])
    assert values(read_committed(topic)) == list(range(2 * ROWS))


def test_a_stage_finds_its_fence_behind_the_open_transaction_of_another(
    retrying_spark: SparkSession, sink: Sink, new_topic: NewTopic, bootstrap_servers: str
) -> None:
    topic = new_topic(1)
    frame = numbered(retrying_spark, 0, 10)
    write(sink(), 0, [TopicRecords(topic, frame, 10)])
    options = WriteOptions.parse({"kafka.bootstrap.servers": bootstrap_servers})
    with ClusterClient(options.client) as cluster:
        other = TransactionalProducer(cluster, TransactionConfig(f"other-{topic}"))
        other.begin([(FENCES_TOPIC, 0)])
        other.send(FENCES_TOPIC, 0, [Record(f"other-{topic}".encode(), b"{}", 1)])
        write(sink(), 1, [TopicRecords(topic, frame, 10)])
        assert sink().step(batch(1)) is Step.SKIP
        other.abort()


def test_a_batch_without_rows_still_commits_its_offsets(
    retrying_spark: SparkSession, sink: Sink, stage: str, new_topic: NewTopic, bootstrap_servers: str
) -> None:
    topic, source = new_topic(2), new_topic(1)
    one = sink()
    assert one.step(batch(0)) is Step.WRITE
    one.write(batch(0), [], {(source, 0): 17})
    empty = numbered(retrying_spark, 0, 0)
    one.write(batch(1), [TopicRecords(topic, empty, 0)], {(source, 0): 18})
    assert committed_offset(bootstrap_servers, f"p.{stage}", source, 0) == (18, "batch=1")
    assert sink().step(batch(1)) is Step.SKIP


def test_a_broker_that_is_killed_in_the_middle_of_a_batch_and_comes_back_loses_and_doubles_nothing(
    retrying_spark: SparkSession, sink_at: Sink, start_broker: StartBroker, tmp_path: Path
) -> None:
    brokers = [start_broker(tmp_path / "data")]
    port, servers = brokers[0].port, brokers[0].address
    create_topic(servers, "out", 3)
    restarting: list[threading.Thread] = []
    steps = ["transaction_open", "records_sent"]
    """At the first of them, and then, once the broker is back, at the second."""

    def restart() -> None:
        time.sleep(1.0)
        brokers.append(start_broker(tmp_path / "data", port))

    def kill(step: str) -> None:
        if steps and step == steps[0] and all(not each.is_alive() for each in restarting):
            steps.pop(0)
            brokers[-1].kill()
            restarting.append(threading.Thread(target=restart))
            restarting[-1].start()

    one = sink_at(servers)
    for number in range(3):
        write(one, number, [TopicRecords("out", numbered(retrying_spark, number * ROWS), ROWS)], kill)
        for each in restarting:
            each.join()
    assert len(brokers) == 3
    stored = read_committed_of(servers, "out")
    assert values(stored) == list(range(3 * ROWS))
    assert in_order(stored)


def test_a_transaction_that_takes_too_long_is_not_read_and_its_stage_says_so(
    retrying_spark: SparkSession, sink_at: Sink, start_broker: StartBroker, tmp_path: Path
) -> None:
    quick = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    broker = start_broker(tmp_path / "data", properties=quick)
    create_topic(broker.address, "out", 2)
    one = sink_at(broker.address, transaction_timeout_ms=1500)
    waited: list[str] = []

    def wait(step: str) -> None:
        if step == "records_sent" and not waited:
            waited.append(step)
            time.sleep(3)

    frame = numbered(retrying_spark, 0, 100)
    try:
        write(one, 0, [TopicRecords("out", frame, 100)], wait)
    except PipelineFailed as failed:
        assert re.search("took longer than 1 s", str(failed))
        write(sink_at(broker.address), 0, [TopicRecords("out", frame, 100)])
    assert values(read_committed_of(broker.address, "out")) == list(range(100))


def test_an_apache_kafka_with_an_older_transaction_version_is_served(
    retrying_spark: SparkSession, sink_at: Sink, tmp_path: Path
) -> None:
    child, port = apache_kafka.start(tmp_path / "kafka", jvm=KAFKA_JVM)
    servers = f"127.0.0.1:{port}"
    try:
        for level in (1, 0):
            command = apache_kafka.tool("FeatureCommand", "--bootstrap-server", servers, "downgrade")
            done = subprocess.run(
                [*command, "--feature", f"transaction.version={level}"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            topic, first = f"out-{level}", 0 if level else 3
            create_topic(servers, topic, 3)
            one = sink_at(servers, after_send=fail_once(tmp_path / f"failed-{level}", 1))
            for number in range(3):
                rows = numbered(retrying_spark, number * ROWS)
                write(one, first + number, [TopicRecords(topic, rows, ROWS)])
            assert one.transaction_version == level
            assert sink_at(servers).step(batch(first + 2)) is Step.SKIP
            stored = read_committed_of(servers, topic)
            assert values(stored) == list(range(3 * ROWS))
            assert in_order(stored)
    finally:
        child.stop()
