"""The checker of the unified table finds each kind of broken history, and nothing in a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.kill.claims import Claims
from tests.end_to_end.kill.unified_checker import NEVER, ClaimedRecords, GrowingLines, Record, reason, unequal_sides

WHOLE: list[Record] = [(0, 0, "0"), (0, 1, "3"), (1, 0, "1"), (1, 5, "t7")]


def claimed(*more: str) -> ClaimedRecords:
    records = ClaimedRecords()
    records.learn(["due 0 0 0", "due 0 1 3", "due 1 0 1", "aborted t5", *more])
    return records


def faults(rows: list[Record], records: ClaimedRecords | None = None) -> list[str]:
    records = records or claimed()
    return records.faults(rows, records.expected())


def test_a_whole_history_has_no_fault_also_with_records_that_are_not_acknowledged_yet() -> None:
    assert faults(WHOLE) == []


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([*WHOLE, (0, 1, "3")], "1 there more than once: [(0, 1)]"),
        (WHOLE[1:], "1 missing: [(0, 0)]"),
        ([], "3 missing: [(0, 0), (0, 1), (1, 0)]"),
        ([*WHOLE[1:], (0, 0, "6")], "1 of another value: [(0, 0, '6')]"),
        ([*WHOLE, (1, 2, "t5")], "1 of an aborted transaction: [(1, 2, 't5')]"),
        ([*WHOLE, (0, 2, "3")], "1 values at several offsets: ['3']"),
    ],
)
def test_a_doubled_a_missing_an_aborted_record_and_a_wrong_value_are_found(rows: list[Record], fault: str) -> None:
    assert faults(rows) == [fault]


def test_what_one_look_has_found_must_be_in_each_later_one_with_the_same_value() -> None:
    records = claimed()
    assert faults(WHOLE, records) == []
    assert faults(WHOLE[:3], records) == ["1 missing: [(1, 5)]"]
    assert faults([*WHOLE[:3], (1, 5, "t8")], records) == ["1 of another value: [(1, 5, 't8')]"]


def test_what_becomes_due_while_a_statement_runs_may_be_missing_but_not_wrong() -> None:
    records = claimed()
    expected = records.expected()
    records.learn(["due 1 6 4", "aborted t8"])
    assert records.faults(WHOLE, expected) == []
    assert records.faults([*WHOLE, (1, 6, "5")], expected) == ["1 of another value: [(1, 6, '5')]"]
    assert faults([*WHOLE, (1, 6, "5")], claimed("due 1 6 4")) == ["1 of another value: [(1, 6, '5')]"]
    assert records.faults([*WHOLE, (1, 7, "t8")], expected)[-1] == "1 of an aborted transaction: [(1, 7, 't8')]"


def test_two_states_in_one_statement_are_found() -> None:
    assert unequal_sides([(0, 0, "0", "0")]) == []
    one_side: list[tuple[int, int, str, str]] = [(0, 0, "0", "0"), (0, 1, "3", None)]  # type: ignore[list-item]
    assert unequal_sides(one_side) == ["1 rows differ between two looks of one statement: [(0, 1)]"]


def test_a_line_that_is_not_whole_yet_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    path.write_bytes(b"due 0 0 0\ndue 0 1")
    lines = GrowingLines(path)
    assert lines.next() == ["due 0 0 0"]
    with path.open("ab") as file:
        file.write(b" 3\n")
    assert lines.next() == ["due 0 1 3"]
    assert lines.next() == []


def test_a_record_is_due_when_the_transaction_that_was_open_beside_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    claims, lines = Claims(path), GrowingLines(path)
    claims.acknowledged(0, 0, "0")
    claims.begins()
    claims.acknowledged(0, 9, "3")  # behind the transaction that is open
    assert lines.next() == []
    claims.completed()
    assert lines.next() == ["due 0 0 0"]
    claims.completed()
    assert lines.next() == []
    claims.begins()
    assert lines.next() == []
    claims.completed()
    claims.aborts("t5")
    assert lines.next() == ["due 0 9 3", "aborted t5"]
    assert claims.due == 2


def test_errors_that_say_that_records_are_lost_are_faults_and_a_broker_that_is_away_is_none() -> None:
    assert NEVER.search("the offsets 10 to 14 of flights-0 were deleted by retention")
    assert not NEVER.search("cannot read from 127.0.0.1:9092: no broker answers")
    assert reason("o1\nat x\nCaused by: a: b\n\tat y\nCaused by: c: d\n\tat z") == "Caused by: c: d"
    assert reason("no broker answers\nmore") == "no broker answers"
    assert reason("") == ""
