"""Tables that are not the archive's, topics that are not the table's, gaps, and what tables ask of writers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.group_offsets import commit_group_offsets, committed_group_offsets
from headwater.pipelines.archive import maintenance
from headwater.pipelines.archive.archive_group import GROUP_PREFIX
from headwater.pipelines.archive.running import RoundFailure
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.seam.table_offsets import SeamError, table_offsets
from tests.spark.pipelines.archive.conftest import Archives
from tests.waiting import until

pytestmark = pytest.mark.slow

RAW = 'archive: {root: lake, topics: {"@t": }}\n'


def admin(archives: Archives) -> AdminClient:
    return AdminClient({"bootstrap.servers": archives.lab.servers})


def delete_before(archives: Archives, offset: int) -> None:
    place = TopicPartition(f"{archives.lab.prefix}t", 0, offset)
    client = admin(archives)
    [deleted] = client.delete_records([place]).values()
    deleted.result(60)


def test_a_table_that_another_program_made_is_refused_and_stays_as_it_is(archives: Archives) -> None:
    archives.lab.produce("@t", [b"a"])
    archives.lab.spark.range(3).write.format("delta").save(str(archives.path("@t")))
    [failure] = archives.once(RAW)
    assert failure.is_user_error
    assert "was not made by an archive: name another table" in failure.error
    assert archives.frame("@t").count() == 3
    with pytest.raises(SeamError, match="was not made by an archive"):
        table_offsets(str(archives.path("@t")))


def test_a_folder_that_holds_files_is_refused(archives: Archives) -> None:
    archives.lab.produce("@t", [b"a"])
    archives.lab.write(f"lake/{archives.lab.prefix}t/notes.txt", "mine")
    [failure] = archives.once(RAW)
    assert failure.is_user_error
    assert "holds files (notes.txt) and is no Delta table" in failure.error


def test_a_topic_that_was_made_anew_needs_another_table(archives: Archives) -> None:
    name = f"{archives.lab.prefix}t"
    archives.lab.produce("@t", [b"a"])
    archives.caught_up(RAW)
    client = admin(archives)
    client.delete_topics([name])[name].result(60)
    client.create_topics([NewTopic(name, 1)])[name].result(60)
    archives.lab.produce("@t", [b"b", b"c"])
    [failure] = archives.once(RAW)
    assert failure.is_user_error
    assert "a topic that was made anew needs another table" in failure.error
    assert archives.rows("@t", "value") == [(0, 0, b"a")]


def test_a_copy_of_an_archive_is_refused_and_a_new_table_lets_the_group_go_back(archives: Archives) -> None:
    archives.lab.produce("@t", [b"a", b"b"])
    archives.caught_up(RAW)
    copy, topic = archives.path("copy"), f"{archives.lab.prefix}t"
    archives.lab.spark.sql(f"CREATE TABLE delta.`{copy}` SHALLOW CLONE delta.`{archives.path('@t')}`")
    [failure] = archives.once(f'archive: {{topics: {{"@t": {{table: "{copy}"}}}}}}')
    assert failure.is_user_error
    assert f"the table {copy} has rows (1 files) and no offsets of {topic}: a copy of an archive" in failure.error
    assert len(archives.rows("copy")) == 2
    group = f"{GROUP_PREFIX}{topic}"
    with ClusterClient(client_of(archives.lab.servers)) as cluster:
        commit_group_offsets(cluster, group, {(topic, 0): 2})
        archives.caught_up(f'archive: {{topics: {{"@t": {{table: "{archives.path("new")}"}}}}}}')
        assert committed_group_offsets(cluster, [group]) == {group: {(topic, 0): 0}}
    assert len(archives.rows("new")) == 2


def test_a_gap_by_retention_is_an_error_or_recorded(archives: Archives) -> None:
    archives.lab.produce("@t", [b"0", b"1", b"2"])
    archives.caught_up(RAW)
    archives.lab.produce("@t", [b"3", b"4", b"5"])
    delete_before(archives, 5)
    [failure] = archives.once(RAW)
    assert failure.is_user_error
    assert "the offsets 3 to 4 of" in failure.error
    assert failure.error.endswith(f"(the table {archives.path('@t')})")
    archives.caught_up(RAW.replace("root: lake", "root: lake, on_gap: record"))
    assert [row[1] for row in archives.rows("@t")] == [0, 1, 2, 5]
    assert archives.state("@t").gaps == {0: ((3, 5),)}
    offsets = table_offsets(str(archives.path("@t")))
    assert offsets is not None
    assert offsets.ends == {0: 6}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (length(value) < 100)",
        "ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    ],
)
def test_a_table_that_asks_something_of_writers_is_written_as_it_asks(archives: Archives, change: str) -> None:
    archives.lab.produce("@t", [b"first", ("k", b"second", [("h", b"1")])])
    archives.caught_up(RAW)
    archives.lab.spark.sql(change.format(path=archives.path("@t")))
    archives.lab.produce("@t", [b"third", ("k", b"fourth", [("h", b"2")])])
    archives.caught_up(RAW)
    rows = archives.rows("@t", "_key", "value", "_headers")
    assert [row[2:4] for row in rows] == [(None, b"first"), (b"k", b"second"), (None, b"third"), (b"k", b"fourth")]
    assert [None if row[4] is None else tuple(row[4][0]) for row in rows] == [None, ("h", b"1"), None, ("h", b"2")]
    if "CONSTRAINT" in change:
        archives.lab.produce("@t", [b"x" * 100])
        [failure] = archives.once(RAW)
        assert "small" in failure.error
        assert archives.state("@t").ends == {0: 4}


def test_optimize_vacuum_and_other_commits_keep_the_offsets(archives: Archives) -> None:
    path = archives.path("@t")
    for number in range(4):
        archives.lab.produce("@t", [str(number).encode()] * 5)
        archives.caught_up(RAW)
    spark = archives.lab.spark
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    spark.sql("RESET spark.databricks.delta.retentionDurationCheck.enabled")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('team' = 'us')")
    archives.lab.produce("@t", [b"more"])
    archives.caught_up(RAW)
    assert [row[1] for row in archives.rows("@t")] == list(range(21))
    assert archives.state("@t").ends == {0: 21}


def test_checkpoints_and_commits_without_checksums_of_other_tools_keep_the_offsets(archives: Archives) -> None:
    path = archives.path("@t")
    for number in range(2):
        archives.lab.produce("@t", [str(number).encode()] * 5)
        archives.caught_up(RAW)
    other = DeltaTable(str(path))
    other.optimize.compact()
    other.create_checkpoint()
    assert not (path / "_delta_log" / "00000000000000000003.crc").exists()
    archives.lab.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    archives.lab.produce("@t", [b"more"])
    archives.caught_up(RAW)
    assert archives.state("@t").ends == {0: 11}
    assert [row[2] for row in archives.rows("@t", "value")] == [b"0"] * 5 + [b"1"] * 5 + [b"more"]


def test_new_columns_of_a_schema_are_added_on_request_and_another_type_is_refused(archives: Archives) -> None:
    text = """
topics: {"@t": {value: json, schema: t.json}}
archive: {root: lake, merge_schema: MERGE, topics: {"@t": }}
"""
    fields: dict[str, Any] = {"a": {"type": "integer"}}
    archives.lab.write("t.json", json.dumps({"type": "object", "properties": fields}))
    archives.lab.produce("@t", [{"a": 1}])
    archives.caught_up(text.replace("MERGE", "false"))
    fields["b"] = {"type": "string"}
    archives.lab.write("t.json", json.dumps({"type": "object", "properties": fields}))
    archives.lab.produce("@t", [{"a": 2, "b": "x"}])
    [failure] = archives.once(text.replace("MERGE", "false"))
    assert failure.is_user_error
    assert "the table has no column b: add it with merge_schema: true" in failure.error
    assert failure.error.endswith(f"offsets to add are of partition 0: 1 (the table {archives.path('@t')})")
    archives.caught_up(text.replace("MERGE", "true"))
    archives.lab.produce("@t", [{"a": 3, "b": "y"}])
    archives.caught_up(text.replace("MERGE", "true"))
    before = archives.rows("@t", "a", "b")
    assert [row[2:] for row in before] == [(1, None), (2, "x"), (3, "y")]
    fields["a"] = {"type": "string"}
    archives.lab.write("t.json", json.dumps({"type": "object", "properties": fields}))
    archives.lab.produce("@t", [{"a": "4", "b": "z"}, {"a": "5", "b": "z"}])
    [failure] = archives.once(text.replace("MERGE", "true"))
    assert failure.is_user_error
    assert failure.error == (
        "column a was long and is string now: name another table; the next offsets to add are of partition 0: 3 to 4 "
        f"(the table {archives.path('@t')})"
    )
    assert archives.rows("@t", "a", "b") == before


def test_an_archive_has_one_driver_and_the_next_one_takes_over(archives: Archives) -> None:
    archives.lab.produce("@t", [b"a"])
    failures: list[RoundFailure] = []
    text = RAW.replace("root: lake", "root: lake, freshness: 1 second")
    first = archives.run(text, on_failure=failures.append)
    running = threading.Thread(target=first.run, args=(lambda: archives.lab.spark,))
    running.start()
    try:
        until(lambda: len(archives.rounds) == 1)
        [failure] = archives.once(RAW)
        assert "is held by archive of" in failure.error
        archives.lab.produce("@t", [b"b"])
        until(lambda: len(archives.rounds) == 2)
    finally:
        first.stop()
        running.join()
    assert failures == []
    archives.lab.produce("@t", [b"c"])
    archives.caught_up(RAW)
    assert archives.rows("@t", "value") == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]


def test_one_bad_topic_stops_no_other(archives: Archives, tmp_path: Path) -> None:
    archives.lab.produce("@t", [b"a"])
    archives.lab.produce("@bad", [b"a"])
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / f"{archives.lab.prefix}bad").write_text("a file")
    failures = archives.once('archive: {root: lake, topics: {"@bad": , "@t": , "@missing": }}')
    assert {each.topic.rpartition(".")[2] for each in failures} == {"bad", "missing"}
    assert archives.rows("@t", "value") == [(0, 0, b"a")]


def test_an_archiver_compacts_small_files_between_its_rounds(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_FILES", 3)
    failures: list[RoundFailure] = []
    run = archives.run(RAW.replace("root: lake", "root: lake, freshness: 1 second"), on_failure=failures.append)
    archives.lab.produce("@t", [b"0"])
    running = threading.Thread(target=run.run, args=(lambda: archives.lab.spark,))
    running.start()

    def operations() -> list[str]:
        found = [
            action["commitInfo"] for commit in archives.commits("@t") for action in commit if "commitInfo" in action
        ]
        return [str(each["operation"]) for each in found]

    try:
        for count in range(1, 8):
            until(lambda count=count: len(archives.rounds) >= count)  # type: ignore[misc]
            archives.lab.produce("@t", [str(count).encode()])
        until(lambda: len(archives.rounds) >= 8)
    finally:
        run.stop()
        running.join()
    assert failures == []
    assert operations().count("OPTIMIZE") == 2
    assert len(archives.frame("@t").inputFiles()) <= 4
    assert [row[2] for row in archives.rows("@t", "value")] == [str(n).encode() for n in range(8)]
    assert archives.state("@t").ends == {0: 8}
    # What a driver has left to do is done by the next one, if it only lets the table catch up.
    monkeypatch.setattr(maintenance, "COMPACT_FILES", 1)
    archives.lab.produce("@t", [b"8"])
    table = archives.path("@t")
    (table / maintenance.VACUUMED).write_text("0")
    archives.caught_up(RAW)
    assert operations().count("OPTIMIZE") == 3
    assert len(archives.frame("@t").inputFiles()) == 1
    assert float((table / maintenance.VACUUMED).read_text()) > 1e9
    assert archives.state("@t").ends == {0: 9}
