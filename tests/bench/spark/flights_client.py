"""Runs the stages of the flights pipeline, each by itself; prints the figures as JSON in its last line."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.cli.demo import flights
from headwater.cli.demo.files import conf_file
from headwater.pipelines.engine.runner import Runner, RunOptions
from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
from headwater.pipelines.spark.session import close_session, open_session
from headwater.pipelines.validation.pipeline_file import load
from tests.bench.processes import cpu_seconds

CORES = 2
PARTITIONS = 6
# What somebody sets who has ten million to catch up on, half of them at once, with the memory for it: by default a
# pipeline takes 500,000, and the demo less, to show something on its way.
BATCH = 5_100_000
TOPICS = ("flights", "flights_clean", "delays", "rising", "flights.dead_letters")
CONF = {"spark.master": f"local[{CORES}]", "spark.sql.shuffle.partitions": str(CORES), "spark.driver.memory": "6g"}


def produce(spark: Any, bootstrap: str, folder: Path, copies: int, topic: str = "flights") -> int:
    """Fills a topic, each partition in the order of departure; gives how many there are."""
    import pyarrow.parquet as pq

    path = folder / "flights.parquet"
    pq.write_table(flights.flights_table(flights.data_folder()), path)
    source = spark.read.parquet(str(path)).coalesce(1)
    frames = [records(source, partition, copies) for partition in range(PARTITIONS)]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    writer = frame.write.format("headwater").mode("append").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic).option("kafka.compression.type", "lz4").save()
    return flights.FLIGHTS * copies


def records(source: Any, partition: int, copies: int) -> Any:
    """What a partition gets: a sixth of the aircraft, each flight `copies` times, as the demo writes them."""
    changed = {"flight": "flight + 10000 * copy", "dep_delay": "dep_delay + copy % 7 - 3"}
    fields = [f"{changed.get(name, name)} AS {name}" for name in source.columns]
    pairs = ", ".join(f"'{name}', {name}" for name in source.columns)
    value = f"to_json(named_struct({pairs}), map('ignoreNullFields', 'false'))"
    return (
        source.where(f"crc32(coalesce(tailnum, '')) % {PARTITIONS} = {partition}")
        .selectExpr("*", f"explode(sequence(0, {copies - 1})) AS copy")
        .selectExpr(*fields)
        .selectExpr("CAST(tailnum AS BINARY) AS key", f"CAST({value} AS BINARY) AS value", f"{partition} AS partition")
    )


class Watch:
    """Adds up the micro-batches of a stage, as Spark tells them."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.rows: list[int] = []
        self.late = 0

    def __call__(self, progress: StageProgress, totals: StageTotals) -> None:
        self.milliseconds.append(progress.duration_ms)
        self.rows.append(progress.rows)
        self.late += progress.late_rows


def run_stage(bootstrap: str, folder: Path, name: str) -> dict[str, Any]:
    """One stage, from the first record of its input to the last; Spark runs already."""
    variables = {"data": flights.data_folder(), "lake": str(folder / "lake"), "most": str(BATCH)}
    loaded = load(conf_file("pipelines", "flights.yaml"), variables)
    watch = Watch()
    options = RunOptions(bootstrap, str(folder / "state"), stages=(name,), spark_conf=CONF)
    started_s, cpu_s = time.perf_counter(), cpu_seconds(os.getpid())
    result = Runner(loaded, options, lambda topics: None, watch).run()
    seconds = time.perf_counter() - started_s
    return {
        "rows": sum(watch.rows),
        "written": result.totals[name].written,
        "batches": len(watch.rows),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds(os.getpid()) - cpu_s,
        "batch_ms": watch.milliseconds,
        "batch_rows": watch.rows,
        "late": watch.late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--copies", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stages", default="clean,delays,rising")
    arguments = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": arguments.bootstrap})
    spark = open_session("flights", str(arguments.folder / "spark.log"), CONF)
    if "flights" not in admin.list_topics(timeout=10).topics:
        made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
        for future in made.values():
            future.result(30)
        produce(spark, arguments.bootstrap, arguments.folder, arguments.copies)
    stages = {name: run_stage(arguments.bootstrap, arguments.folder, name) for name in arguments.stages.split(",")}
    close_session()
    print(json.dumps({"cores": CORES, "flights": flights.FLIGHTS * arguments.copies, "stages": stages}))


if __name__ == "__main__":
    main()
