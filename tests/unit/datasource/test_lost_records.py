"""Records that an election lost are a data loss for a stream and for its tasks, even if others have their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from headwater.logtier.client import cluster as cluster_module
from headwater.logtier.client.waiter import DataWaiter
from headwater.logtier.records.batch import decode_records, iterate_batches
from headwater.pipelines.datasource import planning, reading, stream_reader
from headwater.pipelines.datasource.errors import DataLossError, client_errors
from headwater.pipelines.datasource.offsets import OffsetRange
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.reading import RangePartition
from headwater.pipelines.datasource.stream_reader import StreamReader
from tests.scripted_brokers import KEY, TOPIC, TOPIC_ID, ScriptedBrokers

VALUES = [b"0", b"1", b"2", b"3"]


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    for module in (cluster_module, planning, reading, stream_reader):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


@pytest.fixture(autouse=True)
def _values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks yield values instead of Arrow: the decoder takes a minute to compile."""

    def decode(
        data: memoryview, _topic: str, _partition: int, *, start_offset: int, end_offset: int, **_: Any
    ) -> Iterator[bytes]:
        for header, batch in iterate_batches(data):
            if start_offset <= header.base_offset < end_offset:
                yield from (bytes(record.value or b"") for record in decode_records(batch))

    monkeypatch.setattr(reading, "_load_decoder", lambda *, with_json: decode)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"kafka.bootstrap.servers": "scripted:1", "subscribe": TOPIC} | given)


def stream(brokers: ScriptedBrokers, **given: str) -> StreamReader:
    reader = StreamReader(options(**given))
    reader._cluster = brokers.client()
    reader._waiter = DataWaiter(reader._cluster)
    return reader


def at(offset: int) -> dict[str, Any]:
    return {TOPIC: {"0": offset}}


def planned(reader: StreamReader, start: int, end: int) -> list[OffsetRange]:
    ranges: list[OffsetRange] = []
    for task in reader.partitions(at(start), at(end)):
        assert isinstance(task, RangePartition)
        ranges += task.ranges
    return ranges


def lose(brokers: ScriptedBrokers, kept: int) -> None:
    """Broker 2 leads, whose log has the first records only, and nine others behind them."""
    brokers.brokers[2].log[kept:] = [(7, b"other")] * 9
    brokers.elect(2, 7)


def test_a_stream_reports_that_records_it_has_read_were_lost() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    reader = stream(brokers)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(4)
    assert [part.leader_epoch for part in planned(reader, 0, 4)] == [5]
    lose(brokers, 2)
    with pytest.raises(DataLossError, match="flights-0 was truncated: its records from offset 2 to 3 were read"):
        reader.latestOffset(at(4), ReadAllAvailable())


def test_without_fail_on_data_loss_a_stream_goes_on_where_the_logs_diverge() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    reader = stream(brokers, failOnDataLoss="false")
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(4)
    lose(brokers, 2)
    assert reader.latestOffset(at(4), ReadMinRows(100)) == at(2), "an empty micro-batch, for which nothing is awaited"
    assert planned(reader, 4, 2) == []
    assert reader.latestOffset(at(2), ReadAllAvailable()) == at(11)
    assert [(part.start, part.end, part.leader_epoch) for part in planned(reader, 2, 11)] == [(2, 11, 7)]


def test_an_available_now_run_ends_where_the_log_ends_after_a_loss() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    reader = stream(brokers, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(4)
    brokers.brokers[2].log[2:] = [(7, b"other")]
    brokers.elect(2, 7)
    assert reader.latestOffset(at(4), ReadAllAvailable()) == at(2)
    assert reader.latestOffset(at(2), ReadAllAvailable()) == at(3)
    assert [(part.end, part.leader_epoch) for part in planned(reader, 2, 3)] == [(3, 7)]


def test_a_stream_goes_on_after_an_election_that_lost_nothing() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={4: VALUES})
    reader = stream(brokers)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(4)
    brokers.elect(2, 7)
    brokers.brokers[2].log.append((7, b"4"))
    assert reader.latestOffset(at(4), ReadAllAvailable()) == at(5)


def test_a_topic_without_records_has_lost_none_in_an_election(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5)
    reader = stream(brokers)
    monkeypatch.setattr(reader._waiter, "wait", lambda ends, wait_ms: None)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(0)
    brokers.elect(2, 7)
    assert brokers.brokers[2].epoch_end(5) == (-1, -1)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(0)
    brokers.brokers[2].log.append((7, b"0"))
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(1)


def test_a_log_that_is_empty_after_an_election_has_lost_all() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    reader = stream(brokers, failOnDataLoss="false")
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(4)
    brokers.brokers[2].log.clear()
    brokers.elect(2, 7)
    assert reader.latestOffset(at(4), ReadAllAvailable()) == at(0)


def test_a_task_returns_no_other_records_than_those_that_were_planned() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    part = OffsetRange(*KEY, 0, 4, TOPIC_ID, leader_epoch=5)
    lose(brokers, 1)
    with client_errors(), pytest.raises(DataLossError, match="from offset 1 to 3") as caught:
        list(reading._RangeReader(brokers.client(), part, options(), set()).read())
    assert str(caught.value).endswith("set failOnDataLoss=false to go on without them")


def test_without_fail_on_data_loss_a_task_reads_what_is_there_by_now() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    part = OffsetRange(*KEY, 0, 4, TOPIC_ID, leader_epoch=5)
    brokers.brokers[2].log[1:] = [(7, b"other")]  # shorter than the plan
    brokers.elect(2, 7)
    tolerant = options(failOnDataLoss="false")
    rows: list[object] = list(reading._RangeReader(brokers.client(), part, tolerant, set()).read())
    assert rows == [b"0", b"other"]
