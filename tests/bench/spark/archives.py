"""Archives beside spark-sql-kafka with Delta: whole topics into tables, on HDFS, too; ten million flights caught up.

Measured by `archives_client`, a Spark driver of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.report import Figures, Table, comparison, listing
from tests.bench.spark import spark_connectors
from tests.bench.spark.spark_connectors import CONNECTOR, OURS
from tests.hdfs import HdfsProcesses

ROWS, QUICK_ROWS = 3_000_000, 200_000
#: Copies of the 336,776 flights of 2013.
COPIES, QUICK_COPIES = 6, 1
MANY_COPIES = 30
LIMIT_S = 3600


def measure(folder: Path, quick: bool, rounds: int) -> tuple[list[Table], dict[str, object]]:
    """Rows a second of whole rounds: plan, job, commit; the tables are compared row by row."""
    jars = ",".join(str(path) for path in sorted(spark_connectors.jars().glob("*.jar")))
    child, port = headwater_processes.start_broker(folder / "broker")
    hdfs = HdfsProcesses(folder / "hdfs")
    try:
        sizes = ["--rows", str(QUICK_ROWS if quick else ROWS), "--copies", str(QUICK_COPIES if quick else COPIES)]
        sizes += ["--many-copies", str(QUICK_COPIES if quick else MANY_COPIES), "--rounds", str(rounds)]
        sizes += ["--hdfs", hdfs.url, "--hdfs-conf", str(hdfs.conf)]
        command = [*drivers.PYTHON, "tests.bench.spark.archives_client", f"127.0.0.1:{port}", jars, str(folder)]
        out = drivers.run([*command, *sizes], LIMIT_S)
        measured: dict[str, dict[str, dict[str, list[float]]]] = json.loads(out.splitlines()[-1])
    finally:
        hdfs.stop()
        child.stop()
    compared = measured["compared"]
    figures: Figures = {name: {CONNECTOR: one["kafka"], OURS: one["headwater"]} for name, one in compared.items()}
    title = f"Archives, local[2], 6 partitions, {rounds} rounds in turn: topics to Delta, rows/s"
    seconds = {name: one["headwater"] for name, one in measured["seconds"].items()}
    tables = [comparison(title, figures, CONNECTOR, OURS), listing("Archives alone", seconds)]
    return tables, {"compared": compared, "seconds": seconds}
