"""The Spark driver of the part `load`: whole topics into files and tables, by both connectors in turn.

    python -m tests.bench.spark.topic_loads_client BOOTSTRAP JARS FOLDER --rows N --copies N --many-copies N --rounds N

Prints one line of JSON: rows a second of raw records of 200 bytes, and of flights as JSON. Fills the topic `flights`
for the commands that are measured next.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f

from headwater.cli.demo import flights
from headwater.cli.demo.files import conf_file
from headwater.notebook import load
from headwater.pipelines.spark.session import close_session, open_session
from tests.bench.spark import flights_client, spark_read

RAW, JSON, MANY = "raw", "json", "flights"
CONF = {"spark.master": "local[2]", "spark.driver.memory": "3g"}
FORMATS = ("parquet", "delta")
ORIGIN = {"partition": "_partition", "offset": "_offset", "timestamp": "_timestamp", "key": "_key"}


def by_kafka(
    spark: Any, bootstrap: str, topic: str, schema: Any, target_format: str, to: str, names: Sequence[str] = ("*",)
) -> None:
    """What a user writes with Spark's own connector; `names` are the columns of raw records."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()
    if schema is None:
        frame = frame.select(*names)
    else:
        value = f.from_json(f.col("value").cast("string"), schema).alias("value")
        frame = frame.select(*[f.col(name).alias(ours) for name, ours in ORIGIN.items()], value)
        frame = frame.select(*ORIGIN.values(), "value.*")
    frame.write.format(target_format).save(to)


def by_headwater(spark: Any, bootstrap: str, topic: str, schema: str | None, target_format: str, to: str) -> None:
    """`headwater.load`."""
    value = "json" if schema else None
    load(
        spark,
        topic,
        to=to,
        format=target_format,
        start="earliest",
        value=value,
        schema=schema,
        bootstrap_servers=bootstrap,
    )


def compare(
    spark: Any, bootstrap: str, folder: Path, topic: str, rows: int, schema: str | None, target_format: str, rounds: int
) -> dict[str, list[float]]:
    """Rows a second of both, in turn; the first load of each warms JVM and workers, and is not counted."""

    def seconds(way: str, columns: Any) -> float:
        to = folder / f"{topic}-{target_format}-{way}"
        started_s = time.perf_counter()
        if way == "headwater":
            by_headwater(spark, bootstrap, topic, schema, target_format, str(to))
        else:
            by_kafka(spark, bootstrap, topic, columns, target_format, str(to))
        taken_s = time.perf_counter() - started_s
        found = spark.read.format(target_format).load(str(to))
        assert found.count() == rows, f"{way} wrote {found.count()} rows"
        schemas[way] = found.drop(*ORIGIN.values(), "_error", "_value").schema
        shutil.rmtree(to)
        return taken_s

    schemas: dict[str, Any] = {}
    seconds("headwater", None)
    columns = schemas["headwater"] if schema else None
    seconds("kafka", columns)
    rates: dict[str, list[float]] = {"kafka": [], "headwater": []}
    for number in range(rounds):
        for way in ("headwater", "kafka") if number % 2 else ("kafka", "headwater"):
            rates[way].append(rows / seconds(way, columns))
    assert schema is None or schemas["kafka"] == schemas["headwater"]
    return rates


@dataclass(frozen=True, slots=True)
class Filled:
    """A session, and topics that hold what is measured.

    Attributes:
        schema: The path of the flights' schema.
        topics: Those to compare, with their rows and their schema.
        many: The rows of the topic `flights`.
        hdfs: The URL of an HDFS and its configuration, where the driver of the measurement is given one.
    """

    spark: Any
    bootstrap: str
    folder: Path
    rounds: int
    schema: str
    topics: list[tuple[str, int, str | None]]
    many: int
    hdfs: tuple[str, str]


def filled_topics(name: str, description: str | None) -> Filled:
    """Start Spark and fill the topics, as the command line says."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("bootstrap")
    parser.add_argument("jars")
    parser.add_argument("folder", type=Path)
    for name in ("--rows", "--copies", "--many-copies", "--rounds"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--hdfs", default="")
    parser.add_argument("--hdfs-conf", default="")
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    for made in admin.create_topics([NewTopic(topic, flights_client.PARTITIONS, 1) for topic in (JSON, MANY)]).values():
        made.result(30)
    spark = open_session(name, str(given.folder / "spark.log"), CONF | {"spark.jars": given.jars})
    spark_read.ensure_topic(spark, given.bootstrap, RAW, given.rows, "none")
    for topic, copies in ((JSON, given.copies), (MANY, given.many_copies)):
        flights_client.produce(spark, given.bootstrap, given.folder, copies, topic)
    schema = str(Path(conf_file("pipelines", "flights.yaml")).parent / "schemas" / "flight.json")
    topics: list[tuple[str, int, str | None]] = [
        (RAW, given.rows, None),
        (JSON, flights.FLIGHTS * given.copies, schema),
    ]
    many = flights.FLIGHTS * given.many_copies
    return Filled(
        spark, given.bootstrap, given.folder, given.rounds, schema, topics, many, (given.hdfs, given.hdfs_conf)
    )


def main() -> None:
    given = filled_topics("load", __doc__)
    figures = {
        f"{topic} to {target_format}, rows/s": compare(
            given.spark, given.bootstrap, given.folder, topic, rows, schema, target_format, given.rounds
        )
        for topic, rows, schema in given.topics
        for target_format in FORMATS
    }
    close_session()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
