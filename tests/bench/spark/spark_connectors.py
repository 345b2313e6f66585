"""`format("headwater")` beside Spark's own `format("kafka")`: the same topics, one broker, one Spark, in turn.

The measuring itself is `spark_connectors_client`, a Spark driver of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison
from tests.jars import FetchError, fetched

VERSION = "4.2.0"
# The connector's 4.2.0 works with the token provider of 4.0.0, which is where its own release is not to be had.
ARTIFACTS = [
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
]
CONNECTOR = "spark-sql-kafka"
OURS = "headwater"
RECORDS = 5_000_000
QUICK_RECORDS = 500_000
# Micro-batches of a query, the first ones included, which are not counted.
BATCHES = 20
QUICK_BATCHES = 7


def jars() -> Path:
    """The folder of the connector's jars, fetched once."""
    try:
        return fetched(f"spark-sql-kafka-{VERSION}", ARTIFACTS, transitive=False)
    except FetchError as error:
        raise Failed(str(error)) from None


def measure(folder: Path, quick: bool) -> tuple[list[Table], Figures]:
    """Rows per second of a batch read, and how long a micro-batch takes."""
    records = QUICK_RECORDS if quick else RECORDS
    runs = 2 if quick else 5
    jar_files = ",".join(str(path) for path in sorted(jars().glob("*.jar")))
    child, port = headwater_processes.start_broker(folder / "spark-kafka-broker")
    try:
        command = [*drivers.PYTHON, "tests.bench.spark.spark_connectors_client", f"127.0.0.1:{port}", jar_files]
        batches = QUICK_BATCHES if quick else BATCHES
        sizes = ["--records", str(records), "--runs", str(runs), "--batches", str(batches)]
        sizes += ["--folder", str(folder / "checkpoints")]
        out = drivers.run([*command, *sizes])
    finally:
        child.stop()
    measured: dict[str, dict[str, list[float]]] = json.loads(out.splitlines()[-1])
    figures = {name: {CONNECTOR: one["kafka"], OURS: one["headwater"]} for name, one in measured.items()}
    title = f"Spark {VERSION}, local[2], {records:,} records of 200 bytes, 6 partitions, {runs} rounds in turn"
    return [comparison(title, figures, CONNECTOR, OURS)], figures
