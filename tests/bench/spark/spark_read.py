"""Spark reads a topic in batch: rows per second of `sum(length(value)), count(*)`, on local[2].

python tests/bench/spark/spark_read.py --bootstrap HOST:PORT [--records 5000000] [--codec none] [--runs 5]

Makes the topic (6 partitions, 200-byte values) by headwater's own batch writer if it is not there. Prints one line,
then the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

from headwater.pipelines.datasource import PUSHDOWN_OPTION, SESSION_CONF, session_environment
from headwater.pipelines.spark.worker_sockets import socket_conf, socket_folder

VALUE_BYTES = 200
PARTITIONS = 6


def session(cores: int, conf: Mapping[str, str] | None = None) -> Any:
    from pyspark.sql import SparkSession

    os.environ.update(session_environment())
    builder = SparkSession.builder.master(f"local[{cores}]").appName("spark_read")
    conf = {
        **SESSION_CONF,
        **socket_conf(socket_folder()),
        **(conf or {}),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def topic_frame(spark: Any, bootstrap: str, topic: str, spark_format: str = "headwater") -> Any:
    reader = spark.read.format(spark_format).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option(PUSHDOWN_OPTION, "true").load() if spark_format == "headwater" else reader.load()


def read_rate(frame: Any) -> tuple[int, float]:
    """(records, records a second) of one read of all values."""
    started_s = time.perf_counter()
    row = frame.selectExpr("sum(length(value)) as bytes", "count(*) as records").collect()[0]
    seconds = time.perf_counter() - started_s
    assert row.bytes == row.records * VALUE_BYTES, f"{row.bytes} bytes in {row.records} records"
    return row.records, row.records / seconds


def ensure_topic(spark: Any, bootstrap: str, topic: str, records: int, codec: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    if topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    elif (present := topic_frame(spark, bootstrap, topic).count()) > 0:
        if present != records:
            raise SystemExit(
                f"topic {topic} holds {present} records, not {records}: delete it, or name another --topic"
            )
        return
    rows = spark.range(0, records, 1, 4).selectExpr(
        "cast(id as string) as key", f"rpad(concat('record ', id, ' '), {VALUE_BYTES}, 'x') as value"
    )
    started_s = time.perf_counter()
    rows.write.format("headwater").mode("append").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).option("kafka.compression.type", codec).save()
    seconds = time.perf_counter() - started_s
    print(f"wrote {records} records to {topic} in {seconds:.1f} s ({records / seconds:,.0f} rows/s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--topic", help="default: named after records and codec")
    parser.add_argument("--codec", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    topic = arguments.topic or f"spark-read-{arguments.records}-{arguments.codec}"
    spark = session(arguments.cores)
    ensure_topic(spark, arguments.bootstrap, topic, arguments.records, arguments.codec)
    rates: list[float] = []
    for run in range(arguments.runs + 1):  # the first warms JVM, workers and numba's cache, and is not counted
        records, rate = read_rate(topic_frame(spark, arguments.bootstrap, topic))
        if run:
            rates.append(rate)
    spark.stop()
    result = {
        "benchmark": "spark_read",
        "records": records,
        "value_bytes": VALUE_BYTES,
        "partitions": PARTITIONS,
        "codec": arguments.codec,
        "cores": arguments.cores,
        "rows_per_s_median": round(statistics.median(rates)),
        "rows_per_s": [round(rate) for rate in rates],
    }
    print(f"spark batch read: {result['rows_per_s_median']:,} rows/s (median of {len(rates)}, {records} records)")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
