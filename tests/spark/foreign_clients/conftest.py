"""A session that serves foreign clients, with views of topics of the tests' broker, one of them archived."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from headwater.api.topic_model import TopicRequest
from headwater.cli.sql.known_relations import Cluster
from headwater.cli.sql_service.foreign_topics import ServedTopics
from headwater.cli.sql_service.served_archives import ServedArchives
from headwater.cli.sql_service.session import service_conf
from headwater.pipelines.archive.running import ArchiveRun
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import close_session
from headwater.pipelines.sql import thrift_server
from headwater.pipelines.sql.connect_server import ConnectServer, connect_conf
from headwater.pipelines.sql.foreign_views import ForeignViews
from headwater.pipelines.sql.query_plan import refusal_of_frame, refusal_of_text
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.shared_views import ServedViews
from headwater.pipelines.sql.statement import analysed
from headwater.pipelines.sql.thrift_server import ThriftServer, open_served_session, thrift_conf
from headwater.pipelines.sql_text.scanner import Statement
from headwater.pipelines.unified.session_archives import SessionArchives
from tests.conftest import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEN_WITHIN_S: Final = 60.0  # on a busy machine
FILE: Final = """
topics:
  "@flights": {value: string}
  "@keyed": {value: string}
archive:
  root: lake
  topics:
    "@flights": {}
    "@keyed": {mode: upsert}
"""


class OwnTopics(ServedTopics):
    """The topics whose names begin with a prefix: others are of other tests."""

    prefix = ""
    broken = ""

    def partitions(self) -> Mapping[str, int]:
        return {name: count for name, count in super().partitions().items() if name.startswith(self.prefix)}

    def rows(self, topic: str) -> DataFrame:
        if topic == self.broken:
            raise ValueError("broken for this test")
        return super().rows(topic)


class Service:
    """The servers, and the topics whose names begin with `prefix`."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.prefix = f"T{uuid.uuid4().hex[:8]}_"
        self.flights = f"{self.prefix}flights"
        self.keyed = f"{self.prefix}keyed"
        self.table = str(folder / "lake" / self.flights)
        (folder / "archive.yaml").write_text(FILE.replace("@", self.prefix))
        self.cluster = Cluster(servers)
        self.admin = self.cluster.admin
        self.archives = SessionArchives.of(str(folder / "archive.yaml"), {})
        self.known = self.archives.known(Known())
        self.served = ServedArchives(None, self.archives, Known(), lambda _line: None)
        self.shared = ServedViews(spark, keeps=True)
        self.topics = OwnTopics(spark, self.cluster, self.served)
        self.topics.prefix = self.prefix
        self.reports: list[str] = []
        self.views = ForeignViews(spark, self.shared, self.topics, self.reports.append)
        self.thrift = ThriftServer(spark, str(folder / "thrift"))
        self.connect = ConnectServer(spark)

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:hive2://127.0.0.1:{self.thrift.port}/"

    @property
    def connect_url(self) -> str:
        return f"sc://127.0.0.1:{self.connect.port}"

    # What tests do.

    def create(self, topic: str, partitions: int = 1) -> str:
        self.admin.create_topic(TopicRequest(f"{self.prefix}{topic}", partitions_count=partitions))
        return f"{self.prefix}{topic}"

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(count):
            producer.produce(topic, key=b"k", value=str(n), partition=partition)
        assert producer.flush(30) == 0

    def own_rows(self, text: str, *, broken: bool = False) -> list[Any]:
        """The rows of a statement over REST; with `broken`, the archive of its topic has lost its table's place."""
        frame, _ = self._analysed(text, broken=broken)
        return [tuple(row) for row in frame.collect()]

    def refusal(self, text: str) -> str | None:
        """Why a statement over REST is refused."""
        refused = refusal_of_text(self.spark, text)
        if refused is None:
            frame, made = self._analysed(text)
            refused = refusal_of_frame(frame, made)
        return None if refused is None else refused.reason

    def _analysed(self, text: str, *, broken: bool = False) -> tuple[DataFrame, frozenset[tuple[str, ...]]]:
        session, archives = self.spark.newSession(), self.archives
        if broken:
            other = [dataclasses.replace(each, table=str(self.folder / "thrift")) for each in archives.specs]
            DeltaTable.create(other[0].table, schema=pa.schema([("a", pa.int64())]), mode="ignore")
            archives = dataclasses.replace(archives, specs=other)
        frames = archives.frames(session, self.cluster.where)
        relations = self.cluster.relations(session, self.known, frames, self.shared)
        with self.shared.lock:
            try:
                frame = analysed(session, relations, Statement(text, 1, 1, is_ended=True))
                return frame, relations.made
            finally:
                relations.end()

    def is_readable(self, *names: str) -> bool:
        """Whether another session can read names."""
        try:
            return all(self.spark.newSession().table(name).count() >= 0 for name in names)
        except PySparkException:
            return False

    def archive(self) -> None:
        """Let the table catch up."""
        specs, loaded = self.archives.specs, self.archives.loaded
        assert loaded is not None
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
    conf = {**service_conf("local[2]"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf |= {**connect_conf(), **thrift_conf()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(thrift_server, "_IVY", str(folder))  # as at the first start on a machine
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
    service.create("keyed")
    service.produce(service.keyed, 3)
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
