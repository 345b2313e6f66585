"""The unified table: statements over a long history with a tail, beside the topic alone and beside the table alone.

Measured by `unified_client`, a Spark driver of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from headwater.cli.demo import flights
from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.report import Figures, Table, comparison, listing

RECORDS, QUICK_RECORDS = 50_000_000, 600_000
#: Of the history's records; those of the tail.
TAIL_SHARE = 50
LIMIT_S = 3 * 3600
ALONE, UNIFIED, LAKE = "the topic alone", "unified", "the table alone"


def measure(folder: Path, records: int, rounds: int) -> tuple[list[Table], dict[str, object]]:
    """Seconds of statements; `records` is about how many are in the table. The results of both ways are compared."""
    copies = -(-records // flights.FLIGHTS)
    tail = -(-copies // TAIL_SHARE)
    child, port = headwater_processes.start_broker(folder / "unified-broker")
    try:
        command = [*drivers.PYTHON, "tests.bench.spark.unified_client", f"127.0.0.1:{port}", str(folder)]
        command += ["--copies", str(copies), "--tail-copies", str(tail), "--rounds", str(rounds)]
        out = drivers.run(command, LIMIT_S)
    finally:
        child.stop()
    measured: dict[str, dict[str, dict[str, list[float]]]] = json.loads(out.splitlines()[-1])
    seconds: Figures = {
        name: {UNIFIED: one["unified"], ALONE: one["other"]} for name, one in measured["tail, s"].items()
    }
    cost: Figures = {
        name: {LAKE: one["other"], UNIFIED: one["unified"]} for name, one in measured["no tail, ms"].items()
    }
    more = {
        name: [ours - other for other, ours in zip(one[LAKE], one[UNIFIED], strict=True)] for name, one in cost.items()
    }
    size = f"local[2], {copies * flights.FLIGHTS:,} flights in the table"
    tables = [
        comparison(f"{size}, {tail * flights.FLIGHTS:,} in the tail, {rounds} rounds in turn", seconds, UNIFIED, ALONE),
        comparison(f"{size}, no tail, in turn", cost, LAKE, UNIFIED),
        listing("More than over the table alone, in the same round", more),
        listing("How long it took to make them", measured["made"]["s"]),
    ]
    return tables, {"seconds": seconds, "cost": cost, "made": measured["made"]["s"]}
