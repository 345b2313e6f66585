"""What is said of an archive that cannot go on."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, cast

import pytest

from headwater.pipelines.archive import archive_table, status
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archive_table import ArchiveTable
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.status import status_of
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.marks import APPEND, ID_PROPERTY, MODE_PROPERTY, TOPIC_PROPERTY, TRANSACTION_RETENTION
from headwater.pipelines.seam.table_offsets import TableOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = {TOPIC_PROPERTY: "flights", ID_PROPERTY: "t", MODE_PROPERTY: APPEND}
SPEC = TopicArchiveSpec("flights", "/lake/f", parse_position("earliest"))


@pytest.mark.parametrize(
    ("archived", "said"),
    [
        (3, ""),
        (1, "the offsets 1 to 1 of flights-0 were deleted by retention .* [(]the table /lake/f[)]"),
        (9, "the table is at offset 9 of flights-0, which ends at 5: .*name another table [(]the table /lake/f[)]"),
    ],
)
def test_a_problem_names_the_table_and_the_offsets(monkeypatch: pytest.MonkeyPatch, archived: int, said: str) -> None:
    log = LogState("flights", "t", first={0: 2}, end={0: 5})

    def topic_log(brokers: Brokers, spec: TopicArchiveSpec) -> LogState:
        return log

    def table_offsets(table: str) -> TableOffsets:
        return TableOffsets(3, "flights", "t", 0, {0: archived}, properties=OWN)

    monkeypatch.setattr(status, "topic_log", topic_log)
    monkeypatch.setattr(status, "table_offsets", table_offsets)
    problem = status_of(SPEC, "127.0.0.1:1").problem
    assert bool(problem) == bool(said)
    assert re.fullmatch(said, problem)


@pytest.mark.parametrize(
    ("changed", "mode", "said"),
    [
        ({}, None, ""),
        ({}, "append", ""),
        ({}, "upsert", "the table /lake/f has the mode append, which it keeps, and not upsert: "),
        ({MODE_PROPERTY: "later"}, None, "the table /lake/f is an archive of the mode later, which this release lacks"),
        (
            {TRANSACTION_RETENTION: "interval 1 day"},
            None,
            f"the table /lake/f has the property {TRANSACTION_RETENTION}",
        ),
        ({ID_PROPERTY: "other"}, None, "the table /lake/f is the archive of topic flights with the id other, and "),
    ],
)
def test_the_status_and_a_round_refuse_the_same_properties_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], mode: Literal["append", "upsert"] | None, said: str
) -> None:
    properties = OWN | changed
    spec = dataclasses.replace(SPEC, mode=mode)
    table = TableOffsets(3, "flights", properties[ID_PROPERTY], 0, {0: 3}, properties=properties)
    monkeypatch.setattr(status, "topic_log", lambda *_: LogState("flights", "t", first={0: 2}, end={0: 5}))
    monkeypatch.setattr(status, "table_offsets", lambda _: table)
    problem = status_of(spec, "127.0.0.1:1").problem
    assert bool(problem) == bool(said)
    assert problem.startswith(said)
    definition = {"metaData": {"configuration": properties, "schemaString": '{"fields": []}', "partitionColumns": []}}
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    monkeypatch.setattr(
        archive_table,
        "jvm_delta",
        SimpleNamespace(
            start_delta_transaction=lambda *_: None,
            delta_version=lambda _: 3,
            delta_definition=lambda _: (json.dumps(protocol), json.dumps(definition)),
            delta_marks=lambda *_: {},
            delta_committed_ms=lambda _: 0,
        ),
    )
    spark = cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None)))
    archive = ArchiveTable(spec.table, "flights", "t", LocalFiles())
    if said:
        with pytest.raises(ArchiveError) as refused:
            archive.snapshot(spark, mode)
        assert str(refused.value) == problem
    else:
        assert archive.snapshot(spark, mode) is not None


def test_a_table_that_no_round_can_make_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "the cleanup.policy of flights may not be described (DescribeConfigs): grant it, or give `mode`"

    def mode_of_new_table(spec: TopicArchiveSpec, brokers: Brokers) -> str:
        raise ArchiveError(said)

    monkeypatch.setattr(status, "topic_log", lambda *_: LogState("flights", "t", first={0: 2}, end={0: 5}))
    monkeypatch.setattr(status, "table_offsets", lambda _: None)
    monkeypatch.setattr(status, "mode_of_new_table", mode_of_new_table)
    found = status_of(SPEC, "127.0.0.1:1")
    assert (found.problem, found.to_add) == (f"{said} (the table /lake/f)", 3)
    monkeypatch.setattr(status, "mode_of_new_table", lambda *_: APPEND)
    assert (status_of(SPEC, "127.0.0.1:1").problem, found.version) == ("", -1)
