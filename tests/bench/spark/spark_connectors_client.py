"""Reads the same topics through two Spark connectors in turn; prints the figures as JSON in its last line."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from headwater.pipelines.datasource import TASK_RECORDS, TASK_RECORDS_OPTION
from headwater.pipelines.definition.sources.topic import MAX_OFFSETS_PER_TRIGGER
from headwater.pipelines.spark.session import CHECKPOINT_FILES, CHECKPOINT_FILES_CONF, settings
from tests.bench.spark import spark_read

FORMATS = ("kafka", "headwater")
# Formats with and without the way of writing checkpoint files that pipelines set.
STREAMS = {"kafka": ("kafka", False), "kafka, our checkpoint files": ("kafka", True), "headwater": ("headwater", True)}
CORES = 2
# Offsets a micro-batch: where what it costs to plan one matters most, where the records do, and a pipeline's at most.
TRIGGERS = (10_000, 100_000, MAX_OFFSETS_PER_TRIGGER)
# The first ones of a query compile code and start workers.
WARM_BATCHES = 5
READ = "batch read, rows/s"
TO_DELTA = "topic to Delta table, rows/s"
# What Delta needs of a session.
DELTA_CONF = ("spark.jars.packages", "spark.sql.extensions", "spark.sql.catalog.spark_catalog")


def to_delta_rate(frame: Any, path: Path) -> tuple[int, float]:
    """(rows, rows a second) of writing a topic, as it is, to a new Delta table."""
    started_s = time.perf_counter()
    frame.select("key", "value", "partition", "offset", "timestamp").write.format("delta").save(str(path))
    seconds = time.perf_counter() - started_s
    rows = int(frame.sparkSession.read.format("delta").load(str(path)).count())
    shutil.rmtree(path)
    return rows, rows / seconds


def micro_batches_ms(
    spark: Any, spark_format: str, bootstrap: str, topic: str, limit: int, checkpoint: Path
) -> list[float]:
    """How long each micro-batch of an available-now run took."""
    reader = (
        spark.readStream.format(spark_format)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", limit)
    )
    if spark_format == "headwater":
        reader = reader.option(TASK_RECORDS_OPTION, TASK_RECORDS)  # as pipelines do
    query = (
        reader.load()
        .select("key", "value")
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]]
    return [float(one["durationMs"]["triggerExecution"]) for one in done[WARM_BATCHES:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("jars")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    conf = {name: value for name, value in settings().items() if name in DELTA_CONF}
    conf |= {"spark.jars": arguments.jars, "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    spark = spark_read.session(CORES, conf)
    figures: dict[str, dict[str, list[float]]] = {}

    topic = "read"
    spark_read.ensure_topic(spark, arguments.bootstrap, topic, arguments.records, "none")
    for figure in (READ, TO_DELTA):
        rates: dict[str, list[float]] = {one: [] for one in FORMATS}
        for run in range(arguments.runs + 1):  # the first warms JVM, workers and numba's cache, and is not counted
            for one in FORMATS if run % 2 else FORMATS[::-1]:
                frame = spark_read.topic_frame(spark, arguments.bootstrap, topic, one)
                table = arguments.folder / f"delta-{one}-{run}"
                records, rate = spark_read.read_rate(frame) if figure == READ else to_delta_rate(frame, table)
                assert records == arguments.records, f"{one} read {records} records"
                if run:
                    rates[one].append(rate)
        figures[figure] = rates

    for limit in TRIGGERS:
        topic = f"micro-{limit}"
        spark_read.ensure_topic(spark, arguments.bootstrap, topic, limit * arguments.batches, "none")
        times: dict[str, list[float]] = {one: [] for one in STREAMS}
        for run in range(2):
            for one in STREAMS if run % 2 else reversed(STREAMS):
                spark_format, has_our_files = STREAMS[one]
                if has_our_files:
                    spark.conf.set(CHECKPOINT_FILES_CONF, CHECKPOINT_FILES)
                else:
                    spark.conf.unset(CHECKPOINT_FILES_CONF)
                checkpoint = arguments.folder / f"{topic}-{one}-{run}"
                times[one] += micro_batches_ms(spark, spark_format, arguments.bootstrap, topic, limit, checkpoint)
        of_each = f"{limit:,} records, ms"
        figures[f"micro-batch of {of_each}"] = {one: times[one] for one in FORMATS}
        alike = {"kafka": times["kafka, our checkpoint files"], "headwater": times["headwater"]}
        figures[f"the same, both with our checkpoint files, {of_each}"] = alike
    spark.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
