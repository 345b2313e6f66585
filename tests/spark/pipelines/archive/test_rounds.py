"""Rounds of archives: what is in the table, and how far it says it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from headwater.pipelines.archive.archive_round import ArchiveRound
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.archive.topic_archive import TopicArchive
from headwater.pipelines.seam.marks import end_mark
from headwater.pipelines.spark import jvm_delta
from tests.faults.small_disk import SmallDisk, can_mount
from tests.spark.pipelines.archive.conftest import Archives

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "carrier": {"type": "string"},
        "delay": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id"],
}
JSON = """
topics:
  "@flights": {value: json, schema: flight.json}
archive:
  root: lake
  topics:
    "@flights":
"""


def flights(archives: Archives, numbers: Sequence[int], **more: Any) -> None:
    archives.lab.write("flight.json", json.dumps(SCHEMA))
    values = [(f"k{n}", {"id": n, "carrier": "AA", "delay": n / 2, "at": "2026-01-02T03:04:05.678Z"}) for n in numbers]
    archives.lab.produce("@flights", values, **more)


def test_each_record_is_a_row_with_its_place_and_rounds_go_on_where_the_table_ends(archives: Archives) -> None:
    flights(archives, range(30), partitions=3)
    archives.caught_up(JSON)
    flights(archives, range(30, 40))
    archives.caught_up(JSON)
    seen = archives.lab.read("@flights")
    rows = archives.rows("@flights", "_key", "id", "carrier", "delay", "_headers", "_error", "_value")
    assert [row[:2] for row in rows] == [(each.partition, each.offset) for each in seen]
    assert [row[2] for row in rows] == [each.key for each in seen]
    assert [row[3] for row in rows] == [each.json["id"] for each in seen]
    assert {row[4:] for row in rows} == {("AA", each.json["id"] / 2, None, None, None) for each in seen}
    assert archives.frame("@flights").columns == [
        "_partition", "_offset", "_timestamp", "_key", "id", "carrier", "delay", "at", "_headers", "_error", "_value",
    ]  # fmt: skip
    ends = {partition: sum(each.partition == partition for each in seen) for partition in range(3)}
    assert (archives.state("@flights").ends, archives.state("@flights").gaps) == (ends, {})
    [times] = archives.frame("@flights").selectExpr("collect_set(unix_millis(_timestamp))").collect()
    assert set(times[0]) == {each.timestamp_ms for each in seen}


def test_a_round_without_new_records_commits_nothing(archives: Archives) -> None:
    flights(archives, range(5))
    archives.caught_up(JSON)
    before = archives.commits("@flights")
    archives.caught_up(JSON)
    assert archives.commits("@flights") == before
    assert [each.rows for each in archives.rounds] == [5]


def test_values_that_cannot_be_decoded_are_rows_with_the_reason_and_the_value(archives: Archives) -> None:
    flights(archives, range(3))
    archives.lab.produce("@flights", [b"no JSON", ("k", '{"carrier": "AA"}', [("h", b"1")]), (b"tombstone", None)])
    flights(archives, [7])
    archives.caught_up(JSON)
    rows = archives.rows("@flights", "id", "_error", "_value", "_headers")
    assert [row[2] for row in rows] == [0, 1, 2, None, None, None, 7]
    assert [None if row[4] is None else bytes(row[4]) for row in rows] == [
        None, None, None, b"no JSON", b'{"carrier": "AA"}', None, None,
    ]  # fmt: skip
    assert rows[3][3] == "the value is not JSON"
    assert rows[4][3] == "the required field id is missing or null"
    assert rows[5][3] == "the value is null"
    assert [tuple(each) for each in rows[4][5]] == [("h", b"1")]
    assert (archives.rounds[0].rows, archives.rounds[0].errors) == (7, 3)
    # All of it in one commit, by both ways.
    assert len(archives.commits("@flights")) == 2
    assert sum("add" in action for action in archives.commits("@flights")[1]) == 2
    assert not (archives.path("@flights") / "_headwater" / "undecoded").exists() or not list(
        (archives.path("@flights") / "_headwater" / "undecoded").iterdir()
    )


def test_a_suspended_archive_stops_before_a_value_that_cannot_be_decoded(archives: Archives) -> None:
    flights(archives, range(3))
    archives.lab.produce("@flights", [b"no JSON"])
    flights(archives, [7])
    suspending = JSON.replace("  root: lake", "  root: lake\n  on_error: suspend")
    [failure] = archives.once(suspending)
    assert archives.once(suspending) == [failure]
    assert failure.is_user_error
    assert "has a value at offset 3 that cannot be decoded (the value is not JSON)" in failure.error
    assert archives.state("@flights").ends == {0: 3}
    assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2], "what comes before it is there"
    files = {each.name for each in archives.path("@flights").glob("*.parquet")}
    added = {action["add"]["path"] for commit in archives.commits("@flights") for action in commit if "add" in action}
    assert added == files, "nothing is left of the attempts"
    archives.caught_up(JSON)
    assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2, None, 7]


def parquet_files(archives: Archives) -> set[str]:
    return {str(each.relative_to(archives.path("@flights"))) for each in archives.path("@flights").rglob("*.parquet*")}


def test_rounds_that_fail_leave_no_file_and_commit_nothing(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    by_tasks, before_commit = ArchiveRound._write_by_tasks, TopicArchive._before_commit
    removed: list[Path] = []

    def job_fails(self: ArchiveRound, *given: Any) -> Any:
        assert by_tasks(self, *given)
        raise RuntimeError("a task has failed, and others had not")

    def is_overtaken(self: TopicArchive) -> None:
        if (archives.path("@flights") / "_delta_log").exists():
            assert len(parquet_files(archives)) == 4, "a task's, what it left to Spark, and Spark's with checksums"
            raise ArchiveFailed("another driver has the lock")
        before_commit(self)

    def vacuumed(self: ArchiveRound, *given: Any) -> Any:
        written = by_tasks(self, *given)
        [path] = [json.loads(each.add)["add"]["path"] for each in written]
        removed.append(archives.path("@flights") / path)
        removed[0].unlink()
        return written

    flights(archives, range(3))
    archives.lab.produce("@flights", [b"no JSON"])
    for patched, name, double, said in (
        (ArchiveRound, "_write_by_tasks", job_fails, "a task has failed"),
        (TopicArchive, "_before_commit", is_overtaken, "another driver has the lock"),
        (ArchiveRound, "_write_by_tasks", vacuumed, "before it was committed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(patched, name, double)
            [failure] = archives.once(JSON)
        assert said in failure.error
        assert not failure.is_user_error
        assert parquet_files(archives) == set()
    assert failure.error.startswith(removed[0].name)
    assert len(archives.commits("@flights")) == 1, "the table's own"
    archives.caught_up(JSON)
    assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2, None]

    def lock_fails_to_see(self: TopicArchive) -> None:
        """A second driver commits to a partition between this one's look at the lock and its commit."""
        before_commit(self)
        state = archives.state("@flights")
        transaction = jvm_delta.start_delta_transaction(archives.lab.spark, str(archives.path("@flights")))
        mark = {end_mark(self._topic_id, 0): state.ends[0]}
        jvm_delta.commit_delta_files(archives.lab.spark, transaction, [], None, mark)

    flights(archives, range(3, 5))
    with monkeypatch.context() as patch:
        patch.setattr(TopicArchive, "_before_commit", lock_fails_to_see)
        [failure] = archives.once(JSON)
    assert "has overtaken this round" in failure.error
    archives.caught_up(JSON)
    assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2, None, 3, 4]


def test_a_disk_that_gets_full_before_a_commit_is_named_with_the_table_and_costs_nothing(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(archives.lab.folder / "lake", 24 << 20)
    if not can_mount() or not disk.mount():
        pytest.skip("file systems cannot be mounted here")
    before_commit = TopicArchive._before_commit

    def gets_full(self: TopicArchive) -> None:
        """All files are written, and the commit is not."""
        before_commit(self)
        disk.fill()

    try:
        flights(archives, range(3))
        archives.caught_up(JSON)
        commits = archives.commits("@flights")
        flights(archives, range(3, 5))
        with monkeypatch.context() as patch:
            patch.setattr(TopicArchive, "_before_commit", gets_full)
            failures = archives.once(JSON)
        failures += archives.once(JSON)  # the tasks' files have no room either
        assert len(failures) == 2
        for failure in failures:
            assert "No space left on device" in failure.error
            assert str(archives.path("@flights")) in failure.error
            assert "\n" not in failure.error
            assert not failure.is_user_error
        assert archives.commits("@flights") == commits
        assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2]
        disk.make_room()
        archives.caught_up(JSON)
        assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 2, 3, 4]
        assert archives.state("@flights").ends == {0: 5}
    finally:
        disk.unmount()


def test_control_records_and_aborted_transactions_move_the_offsets(archives: Archives) -> None:
    flights(archives, range(2))
    name = f"{archives.lab.prefix}flights"
    producer = Producer({"bootstrap.servers": archives.lab.servers, "transactional.id": f"{name}-t"})
    producer.init_transactions(30)
    for commits in (False, True, False):
        producer.begin_transaction()
        producer.produce(name, json.dumps({"id": 100 + commits}))
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    archives.caught_up(JSON)
    assert [row[2] for row in archives.rows("@flights", "id")] == [0, 1, 101]
    assert archives.state("@flights").ends == {0: 8}
    producer.begin_transaction()
    producer.produce(name, b"x")
    producer.flush(30)
    producer.abort_transaction(30)
    archives.caught_up(JSON)
    assert archives.state("@flights").ends == {0: 10}
    assert len(archives.rows("@flights")) == 3
    assert not any("add" in action for action in archives.commits("@flights")[-1])


@pytest.mark.parametrize("value", ["raw", "string"])
def test_values_without_columns_are_kept_as_they_are(archives: Archives, value: str) -> None:
    archives.lab.produce("@texts", [("a", "é"), (b"\xff", "b", [("h", None)]), (None, None), ("c", b"\xff")])
    text = f'topics: {{"@texts": {{value: {value}}}}}\narchive: {{root: lake, topics: {{"@texts": }}}}\n'
    archives.caught_up(text)
    rows = archives.rows("@texts", "_key", "value", "_headers")
    assert [row[2] for row in rows] == [b"a", b"\xff", None, b"c"]
    assert [tuple(each) for each in rows[1][4]] == [("h", None)]
    if value == "raw":
        assert [row[3] for row in rows] == ["é".encode(), b"b", None, b"\xff"]
        assert archives.frame("@texts").columns == ["_partition", "_offset", "_timestamp", "_key", "value", "_headers"]
    else:
        assert [row[3] for row in rows] == ["é", "b", None, None]
        assert archives.rows("@texts", "_error", "_value")[3][2:] == ("the value is not UTF-8 text", b"\xff")


def test_rounds_are_bounded_and_run_until_the_table_has_caught_up(archives: Archives) -> None:
    archives.lab.produce("@big", [b"x" * 20_000] * 300, partitions=2)
    archives.caught_up('archive: {root: lake, round_bytes: 1048576, topics: {"@big": }}')
    assert len(archives.rounds) >= 5
    assert len(archives.rows("@big")) == 300
    assert archives.rounds[-1].plan.backlog == 0


def test_partitions_that_are_added_begin_with_their_log(archives: Archives) -> None:
    text = 'archive: {root: lake, from: latest, topics: {"@grown": }}'
    archives.lab.produce("@grown", [b"before"])
    archives.caught_up(text)
    assert archives.rows("@grown") == []
    assert archives.state("@grown").gaps == {0: ((0, 1),)}
    name = f"{archives.lab.prefix}grown"
    admin = AdminClient({"bootstrap.servers": archives.lab.servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
    producer = Producer({"bootstrap.servers": archives.lab.servers})
    producer.produce(name, b"new", partition=1)
    assert producer.flush(30) == 0
    archives.caught_up(text)
    assert archives.rows("@grown", "value") == [(1, 0, b"new")]
    assert archives.state("@grown").ends == {0: 1, 1: 1}
