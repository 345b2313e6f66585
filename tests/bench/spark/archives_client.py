"""The Spark driver of the part `archive`: whole topics into Delta tables, by both connectors in turn.

    python -m tests.bench.spark.archives_client BOOTSTRAP JARS FOLDER --rows N --copies N --many-copies N --rounds N
        --hdfs URL --hdfs-conf DIR

Prints one line of JSON: rows a second of raw records of 200 bytes, and of flights as JSON with their place; those of
flights into HDFS, by both ways of writing; and the seconds in which an archive catches up with many flights.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headwater.pipelines.archive import archive_round
from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.arrow_rows import ArrowRows, ValueKind, arrow_rows
from headwater.pipelines.archive.running import ArchiveRun
from headwater.pipelines.definition import Loaded
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.spark.session import close_session
from tests.bench.spark.topic_loads_client import JSON, MANY, ORIGIN, by_kafka, filled_topics

#: Of a raw record, in both tables.
RAW_COLUMNS = (*ORIGIN, "value")


def declared_archive(
    topic: str, schema: str | None, to: Path | str, **more: str
) -> tuple[list[TopicArchiveSpec], Loaded]:
    """The archive of a topic of JSON with this schema and `more` fields, or of raw values, in a table of its own."""
    declared = {topic: {"value": "json", "schema": schema, **more}} if schema else {}
    archive = {"root": "/", "headers": False, "topics": {topic: {"table": str(to)}}}
    text = json.dumps({"topics": declared, "archive": archive})
    return parse_archive(text, "bench", {}, "/", {}, lambda path: Path(path).read_text())


def by_archive(spark: Any, bootstrap: str, topic: str, schema: str | None, to: Path | str) -> None:
    """`headwater archive run --once` in this session: its lock, plan, rounds and commits."""
    specs, loaded = declared_archive(topic, schema, to)
    failures = ArchiveRun(specs, loaded, bootstrap, file_system).run_once(lambda: spark)
    assert not failures, failures


def require_same(one: Any, other: Any) -> None:
    """Both tables have the same rows, place by place."""
    names = [name for name in one.columns if name not in ("_error", "_value")]
    left, right = (frame.select(*(f"`{name}`" for name in names)) for frame in (one, other))
    content = "xxhash64(" + ", ".join(f"`{name}`" for name in names) + ") AS h"
    place = ["_partition", "_offset"]
    joined = left.selectExpr(*place, content).join(
        right.selectExpr(*place, content.replace("AS h", "AS g")), place, "full"
    )
    assert joined.where("h IS NULL OR g IS NULL OR h != g").isEmpty(), "the tables differ"


def compare(
    spark: Any, bootstrap: str, folder: Path, topic: str, rows: int, schema: str | None, rounds: int
) -> dict[str, list[float]]:
    """Rows a second of both, in turn; the first of each warms JVM and workers, and is not counted."""
    tables = {way: folder / f"{topic}-archive-{way}" for way in ("headwater", "kafka")}
    rates: dict[str, list[float]] = {"kafka": [], "headwater": []}
    columns: Any = None
    for number in range(rounds + 1):
        # Ours first at first: its schema is what the other one reads with.
        for way in ("kafka", "headwater") if number % 2 else ("headwater", "kafka"):
            shutil.rmtree(tables[way], ignore_errors=True)
            started_s = time.perf_counter()
            if way == "headwater":
                by_archive(spark, bootstrap, topic, schema, tables[way])
            else:
                by_kafka(spark, bootstrap, topic, columns, "delta", str(tables[way]), RAW_COLUMNS)
            taken_s = time.perf_counter() - started_s
            found = spark.read.format("delta").load(str(tables[way]))
            assert found.count() == rows, f"{way} wrote {found.count()} rows"
            if number:
                rates[way].append(rows / taken_s)
            elif way == "headwater" and schema:
                columns = found.drop(*ORIGIN.values(), "_error", "_value").schema
    ours, theirs = (spark.read.format("delta").load(str(tables[way])) for way in ("headwater", "kafka"))
    for name, own in ORIGIN.items() if schema is None else ():
        theirs = theirs.withColumnRenamed(name, own)
    require_same(ours, theirs)
    for table in tables.values():
        shutil.rmtree(table)
    return rates


def caught_up(spark: Any, bootstrap: str, folder: Path, schema: str, rows: int, rounds: int) -> list[float]:
    """Seconds in which an archive catches up with many flights."""
    seconds = []
    for _ in range(rounds):
        table = folder / "many"
        started_s = time.perf_counter()
        by_archive(spark, bootstrap, MANY, schema, table)
        seconds.append(time.perf_counter() - started_s)
        assert spark.read.format("delta").load(str(table)).count() == rows
        shutil.rmtree(table)
    return seconds


def on_hdfs(
    spark: Any, bootstrap: str, hdfs: tuple[str, str], schema: str, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Rows a second into tables on HDFS by either way of writing, in turn; the first of each is not counted."""
    url, os.environ["HADOOP_CONF_DIR"] = hdfs  # not before: paths of this machine would be HDFS's for Spark
    rates: dict[str, list[float]] = {"kafka": [], "arrow": [], "frame": []}
    tables = {way: f"{url}/bench/{way}" for way in rates}
    columns: Any = None
    for number in range(rounds + 1):
        for way in ("arrow", "frame", "kafka") if number % 2 == 0 else ("kafka", "frame", "arrow"):
            files = file_system(tables[way])
            files.delete(tables[way])
            started_s = time.perf_counter()
            if way == "arrow":
                by_archive(spark, bootstrap, JSON, schema, tables[way])
            elif way == "frame":
                with patch.object(archive_round, "arrow_rows", left_to_spark):
                    by_archive(spark, bootstrap, JSON, schema, tables[way])
            else:
                by_kafka(spark, bootstrap, JSON, columns, "delta", tables[way], RAW_COLUMNS)
            taken_s = time.perf_counter() - started_s
            found = spark.read.format("delta").load(tables[way])
            assert found.count() == rows, f"{way} wrote {found.count()} rows"
            if number:
                rates[way].append(rows / taken_s)
            elif way == "arrow":
                columns = found.drop(*ORIGIN.values(), "_error", "_value").schema
    one, *others = (spark.read.format("delta").load(table) for table in tables.values())
    for other in others:
        require_same(other, one)
    return rates


def left_to_spark(*given: Any, **more: Any) -> ArrowRows:
    """What `arrow_rows` returns where Delta's writer is needed."""
    return ArrowRows(ValueKind.SPARK, arrow_rows(*given, **more).schema)


def main() -> None:
    given = filled_topics("archive", __doc__)
    compared = {
        f"{topic} to Delta, rows/s": compare(
            given.spark, given.bootstrap, given.folder, topic, rows, schema, given.rounds
        )
        for topic, rows, schema in given.topics
    }
    rows = given.topics[1][1]
    there = on_hdfs(given.spark, given.bootstrap, given.hdfs, given.schema, rows, given.rounds)
    for way, name in (("arrow", "written from Arrow"), ("frame", "written by Delta")):
        compared[f"{JSON} to Delta on HDFS, {name}, rows/s"] = {"kafka": there["kafka"], "headwater": there[way]}
    taken = caught_up(given.spark, given.bootstrap, given.folder, given.schema, given.many, given.rounds)
    close_session()
    print(json.dumps({"compared": compared, "seconds": {f"{given.many:,} flights caught up, s": {"headwater": taken}}}))


if __name__ == "__main__":
    main()
