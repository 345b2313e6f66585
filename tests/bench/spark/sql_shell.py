"""How long a statement of the SQL shell takes to its first row; the measuring itself is `sql_shell_client`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.peers import headwater_processes
from tests.bench.report import Table, listing

RECORDS = 10_000_000
QUICK_RECORDS = 500_000
LIMIT_S = 1800


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, list[float]]]:
    """Seconds to the first row, in one session, of statements over one topic."""
    records = QUICK_RECORDS if quick else RECORDS
    runs = 2 if quick else 9
    child, port = headwater_processes.start_broker(folder / "sql-broker")
    try:
        command = [*drivers.PYTHON, "tests.bench.spark.sql_shell_client", f"127.0.0.1:{port}", str(records), str(runs)]
        out = drivers.run(command, LIMIT_S)
    finally:
        child.stop()
    figures: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    title = (
        f"The SQL shell, local[2]: a topic of {records:,} records of 200 bytes, 6 partitions, {runs} statements a row"
    )
    return [listing(title, figures)], figures
