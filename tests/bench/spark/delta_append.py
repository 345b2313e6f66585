"""Micro-batches added to Delta tables of few and of many files: Delta's own way to add each once, and ours."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.report import Figures, Table, comparison

FILES = (1, 5_000)
QUICK_FILES = (1, 200)
LIMIT_S = 1800
DELTA = "Delta's write options"
OURS = "headwater"


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, Figures]]:
    """Milliseconds of an append of 1,000 rows, by the files that the table had."""
    command = [*drivers.PYTHON, "tests.bench.spark.delta_append_client", str(folder)]
    command += [str(number) for number in (QUICK_FILES if quick else FILES)]
    out = drivers.run(command, LIMIT_S)
    measured: dict[str, Figures] = json.loads(out.splitlines()[-1])
    return [comparison(title, figures, DELTA, OURS) for title, figures in measured.items()], measured
