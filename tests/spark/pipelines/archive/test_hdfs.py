"""Archives whose tables are on a real HDFS."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from headwater.pipelines.archive import topic_archive
from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.archived_columns import archived_columns
from headwater.pipelines.archive.status import status_of
from headwater.pipelines.archive.verification import verify_archive
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.bench.processes import free_port
from tests.hdfs import HdfsProcesses
from tests.spark.pipelines.archive.conftest import Archives

pytestmark = pytest.mark.slow

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}


def declared(hdfs_lake: str) -> str:
    return f'topics: {{"@t": {{value: json, schema: t.json}}}}\narchive: {{root: "{hdfs_lake}", topics: {{"@t": }}}}\n'


def specified(archives: Archives, text: str) -> tuple[TopicArchiveSpec, Any]:
    folder = archives.lab.folder
    [spec], loaded = parse_archive(
        text.replace("@", archives.lab.prefix),
        "archive.yaml",
        {},
        str(folder),
        {},
        lambda path: (folder / path).read_text(),
    )
    return spec, loaded


def test_rounds_on_hdfs_are_in_one_commit_with_what_spark_decodes(
    archives: Archives, hdfs_lake: str, hdfs: HdfsProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(FileSystemOptions.of(), wait_s=1.0)
    monkeypatch.setattr(FileSystemOptions, "of", lambda *_: short)
    archives.lab.write("t.json", json.dumps(SCHEMA))
    text = declared(hdfs_lake)
    spec, loaded = specified(archives, text)
    spark, servers = archives.lab.spark, archives.lab.servers
    archives.lab.produce("@t", [{"id": n, "name": "x"} for n in range(20)] + [b"junk"], partitions=2)
    archives.caught_up(text)
    assert (archives.rounds[0].rows, archives.rounds[0].errors) == (21, 1)

    # A NameNode in safe mode: the round fails in a line, and the next one adds what it did not.
    archives.lab.produce("@t", [{"id": n} for n in range(20, 30)])
    hdfs.safe_mode(True)
    try:
        [failure] = archives.once(text)
        assert "safe mode" in failure.error
        assert failure.error.startswith("hdfs://")
        assert "\n" not in failure.error
        assert not failure.is_user_error
    finally:
        hdfs.safe_mode(False)
    archives.caught_up(text)

    spark.sql(f"OPTIMIZE delta.`{spec.table}`")
    found = verify_archive(
        spark, spec, servers, file_system(spec.table), lambda: archived_columns(spark, loaded, spec.topic, servers)
    )
    assert (found.problems, found.rows) == ((), 31)
    rows = spark.read.format("delta").load(spec.table).select("id", "_error").collect()
    assert sorted(row.id for row in rows if row.id is not None) == list(range(30))
    assert [row._error for row in rows if row.id is None] == ["the value is not JSON"]
    offsets = table_offsets(spec.table)
    assert offsets is not None
    assert sum(offsets.ends.values()) == 31
    status = status_of(spec, servers)
    assert (status.problem, status.to_add) == ("", 0)
    undecoded = f"{spec.table}/_headwater/undecoded"
    assert [each.name for each in file_system(undecoded).list(undecoded)] == []


def test_where_tasks_cannot_write_spark_does(
    archives: Archives, hdfs_lake: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WebHDFS is not reached, where Spark's own client reaches HDFS."""
    short = dataclasses.replace(FileSystemOptions.of(), webhdfs=(f"http://127.0.0.1:{free_port()}",), wait_s=0.5)
    archives.lab.write("t.json", json.dumps(SCHEMA))
    text = declared(hdfs_lake)
    spec, _ = specified(archives, text)
    spark = archives.lab.spark
    archives.lab.produce("@t", [{"id": n, "name": "x"} for n in range(20)] + [b"junk"], partitions=2)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystemOptions, "of", lambda *_: short)
        patch.setattr(topic_archive, "ROUND_OFFSETS_MAX", 8)
        archives.caught_up(text)
    assert len(archives.rounds) == 3
    assert (sum(each.rows for each in archives.rounds), sum(each.errors for each in archives.rounds)) == (21, 1)
    [told] = [each.message for each in caplog.records if "tasks cannot write" in each.message]
    assert "WebHDFS does not answer" in told

    # On, in the same table, where it is reached again.
    archives.lab.produce("@t", [{"id": n} for n in range(20, 30)])
    archives.caught_up(text)
    rows = spark.read.format("delta").load(spec.table).select("_partition", "_offset", "id", "_error").collect()
    assert sorted(row.id for row in rows if row.id is not None) == list(range(30))
    assert [row._error for row in rows if row.id is None] == ["the value is not JSON"]
    offsets = table_offsets(spec.table)
    assert offsets is not None
    assert sum(offsets.ends.values()) == 31 == len({(row._partition, row._offset) for row in rows})
