"""Changes that `plan` calls safe, tried: deployed, changed, gone on with, and compared with a run from the start.

`make plan-fuzz` tries 300 (PAIRS=300, SEED=...).
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fuzzed_stages import Fuzzed, classify, fuzzed_pair, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow

PAIRS = int(os.environ.get("PLAN_FUZZ_PAIRS") or 8)
SEED = int(os.environ.get("PLAN_FUZZ_SEED") or 20261124)
ROWS = 40
SAID_EACH = 25
START_S = 300
PAIR_S = 20
"""A pair takes about a second; the machine may be busy."""
CONF = {
    "spark.sql.shuffle.partitions": "1",
    # Micro-batches without rows only drop what is too old; here nothing is.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Compiling takes longer than the rows do, and the state's layout is that of the plan.
    "spark.sql.codegen.wholeStage": "false",
}


def safe_pairs(count: int, seed: int) -> list[tuple[Fuzzed, Fuzzed]]:
    """Pairs of distinct shapes that are called safe and are two queries."""
    chance = random.Random(seed)
    found: dict[tuple[str, str], tuple[Fuzzed, Fuzzed]] = {}
    while len(found) < count:
        before, now = fuzzed_pair(chance)
        shapes = (shape_of(before), shape_of(now))
        if before.steps() != now.steps() and shapes not in found and classify(before, now):
            found[shapes] = (before, now)
    return list(found.values())


@dataclass(frozen=True)
class Run:
    """A query of a stage that ends by itself, and the rows of each of its micro-batches, by their numbers."""

    query: StreamingQuery
    seen: list[tuple[int, list[str]]]

    def rows(self) -> list[tuple[int, list[str]]]:
        """What it gave out, once it has ended."""
        self.query.awaitTermination()
        return [each for each in self.seen if each[1]]


def start(
    spark: SparkSession, folder: Path, steps: list[str], checkpoint: Path, files: str = "*", delay: str = "1 second"
) -> Run:
    """Go on with those files of the folder that match, a micro-batch for each."""
    seen: list[tuple[int, list[str]]] = []
    source = spark.readStream.schema("k INT, l INT, a INT, b INT, at TIMESTAMP").option("maxFilesPerTrigger", 1)
    rows = source.option("pathGlobFilter", files).json(str(folder)).withWatermark("at", delay)
    for text in steps:
        rows.createOrReplaceTempView("input")
        rows = spark.sql(text)

    def take(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(str(tuple(row)) for row in frame.collect())))

    writer = rows.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    return Run(writer.trigger(availableNow=True).start(), seen)


def write(folder: Path, number: int) -> None:
    """A file of rows, newer than the one before it."""
    chance = random.Random(number)
    rows = [
        {
            "k": chance.randrange(4), "l": chance.randrange(3), "a": chance.randrange(90),
            "b": chance.choice((None, 1, 4, 6, 9)), "at": f"2026-01-01T00:00:{number * 2:02}Z",
        }
        for _ in range(ROWS)
    ]  # fmt: skip
    path = folder / f"{number}.json"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


@pytest.mark.timeout(START_S + PAIRS * PAIR_S)
def test_going_on_after_a_safe_change_is_a_run_from_the_start(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark = delta_spark.newSession()  # its views and settings are its own
    for name, value in CONF.items():
        spark.conf.set(name, value)
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, 0)
    write(folder, 1)
    wrong = []
    for number, (before, now) in enumerate(safe_pairs(PAIRS, SEED), 1):
        place = tmp_path / str(number)
        # Side by side: much of the time of a micro-batch nothing is computed.
        first = start(spark, folder, before.steps(), place / "changed", "0.json")
        from_the_start = start(spark, folder, now.steps(), place / "whole")
        first.rows()
        after = start(spark, folder, now.steps(), place / "changed").rows()
        whole = [each for each in from_the_start.rows() if each[0] > 0]
        if after != whole:
            wrong.append((before.steps(), now.steps(), after, whole))
        if number % SAID_EACH == 0:
            print(f"{number} of {PAIRS} pairs, {len(wrong)} wrong", flush=True)
    assert not wrong, wrong[:2]


@pytest.mark.parametrize(("before", "now"), [("1 second", "1 minute"), ("1 minute", "1 second")])
def test_going_on_after_another_delay_is_no_run_from_the_start(
    delta_spark: SparkSession, tmp_path: Path, before: str, now: str
) -> None:
    """Why such a change needs a reset: a row that comes late counts by the watermark that the checkpoint has."""
    spark = delta_spark.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    steps = ["SELECT window(at, '2 seconds').start AS since, count(*) AS n FROM input GROUP BY window(at, '2 seconds')"]
    folder = tmp_path / "in"
    folder.mkdir()
    write_at(folder, 0, "00:00:10", "00:00:40")
    write_at(folder, 1, "00:00:45")  # what is late in a micro-batch is told by the watermark of the one before
    start(spark, folder, steps, tmp_path / "changed", delay=before).rows()
    write_at(folder, 2, "00:00:10")
    after = start(spark, folder, steps, tmp_path / "changed", delay=now).rows()
    whole = start(spark, folder, steps, tmp_path / "whole", delay=now).rows()

    def has_late(batches: list[tuple[int, list[str]]]) -> bool:
        return any("0, 10)" in row and row.endswith(", 2)") for _, rows in batches for row in rows)

    assert (has_late(after), has_late(whole)) == (before == "1 minute", now == "1 minute"), (after, whole)


def write_at(folder: Path, number: int, *times: str) -> None:
    """A file with a row of each time, newer than the one before it."""
    path = folder / f"{number}.json"
    path.write_text("\n".join(json.dumps({"k": 1, "at": f"2026-01-01T{at}Z"}) for at in times))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
