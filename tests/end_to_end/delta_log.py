"""A Delta table's rows as its files have them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table by its log and its Parquet files, without Spark: it cannot hide a fault of its own."""
    import pyarrow.parquet as pq

    files: dict[str, None] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    rows: list[dict[str, Any]] = []
    for path in files:
        rows += pq.ParquetFile(os.path.join(table, path)).read().to_pylist()
    return rows
