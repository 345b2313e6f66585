"""The stages of conf/pipelines/flights.yaml, one at a time, on ten million flights.

The flights are those of 2013, each thirty times with another number and delay, in the same year: the
same carriers, routes and hours, thirty times as many. The measuring itself is `flights_client`, a Spark driver.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.report import Table, table

COPIES = 30
QUICK_COPIES = 1
LIMIT_S = 3600


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, object]]:
    """Events per second of each stage."""
    child, port = headwater_processes.start_broker(folder / "flights-broker")
    try:
        command = [*drivers.PYTHON, "tests.bench.spark.flights_client", f"127.0.0.1:{port}"]
        copies = QUICK_COPIES if quick else COPIES
        out = drivers.run([*command, "--copies", str(copies), "--folder", str(folder)], LIMIT_S)
    finally:
        child.stop()
    measured = json.loads(out.splitlines()[-1])
    rows = []
    for stage, figures in measured["stages"].items():
        rows.append(
            [
                stage,
                f"{figures['rows']:,}",
                f"{figures['written']:,}",
                f"{figures['batches']:,}",
                f"{figures['seconds']:.1f}",
                f"{figures['rows'] / figures['seconds']:,.0f}",
                f"{figures['cpu_seconds'] / figures['rows'] * 1e6:.1f}",
                f"{figures['late']:,}",
            ]
        )
    head = ["stage", "events", "rows written", "micro-batches", "s", "events/s", "CPU s/million", "late"]
    title = f"Spark, local[{measured['cores']}]: {measured['flights']:,} flights, the stages of flights.yaml in turn"
    return [f"{title}\n\n{table(head, rows)}"], measured
