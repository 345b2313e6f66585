"""`headwater load`: beside spark-sql-kafka with the same writer, into HDFS, and of topics that hardly have records.

The comparison is measured by `topic_loads_client`, a Spark driver of its own; the others are whole commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.cli.demo.files import conf_file
from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison, listing
from tests.bench.spark import spark_connectors
from tests.bench.spark.spark_connectors import CONNECTOR, OURS
from tests.hdfs import HdfsProcesses

ROWS, QUICK_ROWS = 3_000_000, 200_000
#: Copies of the 336,776 flights of 2013: for the comparison, and for HDFS.
COPIES, QUICK_COPIES = 6, 1
MANY_COPIES = 30
LIMIT_S = 3600
QUIET_TOPICS = 50
QUIET_RECORDS = 100
PARTITIONS = 6


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, object]]:
    """Rows a second of whole loads, and seconds of whole commands."""
    jars = ",".join(str(path) for path in sorted(spark_connectors.jars().glob("*.jar")))
    rounds = 1 if quick else 3
    child, port = headwater_processes.start_broker(folder / "broker")
    bootstrap = f"127.0.0.1:{port}"
    try:
        sizes = ["--rows", str(QUICK_ROWS if quick else ROWS), "--copies", str(QUICK_COPIES if quick else COPIES)]
        sizes += ["--many-copies", str(QUICK_COPIES if quick else MANY_COPIES), "--rounds", str(rounds)]
        command = [*drivers.PYTHON, "tests.bench.spark.topic_loads_client", bootstrap, jars, str(folder)]
        out = drivers.run([*command, *sizes], LIMIT_S)
        compared: dict[str, dict[str, list[float]]] = json.loads(out.splitlines()[-1])
        seconds = _commands(folder, bootstrap, rounds)
    finally:
        child.stop()
    figures: Figures = {name: {CONNECTOR: one["kafka"], OURS: one["headwater"]} for name, one in compared.items()}
    title = f"Loads, local[2], 6 partitions, {rounds} rounds in turn: whole loads, manifests and checksums included"
    tables = [comparison(title, figures, CONNECTOR, OURS), listing("Whole commands `headwater load`", seconds)]
    return tables, {"compared": figures, "commands": seconds}


def _commands(folder: Path, bootstrap: str, rounds: int) -> dict[str, list[float]]:
    """Seconds from a command's start to its end."""
    topics = [f"quiet-{number:02}" for number in range(QUIET_TOPICS)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        made.result(60)
    figures: dict[str, list[float]] = {}
    flights = figures["the topic of many flights to Parquet on HDFS, s"] = []
    one = figures["an hour of a quiet topic, s"] = []
    many = figures[f"an hour of {QUIET_TOPICS} quiet topics, s"] = []
    schema = Path(conf_file("pipelines", "flights.yaml")).parent / "schemas" / "flight.json"
    hdfs = HdfsProcesses(folder / "hdfs")
    try:
        for number in range(rounds):
            _produce(bootstrap, topics)
            one.append(_load(bootstrap, {}, topics[0], "--to", str(folder / "lake" / topics[0])))
            many.append(_load(bootstrap, {}, "--topics", "quiet-.*", "--to", str(folder / "all" / "{topic}")))
            environment = {"HADOOP_CONF_DIR": str(hdfs.conf)}
            values = ["--value", "json", "--schema", str(schema)]
            to = ["--to", f"{hdfs.url}/lake/{number}", "--format", "parquet"]
            flights.append(_load(bootstrap, environment, "flights", *values, *to))
    finally:
        hdfs.stop()
    return figures


def _produce(bootstrap: str, topics: list[str]) -> None:
    """What comes within an hour."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in topics:
        for number in range(QUIET_RECORDS):
            producer.produce(topic, key=str(number), value=f"record {number}")
    if producer.flush(60):
        raise Failed("records of the quiet topics were not acknowledged")


def _load(bootstrap: str, environment: Mapping[str, str], *arguments: str) -> float:
    command = [sys.executable, "-m", "headwater", "load", *arguments, "--bootstrap-servers", bootstrap]
    started_s = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    seconds = time.perf_counter() - started_s
    if done.returncode:
        raise Failed(f"headwater load {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds
