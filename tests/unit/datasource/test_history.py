"""What a stream makes of its archive's table: a log whose end is not known yet, gaps, starts."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

import pytest

from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.datasource.history import History, LogPart
from headwater.pipelines.datasource.offsets import Offsets
from headwater.pipelines.seam.history_batches import FileBounds
from headwater.pipelines.seam.recorded_gaps import recorded_gaps
from headwater.pipelines.seam.table_files import TableFiles
from headwater.pipelines.seam.table_offsets import TableOffsets

TOPIC_ID = uuid.UUID(int=7)
KEY = ("flights", 0)
#: Rows of the offsets 10 to 19 and 30 to 39; the archive began at 10, and has lost 20 to 29.
TABLE = TableFiles(
    TableOffsets(3, "flights", str(TOPIC_ID), 0, {0: 40}),
    (FileBounds((0, 0), (10, 19), (0, 9)), FileBounds((0, 0), (30, 39), (10, 19))),
    {0: ((0, 10), (20, 30))},
)


def ends_of(*answers: int) -> tuple[Callable[[Offsets], Offsets], list[int]]:
    """A log that tells these ends one after the other, and those that it has not told yet."""
    left = list(answers)
    return (lambda wanted: dict.fromkeys(wanted, left.pop(0))), left


def known(table: TableFiles = TABLE) -> History:
    history = History("/lake/flights", "flights", lambda _path: table)
    history.renew(TOPIC_ID, ends_of(40)[0], lambda: None, 1)
    return history


def test_a_new_leader_that_does_not_know_its_end_is_asked_again() -> None:
    pauses: list[None] = []
    latest, left = ends_of(0, 39, 40, 41)
    history = History("/lake/flights", "flights", lambda _path: TABLE)
    history.renew(TOPIC_ID, latest, lambda: pauses.append(None), 3)
    assert history.seams() == {KEY: 40}
    assert (len(pauses), left) == (2, [41])


def test_a_log_that_stays_shorter_than_the_table_is_an_error() -> None:
    pauses: list[None] = []
    latest, left = ends_of(0, 39, 38)
    history = History("/lake/flights", "flights", lambda _path: TABLE)
    with pytest.raises(SourceError, match="has flights-0 up to offset 40, but its log ends at 38: records of it are"):
        history.renew(TOPIC_ID, latest, lambda: pauses.append(None), 3)
    assert (len(pauses), left, history.is_known) == (2, [], False)


def test_what_is_in_a_gap_is_the_logs_and_what_the_log_lacks_is_lost() -> None:
    tasks, parts = known().split({KEY: 0}, {KEY: 45})
    assert [(each.start, each.end) for each in tasks] == [(10, 20), (30, 40)]
    assert [(each.start, each.end, each.is_gap) for each in parts] == [(0, 10, True), (20, 30, True), (40, 45, False)]
    why = "were deleted (by retention), and the archive's table /lake has a gap there"
    told = [each.lost(25, "/lake") for each in parts]
    assert told == [f"flights-0: the offsets 0 to 9 {why}", f"flights-0: the offsets 20 to 24 {why}", None]
    what = "flights-0: the offsets 40 to 44 were deleted (by retention) before they were read"
    assert parts[2].lost(99, "/lake") == what


@pytest.mark.parametrize(("log_start", "first"), [(0, 0), (7, 7), (10, 10), (35, 10), (44, 10)])
def test_the_first_offset_is_that_of_the_log_or_behind_the_first_gap(log_start: int, first: int) -> None:
    assert known().first({KEY: log_start}) == {KEY: first}
    unknown = dataclasses.replace(TABLE, files=(FileBounds(*[(float("-inf"), float("inf"))] * 3),))
    assert known(unknown).first({KEY: log_start}) == {KEY: first}


def test_a_partition_that_the_table_does_not_know_is_the_logs() -> None:
    history, new = known(), ("flights", 1)
    assert history.first({new: 5}) == {new: 5}
    assert history.split({new: 5}, {new: 9}) == ([], [LogPart(new, 5, 9)])


@pytest.mark.parametrize(("offset", "gap"), [(0, (0, 10)), (4, (4, 10)), (10, None), (29, (29, 30)), (39, None)])
def test_a_start_in_a_gap(offset: int, gap: tuple[int, int] | None) -> None:
    assert known().gap_at(KEY, offset) == gap


def test_gaps_of_other_topics_are_not_this_ones() -> None:
    marks = {"headwater.archive/t/0": 9, "headwater.archive/u/0/gap/0": 4, "headwater.archive/t/1/gap/5": 6}
    assert recorded_gaps(marks, "t") == {1: ((5, 6),)}
