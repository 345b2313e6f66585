"""Loads on a real broker and a real Spark with Delta, in this process: one session for all of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.pipelines.file_systems.file_system import FileSystem
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.loads.options import LoadOptions, requests_of
from headwater.pipelines.loads.request import LoadOutcome
from headwater.pipelines.loads.running import LoadRun
from headwater.pipelines.spark.session import close_session, open_session
from tests.conftest import BrokerProcess
from tests.end_to_end.delta_log import delta_rows
from tests.s3 import CLIENT_ENVIRONMENT, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n BIGINT, carrier STRING, at TIMESTAMP"
AVSC = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "n", "type": ["null", "long"], "default": None},
        {"name": "carrier", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] as the product opens it. A JVM that other tests have left has no Delta: it ends first."""
    close_session()
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(log.parent)}
    conf["spark.jars"] = ",".join(map(str, spark_jars()))
    conf["spark.sql.adaptive.enabled"] = "false"  # it plans each small query twice
    conf["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = "2"  # tasks of VACUUM
    conf |= {f"spark.executorEnv.{name}": value for name, value in CLIENT_ENVIRONMENT.items()}
    yield open_session("tests", str(log), conf)
    close_session()


class Dock:
    """A topic, and a folder for targets."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.files: Callable[[str], FileSystem] = file_system
        self.topic = f"flights-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        (folder / "flight.json").write_text(
            json.dumps(
                {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "carrier": {"type": "string"}},
                    "required": ["n"],
                }
            )
        )

    def create(self, partitions: int = 2, name: str = "") -> None:
        [future] = self.admin.create_topics([NewTopic(name or self.topic, partitions)]).values()
        future.result(60)

    def delete(self) -> None:
        [future] = self.admin.delete_topics([self.topic]).values()
        future.result(60)

    def produce(self, values: Sequence[Any], *, timestamp_ms: int = 0, partition: int | None = None) -> None:
        """Write values, whose number is their key: the number decides the partition unless one is given."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        for number, value in enumerate(values):
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            where = number % 2 if partition is None else partition
            producer.produce(self.topic, data, str(number).encode(), partition=where, timestamp=timestamp_ms + number)
        assert producer.flush(60) == 0

    def delete_records(self, offsets: dict[int, int]) -> None:
        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        for future in self.admin.delete_records(wanted).values():
            future.result(60)

    def run(self, to: str, *topics: str, json_values: bool = True, **options: Any) -> LoadRun:
        """A run of the loads that a command line asks for."""
        given: dict[str, Any] = {"to": to, "format": "parquet"}
        if json_values:
            given |= {"value": "json", "schema": str(self.folder / "flight.json")}
        requests, loaded = requests_of(LoadOptions(topics or (self.topic,), **(given | options)), ())
        return LoadRun(requests, loaded, self.servers, self.files)

    def load(self, to: str, *topics: str, **options: Any) -> LoadOutcome:
        """One load's outcome."""
        [outcome] = self.run(to, *topics, **options).run(lambda: self.spark)
        return outcome

    def read(self, to: str, form: str = "parquet") -> DataFrame:
        return self.spark.read.format(form).load(to)

    def offsets(self, to: str, form: str = "parquet") -> list[tuple[int, int]]:
        """Partition and offset of every row; of a local folder, without Spark."""
        if "://" in to:
            rows = self.read(to, form).select("_partition", "_offset").collect()
            return sorted((row[0], row[1]) for row in rows)
        if form == "delta":
            found = delta_rows(Path(to))
        else:
            found = [row for path in visible(Path(to)) for row in pq.ParquetFile(path).read().to_pylist()]
        return sorted((row["_partition"], row["_offset"]) for row in found)


def visible(folder: Path) -> list[Path]:
    """The files that Spark and Hive see."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]


@pytest.fixture
def dock(spark: SparkSession, headwater_broker: BrokerProcess, tmp_path: Path) -> Dock:
    return Dock(spark, headwater_broker.address, tmp_path)


MakeDock = Callable[[], Dock]
