"""Runs statements as the shell does and times their first rows; prints the figures as JSON in its last line."""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

from confluent_kafka import Producer

from headwater.api.topic_admin import TopicAdmin
from headwater.api.topic_model import TopicRequest
from headwater.cli.sql.execution import Executor, ResultColumns
from headwater.cli.sql.outputs import output_of
from headwater.cli.sql.spark_session import opened
from headwater.pipelines.sql.relations import Known, Relations
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.sql_text.scanner import statements

PARTITIONS = 6
VALUE = b"v" * 200
QUEUED_MAX = 100_000
#: A filter on partition and offset, each time on other offsets; and what an empty statement costs.
FILTERED = "SELECT offset, value FROM {topic} WHERE partition = {partition} AND offset BETWEEN {low} AND {low} + 999"
STATEMENTS = {
    "first statement, filter on partition and offset, s": FILTERED,
    "later statements, filter on partition and offset, s": FILTERED,
    "the same over log.NAME, s": FILTERED.replace("{topic}", "log.{topic}"),
    "LIMIT 10 of the whole topic, s": "SELECT * FROM {topic} LIMIT 10",
    "SELECT 1, s": "SELECT 1",
}


def produce(servers: str, topic: str, records: int) -> None:
    """The records, evenly over the partitions."""
    TopicAdmin(servers).create_topic(TopicRequest(topic, partitions_count=PARTITIONS))
    settings = {"linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.messages": 2 * QUEUED_MAX}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number in range(records):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
        if number % 1000 == 0:
            while len(producer) > QUEUED_MAX:
                producer.poll(0.05)
            producer.poll(0)
    producer.flush()


def first_row_s(executor: Executor, text: str) -> float:
    """Seconds from the statement's start to its first rows."""
    began = time.perf_counter()
    run = executor.start(statements(text)[0])
    took = 0.0
    for chunk in run.chunks():
        if not isinstance(chunk, ResultColumns) and not took:
            took = time.perf_counter() - began
    assert took, "a statement without rows"
    return took


def main(servers: str, records: int, runs: int) -> None:
    topic = f"bench_{uuid.uuid4().hex[:8]}"
    produce(servers, topic, records)
    figures: dict[str, list[float]] = {}
    with opened("local[2]") as spark:
        relations = Relations(spark, servers, TopicNames(TopicAdmin(servers).topic_names), Known())
        executor = Executor(spark, relations, output_of("table"))
        each = records // PARTITIONS
        for name, text in STATEMENTS.items():
            taken: list[float] = []
            for number in range(1 if name.startswith("first") else runs):
                at: dict[str, Any] = {"partition": number % PARTITIONS, "low": each // (runs + 2) * (number + 1)}
                taken.append(first_row_s(executor, text.format(topic=topic, **at)))
            figures[name] = taken
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
