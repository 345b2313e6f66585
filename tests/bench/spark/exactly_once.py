"""The exactly-once topic sink beside Spark's own sink, which is at-least-once: the same rows, one Spark, in turn.

The measuring itself is `exactly_once_client`, a Spark driver of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import brokers
from tests.bench.report import Figures, Table, comparison
from tests.bench.spark import spark_connectors

ROWS = 3_000_000
QUICK_ROWS = 300_000
THEIRS = "spark-sql-kafka, at least once"
OURS = "headwater, exactly once"


def measure(folder: Path, quick: bool) -> tuple[list[Table], Figures]:
    """Rows per second of a micro-batch's write, into Apache Kafka and into Headwater."""
    rows, rounds = (QUICK_ROWS, 2) if quick else (ROWS, 5)
    jar_files = ",".join(str(path) for path in sorted(spark_connectors.jars().glob("*.jar")))
    figures: Figures = {}
    for name in (brokers.KAFKA, brokers.HEADWATER):
        with brokers.one(name, folder / "exactly-once") as broker:
            command = [*drivers.PYTHON, "tests.bench.spark.exactly_once_client", broker.bootstrap, jar_files]
            out = drivers.run([*command, "--rows", str(rows), "--rounds", str(rounds)])
        measured: dict[str, list[float]] = json.loads(out.splitlines()[-1])
        figures[f"into {name}, rows/s"] = {THEIRS: measured["kafka"], OURS: measured["exactly once"]}
    title = (
        f"Spark, local[2]: {rows:,} kept rows of about 200 bytes with keys to a topic of 6 partitions, {rounds} rounds "
        "in turn"
    )
    return [comparison(title, figures, THEIRS, OURS)], figures
