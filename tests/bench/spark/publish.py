"""`headwater publish`: rows of Parquet files into a topic, exactly once.

The measuring itself is `publish_client`, a Spark driver of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import brokers
from tests.bench.report import Table, listing

ROWS = 3_000_000
QUICK_ROWS = 300_000


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, list[float]]]:
    """Rows a second of whole publishes into Headwater."""
    rows, rounds = (QUICK_ROWS, 1) if quick else (ROWS, 5)
    with brokers.one(brokers.HEADWATER, folder / "publish") as broker:
        files = folder / "files"
        files.mkdir()
        command = [*drivers.PYTHON, "tests.bench.spark.publish_client", broker.bootstrap, str(files)]
        out = drivers.run([*command, "--rows", str(rows), "--rounds", str(rounds)])
    measured: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    title = f"Spark, local[2]: {rows:,} rows of Parquet as JSON to a topic of 6 partitions, {rounds} rounds"
    return [listing(title, measured)], measured
