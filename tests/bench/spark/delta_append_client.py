"""Adds micro-batches to Delta tables, each once, in two ways in turn; prints the figures as JSON in its last line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from headwater.pipelines.sinks.delta.delta_append import append_once
from headwater.pipelines.spark.session import close_session, open_session
from tests.bench.report import Figures
from tests.bench.spark.delta_append import DELTA, OURS

CORES = 2
ROWS = 1_000
# Delta writes a checkpoint of its log with each tenth commit; these have two of each way's.
ROUNDS = 20
WARM_UP = 10


def append_as_delta_does(frame: Any, path: str, batch: int) -> None:
    writer = frame.write.format("delta").mode("append").option("txnAppId", "bench").option("txnVersion", batch)
    writer.save(path)


def append_as_we_do(frame: Any, path: str, batch: int) -> None:
    assert append_once(frame, path, "bench", batch, [], merge_schema=True), "the checksum tells"


def measure(spark: Any, folder: Path, files: int) -> Figures:
    """Both ways on one table each."""
    columns = ["id", "cast(id % 20 AS string) AS name", "id * 2 AS other"]
    frame = spark.range(ROWS).selectExpr(*columns).persist()
    frame.count()
    ways = {DELTA: append_as_delta_does, OURS: append_as_we_do}
    for name, append in ways.items():
        path = str(folder / f"{files}-{name}")
        spark.range(0, files, 1, files).selectExpr(*columns).write.format("delta").save(path)
        append(frame, path, 0)
    figures: Figures = {"an append, ms": {name: [] for name in ways}}
    for batch in range(1, WARM_UP + ROUNDS + 1):
        for name, append in ways.items():
            started_s = time.perf_counter()
            append(frame, str(folder / f"{files}-{name}"), batch)
            if batch > WARM_UP:
                figures["an append, ms"][name].append((time.perf_counter() - started_s) * 1000)
    return figures


def main(folder: Path, files: list[int]) -> None:
    conf = {"spark.master": f"local[{CORES}]", "spark.driver.memory": "4g"}
    spark = open_session("delta-append", str(folder / "spark.log"), conf)
    title = "local[{}]: {:,} rows added to a Delta table of {:,} files, {} rounds in turn"
    measured = {title.format(CORES, ROWS, number, ROUNDS): measure(spark, folder, number) for number in files}
    close_session()
    print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]])
