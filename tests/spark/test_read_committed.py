"""Transactions as Spark sees them: with read_committed, without it, and while one is open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

from tests.spark.conftest import AwaitStableEnd, ReadTopic

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]
Begin = Callable[..., Any]
COMMITTED = {"kafka.isolation.level": "read_committed"}
WAIT_S = 30


class Transaction:
    """A transactional producer's open transaction, written at once."""

    def __init__(self, servers: str, name: str, **config: Any) -> None:
        self.producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 5, **config})
        self.producer.init_transactions(WAIT_S)
        self.producer.begin_transaction()

    def write(self, topic: str, values: range, partition: int = 0) -> Transaction:
        for value in values:
            self.producer.produce(topic, b"%d" % value, partition=partition)
        assert self.producer.flush(WAIT_S) == 0
        return self

    def commit(self) -> None:
        self.producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(WAIT_S)

    def again(self) -> Transaction:
        self.producer.begin_transaction()
        return self


@pytest.fixture
def begin(bootstrap_servers: str, request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Begins a transaction of a producer of its own; those still open at the end are aborted."""
    begun: list[Transaction] = []

    def start(**config: Any) -> Transaction:
        name = f"{request.node.name}-{len(begun)}"
        begun.append(Transaction(bootstrap_servers, name, **config))
        return begun[-1]

    yield start
    for transaction in begun:
        transaction.producer.purge()


def values(rows: list[Row]) -> list[int]:
    return sorted(int(bytes(row.value)) for row in rows)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_only_committed_records_are_read_and_markers_never(
    codec: str, new_topic: NewTopic, begin: Begin, read_topic: ReadTopic, await_stable_end: AwaitStableEnd
) -> None:
    topic = new_topic(1)
    first = begin(**{"compression.type": codec})
    first.write(topic, range(10)).commit()
    first.again().write(topic, range(10, 20)).abort()
    first.again().write(topic, range(20, 30)).commit()
    await_stable_end(topic, {0: 33})
    committed = [*range(10), *range(20, 30)]
    rows = read_topic(topic, **COMMITTED).collect()
    assert values(rows) == committed
    # Three markers have offsets, and are no rows.
    assert sorted(row.offset for row in rows) == [*range(10), *range(22, 32)]
    assert values(read_topic(topic).collect()) == list(range(30))
    assert read_topic(topic, **COMMITTED).where("offset >= 25").count() == 7


def test_tasks_that_begin_inside_a_transaction_leave_out_its_rest(
    new_topic: NewTopic, begin: Begin, read_topic: ReadTopic, await_stable_end: AwaitStableEnd
) -> None:
    topic = new_topic(1)
    batches = {"batch.size": 2000, "batch.num.messages": 20}
    one, two = begin(**batches), begin(**batches)
    for start in range(0, 400, 40):
        one.write(topic, range(start, start + 20))
        two.write(topic, range(start + 20, start + 40))
    one.abort()
    two.commit()
    await_stable_end(topic, {0: 402})
    kept = [value for start in range(0, 400, 40) for value in range(start + 20, start + 40)]
    for options in ({}, {"minPartitions": 13}, {"maxRecordsPerPartition": 7}):
        assert values(read_topic(topic, **COMMITTED, **options).collect()) == kept
    inside = json.dumps({topic: {"0": 205}})
    assert values(read_topic(topic, **COMMITTED, startingOffsets=inside).collect()) == [v for v in kept if v >= 205]


def test_an_open_transaction_is_where_a_committed_read_ends(
    new_topic: NewTopic, begin: Begin, read_topic: ReadTopic, await_stable_end: AwaitStableEnd
) -> None:
    topic = new_topic(1)
    begin().write(topic, range(5)).commit()
    open_one = begin().write(topic, range(5, 10))
    begin().write(topic, range(10, 15)).commit()
    await_stable_end(topic, {0: 6})
    assert values(read_topic(topic, **COMMITTED).collect()) == list(range(5))
    assert values(read_topic(topic).collect()) == list(range(15))
    open_one.commit()
    await_stable_end(topic, {0: 18})
    assert values(read_topic(topic, **COMMITTED).collect()) == list(range(15))


def test_a_stream_waits_for_an_open_transaction_and_goes_on_when_it_ends(
    spark: SparkSession,
    bootstrap_servers: str,
    new_topic: NewTopic,
    begin: Begin,
    await_stable_end: AwaitStableEnd,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    seen: list[int] = []
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("headwater").options(**options, **COMMITTED).load()
    query = (
        frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .foreachBatch(lambda rows, _: seen.extend(values(rows.collect())))
        .start()
    )
    try:
        first = begin().write(topic, range(10)).write(topic, range(10, 20), partition=1)
        second = begin().write(topic, range(20, 25))
        first.commit()
        await_stable_end(topic, {0: 10, 1: 11})
        query.processAllAvailable()
        # In partition 0 the second one is open behind the first.
        assert sorted(seen) == list(range(20))
        second.abort()
        second.again().write(topic, range(30, 35)).commit()
        # Five records and a marker of each transaction, aborted ones too.
        ends = {0: 10 + 1 + 5 + 1 + 5 + 1, 1: 10 + 1}
        await_stable_end(topic, ends)
        query.processAllAvailable()
        assert sorted(seen) == [*range(20), *range(30, 35)]
        progress: Any = query.lastProgress
        source = progress["sources"][0]
        assert json.loads(source["endOffset"]) == {topic: {str(index): end for index, end in ends.items()}}
    finally:
        query.stop()
