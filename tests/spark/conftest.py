"""One Spark session for all tests of the data source, and a client of the broker that they share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from confluent_kafka import Producer

from pipelines.datasource import PUSHDOWN_OPTION, SESSION_CONF, session_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadTopic: TypeAlias = "Callable[..., DataFrame]"
Produce: TypeAlias = "Callable[..., None]"


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
