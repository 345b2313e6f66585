"""A table whose offsets the log does not have is no whole archive; one that has just been added to is."""

from __future__ import annotations

import pytest

from headwater.pipelines.archive import verification
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.verification import log_of_table
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position

NOBODY = "127.0.0.1:1"
SPEC = TopicArchiveSpec("flights", "/lake/f", parse_position("earliest"))
TABLE = ArchiveState({0: 9, 1: 7})


def log_to(*ends: int, topic_id: str = "t") -> LogState:
    return LogState("flights", topic_id, first=dict.fromkeys(range(len(ends)), 0), end=dict(enumerate(ends)))


def looked_at_again(monkeypatch: pytest.MonkeyPatch, log: LogState) -> None:
    def topic_log(brokers: Brokers, spec: TopicArchiveSpec) -> LogState:
        assert (brokers, spec) == (NOBODY, SPEC)
        return log

    monkeypatch.setattr(verification, "topic_log", topic_log)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((8, 7), ["the table is at offset 9 of flights-0, which ends at 8"]),
        ((9,), ["the table has partition 1 of flights, which the topic has no more"]),
        (
            (3, 5),
            [
                "the table is at offset 9 of flights-0, which ends at 3",
                "the table is at offset 7 of flights-1, which ends at 5",
            ],
        ),
    ],
)
def test_offsets_beyond_the_log_are_a_problem_each(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...], said: list[str]
) -> None:
    log = log_to(*ends)
    looked_at_again(monkeypatch, log)
    found, problems = log_of_table(SPEC, NOBODY, TABLE, log)
    assert [problem.partition(":")[0] for problem in problems] == said
    assert found is log


def test_what_was_written_and_archived_since_the_first_look_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = log_to(12, 7)
    looked_at_again(monkeypatch, newest)
    assert log_of_table(SPEC, NOBODY, TABLE, log_to(8, 7)) == (newest, [])


def test_a_log_that_has_the_tables_offsets_is_looked_at_once() -> None:
    log = log_to(9, 8)
    assert log_of_table(SPEC, NOBODY, TABLE, log) == (log, [])


def test_a_topic_that_is_made_anew_meanwhile_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at_again(monkeypatch, log_to(0, 0, topic_id="new"))
    with pytest.raises(ArchiveError, match="a topic that was made anew needs another table"):
        log_of_table(SPEC, NOBODY, TABLE, log_to(8, 7))
