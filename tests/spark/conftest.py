"""One Spark session for all tests of the data source, and the brokers that they share: ours, and an Apache Kafka."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headwater.pipelines.datasource import PUSHDOWN_OPTION, SESSION_CONF, session_environment
from tests.bench.peers import apache_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import BrokerProcess

ReadTopic: TypeAlias = "Callable[..., DataFrame]"
Produce: TypeAlias = "Callable[..., None]"
AwaitStableEnd: TypeAlias = "Callable[[str, dict[int, int]], None]"


# Small: the topics of these tests are.
KAFKA_JVM = ["-Xmx384m", "-Xms384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
TIMEOUT_S = 1800
GIVEN = os.environ.get("HEADWATER_TEST_BOOTSTRAP")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test may be the first, which fetches jars and starts Spark beside other runs that do the same."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka of one broker, its own controller."""
    child, port = apache_kafka.start(tmp_path_factory.mktemp("kafka") / "broker", jvm=KAFKA_JVM)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        child.stop()


@pytest.fixture(scope="session", params=["given"] if GIVEN else ["headwater", "kafka"])
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """Where the broker under test listens: each scenario runs against both."""
    if request.param == "headwater":
        broker: BrokerProcess = request.getfixturevalue("headwater_broker")
        return broker.address
    address: str = GIVEN or request.getfixturevalue("kafka_broker")
    return address


@pytest.fixture(scope="session")
def admin(bootstrap_servers: str) -> AdminClient:
    """On the broker of the scenario: the one of all tests, once made, would stay on ours."""
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2], small, with the settings that sessions of the product have."""
    os.environ.update(session_environment())
    from pyspark.sql import SparkSession

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its launcher's pipe to the collector
        session = builder.master("local[2]").appName("tests").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def read_topic(spark: SparkSession, bootstrap_servers: str) -> ReadTopic:
    """A batch read with filters pushed down; keyword arguments become options, `_` standing for a dot."""

    def read(topic: str, **options: Any) -> DataFrame:
        reader = spark.read.format("headwater").option("kafka.bootstrap.servers", bootstrap_servers)
        given = {PUSHDOWN_OPTION: "true", "subscribe": topic, **options}
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    return read


@pytest.fixture
def await_stable_end(admin: AdminClient) -> AwaitStableEnd:
    """Waits until the last stable offsets of a topic's partitions are those given.

    Kafka answers a commit once the coordinator's log has it; its markers, which end the transaction for
    readers, come after that.
    """

    def await_end(topic: str, ends: dict[int, int]) -> None:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, index): latest for index in ends}
        deadline = time.monotonic() + 60
        while True:
            answers = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
            found = {place.partition: answer.result().offset for place, answer in answers.items()}
            if found == ends:
                return
            assert time.monotonic() < deadline, f"last stable offsets of {topic} are {found}, not {ends}"
            time.sleep(0.05)

    return await_end


@pytest.fixture
def produce(bootstrap_servers: str) -> Produce:
    """Writes records with librdkafka: (key, value, partition or None, timestamp or 0, headers)."""

    def write(topic: str, records: list[dict[str, Any]], **config: Any) -> None:
        producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, **config})
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(topic, on_delivery=delivered, **record)
            producer.poll(0)
        assert producer.flush(30) == 0
        assert not failures, failures

    return write
