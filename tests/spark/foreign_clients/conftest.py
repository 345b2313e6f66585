"""A session that serves foreign clients, with views of topics of the tests' broker, one of them archived."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer

from headwater.api.topic_admin import TopicAdmin
from headwater.api.topic_model import TopicRequest
from headwater.pipelines.archive.archive_file import parse_archive
from headwater.pipelines.archive.running import ArchiveRun
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.seam.table_offsets import table_offsets
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import close_session
from headwater.pipelines.sql import topic_rows
from headwater.pipelines.sql.connect_server import ConnectServer, connect_conf
from headwater.pipelines.sql.foreign_views import ArchivedTable, ForeignViews, foreign_conf
from headwater.pipelines.sql.thrift_server import ThriftServer, open_served_session
from tests.conftest import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEN_WITHIN_S: Final = 60.0  # on a busy machine
FILE: Final = """
topics:
  "@flights": {value: string}
archive:
  root: lake
  topics:
    "@flights": {}
"""


class Service:
    """The servers, and the topics whose names begin with `prefix`."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.prefix = f"T{uuid.uuid4().hex[:8]}_"
        self.flights = f"{self.prefix}flights"
        self.admin = TopicAdmin(servers)
        self.broken: set[str] = set()
        self.thrift = ThriftServer(spark, str(folder / "thrift"))
        self.connect = ConnectServer(spark)
        self.views = ForeignViews(spark, self, self.topics, self.archives)

    # What the views ask.

    def topics(self) -> Sequence[str]:
        return [each for each in self.admin.topic_names() if each.startswith(self.prefix)]

    def archives(self) -> dict[str, ArchivedTable]:
        return {self.flights: ArchivedTable(self.flights, self.table)}

    def unified(self, topic: str) -> DataFrame:
        """Table and log joined at the offsets of now, by partition and offset."""
        if topic in self.broken:
            raise ValueError("broken for this test")
        log = topic_rows.present(self.spark, self.servers, topic, KnownColumns({}))
        offsets = table_offsets(self.table) if topic == self.flights else None
        if offsets is None:
            return log
        behind = " OR ".join(f"(partition = {each} AND offset >= {end})" for each, end in offsets.ends.items())
        table = self.spark.read.format("delta").option("versionAsOf", offsets.version).load(self.table)
        return table.selectExpr("_partition AS partition", "_offset AS offset", "value").unionByName(
            log.where(behind).select("partition", "offset", "value")
        )

    def log(self, topic: str) -> DataFrame:
        return topic_rows.log_records(self.spark, self.servers, topic)

    # What tests do.

    @property
    def table(self) -> str:
        return str(self.folder / "lake" / self.flights)

    def create(self, topic: str, partitions: int = 1) -> str:
        self.admin.create_topic(TopicRequest(f"{self.prefix}{topic}", partitions_count=partitions))
        return f"{self.prefix}{topic}"

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(count):
            producer.produce(topic, key=b"k", value=str(n), partition=partition)
        assert producer.flush(30) == 0

    def archive(self) -> None:
        """Let the table catch up."""
        specs, loaded = parse_archive(
            FILE.replace("@", self.prefix),
            "archive.yaml",
            {},
            str(self.folder),
            {},
            lambda path: Path(path).read_text(),
        )
        assert ArchiveRun(specs, loaded, self.servers, file_system).run_once(lambda: self.spark) == []


def await_true(condition: Callable[[], bool]) -> None:
    """Fails if a condition does not hold in time."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="package")
def working_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the JVM is started: nothing may be left there."""
    folder, before = tmp_path_factory.mktemp("working"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="package")
def foreign_spark(working_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A JVM that other tests have left has other settings: it ends first."""
    close_session()
    folder = tmp_path_factory.mktemp("foreign")
    conf = {"spark.master": "local[2]", **foreign_conf(str(folder / "warehouse")), **connect_conf()}
    session = open_served_session("foreign clients", str(folder / "spark.log"), conf)
    jvm.find_python_sources(session)
    yield session
    close_session()


@pytest.fixture(scope="package")
def service(
    foreign_spark: SparkSession, headwater_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Two partitions with 10 archived flights each, and 5 more behind them; a topic `plain` of 3 without an archive."""
    service = Service(foreign_spark, headwater_broker.address, tmp_path_factory.mktemp("service"))
    service.create("flights", 2)
    for count, is_archived in ((10, True), (5, False)):
        for partition in range(2):
            service.produce(service.flights, count, partition)
        if is_archived:
            service.archive()
    service.produce(service.create("plain.topic"), 3)
    service.views.start()
    service.thrift.start()
    service.connect.start()
    yield service
    service.views.stop()
    service.connect.stop()
    service.thrift.stop()
