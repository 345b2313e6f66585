"""Whole pipelines on a real broker and a real Spark with Delta, in this process: one session for all of them."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.api.topic_admin import TopicAdmin
from headwater.cli.pipeline.topic_creation import topics_creator
from headwater.pipelines.engine.runner import Runner, RunOptions, RunResult
from headwater.pipelines.spark.session import LOCAL_MASTER, close_session, open_session
from headwater.pipelines.validation.pipeline_file import load
from tests.conftest import BrokerProcess
from tests.spark.registry_process import registry, schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["registry", "schemas"]

READ_S = 60
CONTINUOUS_S = 240
#: A Delta merge of a few rows takes half the processor time.
FEW_ROWS = {
    # An adaptive plan has one partition for so few rows, too; whole nodes (`tests/end_to_end`) run adaptive plans, and
    # state in a partition for each core.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # For each operation on a column, PySpark otherwise notes the line of Python that calls it: 0.5 ms, thousands of
    # times in a test.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


class Seen(NamedTuple):
    """A record as a read_committed consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: dict[str, bytes | None]

    @property
    def json(self) -> Any:
        """The value."""
        return None if self.value is None else json.loads(self.value)


@pytest.fixture(scope="package")
def delta_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] as the product opens it. A JVM that other tests have left has no Delta: it ends first."""
    close_session()
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = FEW_ROWS | {"spark.master": "local[2]", "spark.sql.warehouse.dir": str(log.parent)}
    yield open_session("tests", str(log), conf)
    close_session()


class Lab:
    """A folder with pipelines, and the broker they use. An `@` in a text is the prefix of this test's topics."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.prefix = f"t{uuid.uuid4().hex[:8]}."
        self.admin = TopicAdmin(servers)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def runner(self, text: str, *, available_now: bool = True, stages: Sequence[str] = (), **more: Any) -> Runner:
        path = self.write("pipeline.yaml", text.replace("@", self.prefix))
        existing = frozenset(topic.name for topic in self.admin.list_topics())
        loaded = load(str(path), more.pop("variables", {}), existing, environ=more.pop("environ", {}))
        state, reset = str(self.folder / more.pop("state", "state")), tuple(more.pop("reset", ()))
        options = RunOptions(
            self.servers, state, available_now, tuple(stages), reset=reset,
            checkpoints=more.pop("checkpoints", ""), move=more.pop("move", False),
            spark_master=more.pop("spark_master", LOCAL_MASTER),
        )  # fmt: skip
        return Runner(loaded, options, topics_creator(self.admin), **more)

    def run(self, text: str, **more: Any) -> RunResult:
        """Run a pipeline to the end of what there is."""
        return self.runner(text, **more).run()

    def run_until(self, text: str, is_done: Callable[[], bool], **more: Any) -> RunResult:
        """Run a pipeline continuously until `is_done`, which is asked again and again."""
        runner = self.runner(text, available_now=False, **more)
        ended = threading.Event()

        def watch() -> None:
            for _ in range(CONTINUOUS_S * 4):
                if ended.wait(0.25) or is_done():
                    break
            runner.stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return runner.run()
        finally:
            ended.set()
            watcher.join()

    def repeat_last_batch(self, pipeline: str, stage: str) -> int:
        """Let the next run do a stage's last batch again, as after a crash behind its writes; gives its number."""
        commits = self.folder / "state" / pipeline / stage / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    def produce(self, topic: str, values: Sequence[Any], *, partitions: int = 1, **more: Any) -> None:
        """Write records: values, or (key, value) or (key, value, headers); what is no text or bytes becomes JSON."""
        name = topic.replace("@", self.prefix)
        if not any(known.name == name for known in self.admin.list_topics()):
            from headwater.api.topic_model import TopicRequest

            self.admin.create_topic(TopicRequest(name, partitions_count=partitions))
        producer = Producer({"bootstrap.servers": self.servers, "partitioner": "murmur2_random"})
        for given in values:
            key, value, headers = (*given, None, None)[:3] if isinstance(given, tuple) else (None, given, None)
            producer.produce(name, key=_bytes(key), value=_bytes(value), headers=headers, **more)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Seen]:
        """All committed records of a topic, by partition and offset."""
        consumer = Consumer({
            "bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed",
            "enable.auto.commit": False, "enable.partition.eof": True,
        })  # fmt: skip
        name = topic.replace("@", self.prefix)
        try:
            left = set(consumer.list_topics(name, timeout=READ_S).topics[name].partitions)
            consumer.assign([TopicPartition(name, p, 0) for p in left])
            found: list[Seen] = []
            while left:
                message = consumer.poll(READ_S)
                assert message is not None, f"{name}: the ends of partitions {left} do not come"
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if message.error() is not None:
                    left.discard(partition)
                    continue
                pairs: Any = message.headers() or []
                found.append(
                    Seen(partition, offset, message.key(), message.value(), message.timestamp()[1], dict(pairs))
                )
            return sorted(found)
        finally:
            consumer.close()

    def values(self, topic: str) -> list[Any]:
        """The JSON values of a topic."""
        return [seen.json for seen in self.read(topic)]

    def delta(self, path: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of a Delta table, sorted."""
        frame = self.spark.read.format("delta").load(str(self.folder / path))
        return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@pytest.fixture
def lab(delta_spark: SparkSession, headwater_broker: BrokerProcess, tmp_path: Path) -> Lab:
    return Lab(delta_spark, headwater_broker.address, tmp_path)


@pytest.fixture
def lab_on(delta_spark: SparkSession, tmp_path: Path) -> Callable[[str], Lab]:
    """A lab on a broker of one's own."""
    return lambda servers: Lab(delta_spark, servers, tmp_path)


@pytest.fixture
def derby(delta_spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A database in Spark's JVM: its URL, and a way to run statements and to read rows."""
    url = f"jdbc:derby:memory:{uuid.uuid4().hex};create=true"
    jvm: Any = delta_spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))  # else the current folder

    class Derby:
        def __init__(self) -> None:
            self.url = url

        def run(self, *statements: str) -> None:
            connection = jvm.java.sql.DriverManager.getConnection(url)
            for statement in statements:
                connection.createStatement().executeUpdate(statement)
            connection.close()

        def rows(self, query: str) -> list[tuple[Any, ...]]:
            frame = delta_spark.read.format("jdbc").option("url", url).option("query", query).load()
            return sorted((tuple(row) for row in frame.collect()), key=repr)

    yield Derby()
