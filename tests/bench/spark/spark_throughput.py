"""How fast Spark reads a topic in batch, from a broker of its own; the measuring itself is `spark_read`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.report import Table, listing

RECORDS = 5_000_000
QUICK_RECORDS = 500_000


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, list[float]]]:
    """Rows per second after warm-up, over several reads of one topic."""
    records = QUICK_RECORDS if quick else RECORDS
    runs = 2 if quick else 5
    child, port = headwater_processes.start_broker(folder / "spark-broker")
    try:
        script = Path(__file__).with_name("spark_read.py")
        sizes = ["--records", str(records), "--runs", str(runs)]
        out = drivers.run([sys.executable, str(script), "--bootstrap", f"127.0.0.1:{port}", *sizes])
    finally:
        child.stop()
    result = json.loads(out.splitlines()[-1])
    figures = {"batch read of a topic, rows/s": [float(rate) for rate in result["rows_per_s"]]}
    title = (
        f"Spark, local[{result['cores']}]: {records:,} records of {result['value_bytes']} bytes, "
        f"{result['partitions']} partitions, {runs} reads after one to warm up"
    )
    return [listing(title, figures)], figures
