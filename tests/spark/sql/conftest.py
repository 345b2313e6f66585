"""A session as `headwater sql` opens it, shared by all tests here, with relations on the tests' broker."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headwater.api.topic_admin import TopicAdmin
from headwater.api.topic_model import TopicRequest
from headwater.cli.sql.spark_session import opened
from headwater.pipelines.spark.session import close_session
from headwater.pipelines.sql.relations import Known, Relations, TopicFrames
from headwater.pipelines.sql.statement import analysed
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.sql_text.scanner import Statement, statements
from tests.conftest import BrokerProcess
from tests.spark.registry_process import registry, schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["registry", "schemas"]


@pytest.fixture(scope="package")
def sql_spark() -> Iterator[SparkSession]:
    """A JVM that other tests have left has other settings: it ends first."""
    close_session()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with opened("local[2]") as session:
        yield session
    for number, handler in before.items():
        signal.signal(number, handler)


class SqlLab:
    """Topics whose names begin with `t`, and statements over them; `@` in a text is the prefix."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self.spark = spark
        self.servers = servers
        self.prefix = f"t{uuid.uuid4().hex[:8]}_"
        self.admin = TopicAdmin(servers)
        self.relations: Any = None
        self.with_known(Known())

    def with_known(self, known: Known, frames: TopicFrames | None = None) -> Relations:
        """Relations that statements use from now on."""
        names = TopicNames(self.admin.topic_names)
        if self.relations is not None:
            self.relations.end()  # a session has one shell
        self.relations = relations = Relations(self.spark, self.servers, names, known, frames)
        return relations

    def name(self, text: str) -> str:
        return text.replace("@", self.prefix)

    def create(self, topic: str, partitions: int = 1) -> None:
        self.admin.create_topic(TopicRequest(self.name(topic), partitions_count=partitions))

    def produce(self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for key, value in records:
            producer.produce(self.name(topic), key=key, value=value, partition=partition)
        assert producer.flush(30) == 0

    def statement(self, text: str) -> Statement:
        (found,) = statements(self.name(text))
        return found

    def frame(self, text: str, values: Mapping[str, Any] | None = None) -> DataFrame:
        return analysed(self.spark, self.relations, self.statement(text), values)

    def rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.frame(text, values).collect()]

    def one(self, text: str, values: Mapping[str, Any] | None = None) -> Any:
        ((found,),) = self.rows(text, values)
        return found


@pytest.fixture
def lab(sql_spark: SparkSession, headwater_broker: BrokerProcess) -> SqlLab:
    return SqlLab(sql_spark, headwater_broker.address)
