"""Writes the same rows to topics through two sinks in turn; prints the rates as JSON in its last line."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import Batch, Step, stage_owner
from headwater.pipelines.sinks.exactly_once.exactly_once_topics import ExactlyOnceTopics, TopicRecords
from tests.bench.loads.load import Load
from tests.bench.peers import brokers
from tests.bench.spark import spark_read

CORES = 2
PARTITIONS = 6
KEYS = 1000
TOPICS = ("at-least-once", "exactly-once")


def kept_rows(spark: Any, count: int) -> Any:
    """Computed before any of them is written, as a stage does."""
    rows = spark.range(0, count, 1, CORES).selectExpr(
        f"cast(cast(id % {KEYS} AS string) AS binary) AS key",
        f"cast(rpad(concat('record ', id, ' '), {spark_read.VALUE_BYTES}, 'x') AS binary) AS value",
    )
    rows.persist()
    assert rows.count() == count
    return rows


def at_least_once(rows: Any, bootstrap: str) -> None:
    rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPICS[0]).save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("jars")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": arguments.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]).values():
        future.result(30)
    spark = spark_read.session(CORES, {"spark.jars": arguments.jars, "spark.driver.memory": "3g"})
    rows = kept_rows(spark, arguments.rows)
    sink = ExactlyOnceTopics(
        WriteOptions.parse({"kafka.bootstrap.servers": arguments.bootstrap}), stage_owner("bench", "exactly-once")
    )
    rates: dict[str, list[float]] = {"kafka": [], "exactly once": []}
    for number in range(arguments.rounds + 1):  # the first warms JVM, workers and numba's cache, and is not counted
        for name in list(rates) if number % 2 else list(rates)[::-1]:
            batch = Batch("bench", number, (number,))
            brokers.warm_memory(Load(messages=arguments.rows, message_bytes=spark_read.VALUE_BYTES))
            started_s = time.perf_counter()
            if name == "kafka":
                at_least_once(rows, arguments.bootstrap)
            else:
                assert sink.step(batch) is Step.WRITE
                sink.write(batch, [TopicRecords(TOPICS[1], rows, arguments.rows)], {})
            if number:
                rates[name].append(arguments.rows / (time.perf_counter() - started_s))
    sink.close()
    spark.stop()
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
