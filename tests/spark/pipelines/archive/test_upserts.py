"""Tables by key: the last record of each key, on a real broker, Spark and Delta."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from deltalake import DeltaTable

from headwater.pipelines.archive.archive_file import parse_archive
from headwater.pipelines.archive.archive_round import ArchiveRound
from headwater.pipelines.archive.archived_columns import archived_columns
from headwater.pipelines.archive.status import status_of
from headwater.pipelines.archive.verification import ArchiveVerification, verify_archive
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.spark.pipelines.archive.conftest import Archives

pytestmark = pytest.mark.slow

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "name": {"type": "string"}}, "required": ["n"]}
TEXT = 'topics: {"@t": {value: json, schema: t.json}}\narchive: {root: lake, topics: {"@t": }}\n'


def compacted(archives: Archives, partitions: int = 1, policy: str = "compact") -> None:
    archives.lab.write("t.json", json.dumps(SCHEMA))
    topic = f"{archives.lab.prefix}t"
    made = NewTopic(topic, partitions, 1, config={"cleanup.policy": policy})
    admin = AdminClient({"bootstrap.servers": archives.lab.servers})
    admin.create_topics([made])[topic].result(30)


def table(archives: Archives) -> dict[tuple[int, bytes], Any]:
    """The table's `n` by partition and key."""
    rows = archives.rows("@t", "_key", "n")
    found = {(row[0], row[2]): row[3] for row in rows}
    assert len(found) == len(rows), "a key has one row"
    return found


def verified(archives: Archives, text: str = TEXT) -> ArchiveVerification:
    [spec], loaded = parse_archive(
        text.replace("@", archives.lab.prefix),
        "archive.yaml",
        {},
        str(archives.lab.folder),
        {},
        lambda path: (archives.lab.folder / path).read_text(),
    )
    spark, servers = archives.lab.spark, archives.lab.servers
    return verify_archive(
        spark, spec, servers, LocalFiles(), lambda: archived_columns(spark, loaded, spec.topic, servers)
    )


def test_the_last_record_of_a_key_is_its_row_and_a_tombstone_deletes_it(archives: Archives) -> None:
    compacted(archives)
    archives.lab.produce("@t", [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("c", {"n": 4}), ("c", None)])
    archives.caught_up(TEXT)
    assert table(archives) == {(0, b"a"): 3, (0, b"b"): 2}
    assert [row[:2] for row in archives.rows("@t")] == [(0, 1), (0, 2)], "the places of the last records"
    archives.lab.produce("@t", [("b", None), ("d", {"n": 5}), ("a", {"n": 6}), ("unknown", None)])
    archives.caught_up(TEXT)
    assert table(archives) == {(0, b"a"): 6, (0, b"d"): 5}
    assert archives.state("@t").ends == {0: 9}
    # Tombstones of keys that the table lacks move the offsets alone.
    archives.lab.produce("@t", [("unknown", None)])
    archives.caught_up(TEXT)
    assert archives.state("@t").ends == {0: 10}
    assert not any("add" in each or "remove" in each for each in archives.commits("@t")[-1])
    assert (verified(archives).problems, verified(archives).rows) == ((), 2)
    found = table_offsets(str(archives.path("@t")))
    assert found is not None
    assert found.mode == "upsert"
    [spec], _ = parse_archive(
        TEXT.replace("@", archives.lab.prefix), "a", {}, str(archives.lab.folder), {}, lambda _: json.dumps(SCHEMA)
    )
    assert status_of(spec, archives.lab.servers).value()["mode"] == "upsert"


def test_random_records_over_partitions_and_rounds_leave_what_a_dictionary_would(archives: Archives) -> None:
    compacted(archives, partitions=2)
    rng = random.Random(7)
    expected: dict[tuple[int, bytes], int] = {}
    for number in range(4):
        records = []
        for _ in range(60):
            key = f"k{rng.randrange(25)}"
            records.append((key, None if rng.random() < 0.2 else {"n": rng.randrange(1_000)}))
        archives.lab.produce("@t", records)
        archives.caught_up(TEXT)
        if number == 1:
            other = DeltaTable(str(archives.path("@t")))
            other.optimize.compact()
        if number == 2:
            admin, topic = AdminClient({"bootstrap.servers": archives.lab.servers}), f"{archives.lab.prefix}t"
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    for seen in archives.lab.read("@t"):
        place = seen.partition, seen.key or b""
        if seen.value is None:
            expected.pop(place, None)
        else:
            expected[place] = seen.json["n"]
    assert table(archives) == expected
    assert verified(archives).problems == ()


def test_a_value_that_cannot_be_decoded_is_the_row_of_its_key_or_stops_the_archive(archives: Archives) -> None:
    compacted(archives)
    archives.lab.produce("@t", [("a", {"n": 1}), ("b", {"n": 2}), ("a", b"no JSON")])
    suspending = TEXT.replace("root: lake", "root: lake, on_error: suspend")
    [failure] = archives.once(suspending)
    assert "has a value at offset 2 that cannot be decoded" in failure.error
    assert table(archives) == {(0, b"a"): 1, (0, b"b"): 2}
    archives.caught_up(TEXT)
    rows = {row[2]: row[3:] for row in archives.rows("@t", "_key", "n", "_error", "_value")}
    assert rows == {b"a": (None, "the value is not JSON", b"no JSON"), b"b": (2, None, None)}
    archives.lab.produce("@t", [("a", {"n": 4})])
    archives.caught_up(TEXT)
    assert table(archives) == {(0, b"a"): 4, (0, b"b"): 2}


def test_a_table_keeps_its_mode(archives: Archives) -> None:
    compacted(archives, policy="delete")
    appending = TEXT.replace('"@t": }}', '"@t": {mode: append}}}')
    upserting = TEXT.replace('"@t": }}', '"@t": {mode: upsert}}}')
    archives.lab.produce("@t", [("a", {"n": 1}), ("a", {"n": 2})])
    archives.caught_up(upserting)
    assert table(archives) == {(0, b"a"): 2}
    [failure] = archives.once(appending)
    assert failure.is_user_error
    assert "has the mode upsert, which it keeps, and not append" in failure.error
    archives.lab.produce("@t", [("a", {"n": 3}), (None, {"n": 4})])
    [failure] = archives.once(TEXT)
    assert failure.is_user_error
    assert "has a record without a key at offset 3" in failure.error
    assert table(archives) == {(0, b"a"): 2}, "nothing of the round"


def test_a_compaction_between_a_rounds_look_and_its_commit_is_a_conflict(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(archives)
    for n in range(2):
        archives.lab.produce("@t", [("a", {"n": n}), (f"b{n}", {"n": n})])
        archives.caught_up(TEXT)
    archives.lab.produce("@t", [("a", {"n": 9})])
    original = ArchiveRound._rewritten
    path = archives.path("@t")

    def overtaken(self: ArchiveRound, last: Any, live: Any) -> Any:
        found = original(self, last, live)
        archives.lab.spark.sql(f"OPTIMIZE delta.`{path}`")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveRound, "_rewritten", overtaken)
        [failure] = archives.once(TEXT)
    assert "has overtaken this round" in failure.error
    archives.caught_up(TEXT)
    assert table(archives) == {(0, b"a"): 9, (0, b"b0"): 0, (0, b"b1"): 1}
    assert verified(archives).problems == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE {table} SET n = 7 WHERE _offset = 2", "partition 0, offset 2 differs from the log's record"),
        ("DELETE FROM {table} WHERE _offset = 2", "partition 0, offset 2 is in the log and not in the table"),
        (
            "UPDATE {table} SET _key = CAST('a' AS BINARY) WHERE _offset = 1",
            "partition 0, offset 1 is in the table, and offset 2 has its key",
        ),
    ],
)
def test_a_difference_is_named(archives: Archives, change: str, problem: str) -> None:
    compacted(archives)
    archives.lab.produce("@t", [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3})])
    archives.caught_up(TEXT)
    archives.lab.spark.sql(change.format(table=f"delta.`{archives.path('@t')}`"))
    assert problem in verified(archives).problems


def test_rounds_are_bounded(archives: Archives) -> None:
    compacted(archives)
    archives.lab.produce("@t", [(f"k{n % 7}", {"n": n, "name": "x" * 60_000}) for n in range(50)])
    archives.caught_up(TEXT.replace("root: lake", f"root: lake, round_bytes: {1 << 20}"))
    assert len(archives.rounds) > 1
    assert table(archives) == {(0, f"k{n % 7}".encode()): n for n in range(43, 50)}


def test_a_table_by_key_is_no_history_of_a_stream(archives: Archives) -> None:
    compacted(archives)
    archives.lab.produce("@t", [("a", {"n": 1})])
    archives.caught_up(TEXT)
    given = {"kafka.bootstrap.servers": archives.lab.servers, "subscribe": f"{archives.lab.prefix}t"}
    reader = archives.lab.spark.readStream.format("headwater").options(**given)
    with pytest.raises(Exception, match="keeps the last record of each key"):
        reader.option("archiveTable", str(archives.path("@t"))).load()


def test_files_are_counted_as_they_are_added(archives: Archives) -> None:
    compacted(archives)
    for n in range(2):
        archives.lab.produce("@t", [(f"k{n}", {"n": n})])
        archives.caught_up(TEXT)
    assert [each.files for each in archives.rounds] == [1, 1], "also of keys that the table lacked"
