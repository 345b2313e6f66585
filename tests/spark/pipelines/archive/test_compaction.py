"""Compaction of archives: the rows of small files are sorted and divided by the time of their records."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from headwater.pipelines.archive import maintenance
from headwater.pipelines.archive.commit_lock import commit_lock
from headwater.pipelines.archive.maintenance import compact
from headwater.pipelines.spark import jvm_delta
from tests.spark.pipelines.archive.conftest import Archives

pytestmark = pytest.mark.slow

RAW = 'archive: {root: lake, topics: {"@t": }}\n'
BEGIN_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def produce(archives: Archives, minutes: list[int], size: int = 10) -> None:
    """Records of these minutes, in two partitions in turn."""
    producer = Producer({"bootstrap.servers": archives.lab.servers})
    for number, minute in enumerate(minutes):
        producer.produce(
            f"{archives.lab.prefix}t",
            str(minute).encode() * size,
            partition=number % 2,
            timestamp=BEGIN_MS + minute * MINUTE_MS,
        )
    assert producer.flush(60) == 0


def bounds(archives: Archives) -> list[tuple[int, int]]:
    """The first and the last minute of each file, by Delta's statistics."""
    import pyarrow as pa
    from deltalake import DeltaTable

    actions = pa.table(DeltaTable(str(archives.path("@t"))).get_add_actions(flatten=True))
    sides = (actions[f"{side}._timestamp"].to_pylist() for side in ("min", "max"))
    minutes = ([int(each.timestamp() * 1000 - BEGIN_MS) // MINUTE_MS for each in side if each] for side in sides)
    return sorted(zip(*minutes, strict=True))


def last_commit(archives: Archives) -> list[dict[str, Any]]:
    return archives.commits("@t")[-1]


def test_files_have_the_records_of_a_time_each_and_large_ones_stay(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives.lab.produce("@t", [], partitions=2)
    for late in range(4):  # each round has records of an hour, and some of them are late
        produce(archives, [*range(late * 60, late * 60 + 60), late])
        archives.caught_up(RAW)
    before = archives.rows("@t", "value", "_timestamp")
    table = str(archives.path("@t"))
    size = sum(each.stat().st_size for each in archives.path("@t").glob("*.parquet"))
    monkeypatch.setattr(maintenance, "FILE_BYTES", size // 2 + 1)
    compact(archives.lab.spark, table)
    hours = bounds(archives)
    assert len(hours) == 2
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(hours)), hours
    assert archives.rows("@t", "value", "_timestamp") == before
    assert archives.state("@t").ends == {0: 124, 1: 120}
    # A stream of the table reads nothing of it.
    files = [each for action in last_commit(archives) for name, each in action.items() if name in ("add", "remove")]
    assert (len(files), {each["dataChange"] for each in files}) == (6, {False})
    [info] = [action["commitInfo"] for action in last_commit(archives) if "commitInfo" in action]
    assert info["operation"] == "OPTIMIZE"

    monkeypatch.setattr(maintenance, "COMPACT_BYTES", 1)
    produce(archives, list(range(240, 300)))
    archives.caught_up(RAW)
    compact(archives.lab.spark, table)  # all of them are large
    assert len(bounds(archives)) == 3


def test_a_round_that_commits_meanwhile_is_no_conflict(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    archives.lab.produce("@t", [], partitions=2)
    for _ in range(2):
        produce(archives, [0, 1])
        archives.caught_up(RAW)

    @contextlib.contextmanager
    def after_a_round(*given: Any) -> Iterator[None]:
        produce(archives, [2, 3])
        archives.caught_up(RAW)
        with commit_lock(*given):
            yield

    monkeypatch.setattr(maintenance, "commit_lock", after_a_round)
    compact(archives.lab.spark, str(archives.path("@t")))
    assert bounds(archives) == [(0, 1), (2, 3)]
    assert [row[:2] for row in archives.rows("@t")] == [(p, offset) for p in (0, 1) for offset in range(3)]
    assert archives.state("@t").ends == {0: 3, 1: 3}


def test_a_compaction_that_lacks_rows_is_not_committed(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    archives.lab.produce("@t", [], partitions=2)
    for _ in range(2):
        produce(archives, [0, 1])
        archives.caught_up(RAW)
    monkeypatch.setattr(
        jvm_delta,
        "delta_file_rows",
        lambda spark, transaction, files: archives.frame("@t").where("_offset = 0"),
    )
    with pytest.raises(RuntimeError, match=r"files of .* rows would become files of"):
        compact(archives.lab.spark, str(archives.path("@t")))
    assert len(archives.rows("@t")) == 4


def test_a_table_that_asks_for_more_gets_deltas_own_compaction(archives: Archives) -> None:
    archives.lab.produce("@t", [], partitions=2)
    produce(archives, [0, 1])
    archives.caught_up(RAW)
    archives.lab.spark.sql(f"ALTER TABLE delta.`{archives.path('@t')}` ADD CONSTRAINT known CHECK (_offset >= 0)")
    produce(archives, [2, 3])
    archives.caught_up(RAW)
    compact(archives.lab.spark, str(archives.path("@t")))
    assert bounds(archives) == [(0, 3)]
    assert [row[:2] for row in archives.rows("@t")] == [(p, offset) for p in (0, 1) for offset in range(2)]
