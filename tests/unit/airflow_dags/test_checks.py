"""What fails a run after its load."""

from __future__ import annotations

from typing import Any

import pytest
from headwater_checks import problems
from headwater_settings import Check

GOOD: dict[str, Any] = {
    "topic": "flights", "outcome": "loaded", "rows": 10, "refused": 0, "late": 2,
    "offsets": {"0": [[5, 12]], "1": [[0, 4]]}, "gaps": {},
}  # fmt: skip


def test_a_good_load_and_one_without_anything_new_have_no_problem() -> None:
    assert problems([GOOD, {"topic": "weather", "outcome": "nothing new"}], ["flights", "weather"], Check()) == []


@pytest.mark.parametrize(
    ("change", "check", "message"),
    [
        ({}, Check(rows_min=11), "flights: 10 rows, expected at least 11"),
        ({"refused": 3}, Check(refused_max=2), "flights: 3 rows could not be decoded, allowed are 2"),
        ({}, Check(late_max=1), "flights: 2 rows were late, allowed are 1"),
        ({"gaps": {"1": [[4, 9]]}}, Check(), "flights: 5 offsets were gone by retention (partition 1: 4 to 8)"),
        ({"offsets": {"0": [[5, 12]]}}, Check(), "flights: 10 rows from 7 offsets"),
        ({"error": "the disk is full"}, Check(), "flights: the disk is full"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], check: Check, message: str) -> None:
    assert problems([GOOD | change], ["flights"], check) == [message]


def test_what_is_allowed_is_no_problem() -> None:
    check = Check(refused_max=None, gaps="allow", late_max=2, fresh_s=60)
    assert problems([GOOD | {"refused": 10, "gaps": {"1": [[4, 9]]}}], ["flights"], check, 59.0) == []


def test_a_load_that_is_too_late_and_a_topic_without_outcome_are_named() -> None:
    found = problems([GOOD], ["flights", "weather"], Check(fresh_s=60), 90.0)
    assert found == [
        "weather: the load says nothing about it",
        "loaded 90 s after the interval's end, allowed are 60 s",
    ]
