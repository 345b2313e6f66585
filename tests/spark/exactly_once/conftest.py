"""A Spark whose failed tasks are run again, as on a cluster; and a consumer that sees only what was committed."""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.pipelines.datasource import SESSION_CONF, session_environment
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import stage_owner
from headwater.pipelines.sinks.exactly_once.exactly_once_topics import ExactlyOnceTopics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
READ_S = 60
# What Apache Kafka answers for a while after its first group made the topic of offsets.
LOADING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class Stored(NamedTuple):
    """A record as a read_committed consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


ReadCommitted: TypeAlias = Callable[[str], list[Stored]]
Sink: TypeAlias = Callable[..., ExactlyOnceTopics]


@pytest.fixture(scope="package")
def retrying_spark() -> Iterator[SparkSession]:
    """local[2] with several attempts a task, which only the master's name gives in local mode."""
    os.environ.update(session_environment())
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
    builder: Any = SparkSession.builder
    conf = {
        **SESSION_CONF,
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.master(f"local[2,{TASK_ATTEMPTS}]").appName("tests").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def stage() -> str:
    """A stage's name of this test's own: it is part of the transactional id."""
    return f"stage-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink_at(stage: str) -> Iterator[Sink]:
    """Sinks of one stage of the pipeline `p`, at the brokers given first; each is a new run of it."""
    made: list[ExactlyOnceTopics] = []

    def make(servers: str, **arguments: Any) -> ExactlyOnceTopics:
        options = WriteOptions.parse({"kafka.bootstrap.servers": servers})
        made.append(ExactlyOnceTopics(options, stage_owner("p", stage), **arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sink(sink_at: Sink, bootstrap_servers: str) -> Sink:
    """The same at the broker under test."""
    return partial(sink_at, bootstrap_servers)


def _ends(servers: str, topic: str, isolation_level: str) -> dict[int, int]:
    """The end of each partition: with read_committed that is where the first open transaction begins."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends", "isolation.level": isolation_level})
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
    finally:
        consumer.close()


def read_committed_of(servers: str, topic: str) -> list[Stored]:
    """All committed records of a topic; fails if an open transaction hides what is behind it."""
    deadline_s = time.monotonic() + READ_S
    while (ends := _ends(servers, topic, "read_uncommitted")) != (stable := _ends(servers, topic, "read_committed")):
        assert time.monotonic() < deadline_s, f"{topic}: a transaction stays open: {stable} of {ends}"
        time.sleep(0.05)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in ends])
        found: dict[int, list[Stored]] = defaultdict(list)
        left = set(ends)
        while left:
            assert time.monotonic() < deadline_s, f"{topic}: the ends of partitions {left} do not come"
            for message in consumer.consume(1000, 0.2):
                error, partition, offset = message.error(), message.partition(), message.offset()
                assert partition is not None
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(partition)
                    continue
                assert offset is not None
                pairs: Any = message.headers() or ()
                found[partition].append(
                    Stored(partition, offset, message.key(), message.value(), message.timestamp()[1], tuple(pairs))
                )
        return [record for partition in ends for record in found[partition]]
    finally:
        consumer.close()


@pytest.fixture
def read_committed(bootstrap_servers: str) -> ReadCommitted:
    """What a read_committed consumer finds in a topic of the broker under test."""
    return lambda topic: read_committed_of(bootstrap_servers, topic)


def committed_offset(servers: str, group: str, topic: str, partition: int) -> tuple[int, str | None]:
    """A group's committed offset and its metadata; a coordinator that still loads is asked again."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    deadline = time.monotonic() + READ_S
    try:
        while True:
            try:
                [found] = consumer.committed([TopicPartition(topic, partition)], timeout=30)
            except KafkaException as error:
                if error.args[0].code() not in LOADING or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return found.offset, found.metadata
    finally:
        consumer.close()


def create_topic(servers: str, topic: str, partitions: int) -> None:
    """A topic of a broker that a test has for itself."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
