"""What is said of an archive that cannot go on."""

from __future__ import annotations

import re

import pytest

from headwater.pipelines.archive import status
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.status import status_of
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.table_offsets import TableOffsets

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
        return TableOffsets(3, "flights", "t", 0, {0: archived})

    monkeypatch.setattr(status, "topic_log", topic_log)
    monkeypatch.setattr(status, "table_offsets", table_offsets)
    problem = status_of(SPEC, "127.0.0.1:1").problem
    assert bool(problem) == bool(said)
    assert re.fullmatch(said, problem)
