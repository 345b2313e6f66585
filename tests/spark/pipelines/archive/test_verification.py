"""`headwater archive verify` finds rows that are missing, twice, beyond the table's offsets, or not the record's."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.group_offsets import committed_group_offsets
from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.archived_columns import archived_columns
from headwater.pipelines.archive.topic_archive import topic_log
from headwater.pipelines.archive.verification import ArchiveVerification, verify_archive
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.loads.offsets.planning import LogState
from tests.spark.pipelines.archive.conftest import Archives
from tests.waiting import until

pytestmark = pytest.mark.slow

TEXT = """
topics: {"@t": {value: json, schema: t.json}}
archive: {root: lake, view_grace: 1 second, topics: {"@t": }}
"""


DIFFERS = "partition 0, offset {} differs from the log's record"
LACKS = "partition 0, offset {} is in the log and not in the table"


def verified(archives: Archives) -> ArchiveVerification:
    text = TEXT.replace("@", archives.lab.prefix)
    [spec], loaded = parse_archive(
        text, "archive.yaml", {}, str(archives.lab.folder), {}, lambda path: (archives.lab.folder / path).read_text()
    )
    spark, servers = archives.lab.spark, archives.lab.servers
    return verify_archive(
        spark, spec, servers, LocalFiles(), lambda: archived_columns(spark, loaded, spec.topic, servers)
    )


def with_a_lost_tail(brokers: Brokers, spec: TopicArchiveSpec) -> LogState:
    """The log as after an unclean election."""
    return dataclasses.replace(topic_log(brokers, spec), end={0: 15})


def archived(archives: Archives) -> str:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    archives.lab.write("t.json", json.dumps(schema))
    archives.lab.produce("@t", [("k", {"a": n, "b": "x"}, [("h", b"1")]) for n in range(20)] + [b"no JSON"])
    archives.caught_up(TEXT)
    return f"delta.`{archives.path('@t')}`"


def test_an_archive_that_is_as_it_should_be(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    table = archived(archives)
    result = verified(archives)
    assert (result.problems, result.rows, result.log_offsets) == ((), 21, 21)
    with monkeypatch.context() as patched:
        patched.setattr("headwater.pipelines.archive.verification.topic_log", with_a_lost_tail)
        [beyond] = verified(archives).problems
    assert beyond.startswith(f"the table is at offset 21 of {archives.lab.prefix}t-0, which ends at 15: ")
    with monkeypatch.context() as patched:
        patched.setattr("headwater.pipelines.loads.offsets.log_state.topic_configs", lambda *_: {})
        [unknown] = verified(archives).problems
    assert unknown.startswith(
        f"rows that the log lacks were not looked for: the cleanup.policy of {archives.lab.prefix}t"
    )
    archives.lab.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 0")
    archives.caught_up(TEXT)
    assert archives.state("@t").ends == {0: 21}, "of the newest version"
    assert list(verified(archives).problems) == [LACKS.format(offset) for offset in range(10)]


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ("DELETE FROM {table} WHERE _offset = 7", [LACKS.format(7)]),
        ("UPDATE {table} SET b = 'y' WHERE _offset = 3", [DIFFERS.format(3)]),
        ("UPDATE {table} SET _headers = NULL WHERE _offset = 4", [DIFFERS.format(4)]),
        ("UPDATE {table} SET _error = 'other' WHERE _offset = 20", [DIFFERS.format(20)]),
        ("INSERT INTO {table} SELECT * FROM {table} WHERE _offset = 5", ["partition 0, offset 5 is there 2 times"]),
        (
            "UPDATE {table} SET _offset = 50 WHERE _offset = 6",
            ["partition 0, offset 50 is beyond the table's offsets, or in a gap", LACKS.format(6)],
        ),
    ],
)
def test_a_difference_is_named(archives: Archives, change: str, problems: list[str]) -> None:
    table = archived(archives)
    archives.lab.spark.sql(change.format(table=table))
    assert list(verified(archives).problems) == problems


def test_the_archives_group_passes_what_the_table_had_a_while_ago(archives: Archives) -> None:
    archived(archives)
    name = f"{archives.lab.prefix}t"

    def committed() -> dict[tuple[str, int], int]:
        archives.caught_up(TEXT)
        with ClusterClient(client_of(archives.lab.servers)) as cluster:
            [offsets] = committed_group_offsets(cluster, [f"headwater.archive.{name}"]).values()
        return offsets

    until(lambda: committed() == {(name, 0): 21})
