"""Thousands of changes of SQL with state: what `plan` calls safe is told apart, without Spark, by a model of the state.

`tests/spark/pipelines/test_safe_changes.py` runs a sample of the pairs that are called safe. `make plan-fuzz` runs both
with more: here ten thousand changes, all of them classified.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzzed_stages import Fuzzed, classify, fuzzed_change, fuzzed_pair, shape_of

IS_LONG = bool(os.environ.get("PLAN_FUZZ_PAIRS"))
CHANGES = 10_000 if IS_LONG else 4_000
CHANGES_FEW = 150
CHANGES_OF_ONE = 5
"""One after the other, each of what the one before has made: most of the time goes into taking stages apart."""
EQUAL_TRIED = 10
"""One in so many of the changes that leave the state as it is: they show that some changes are called safe."""


def is_near(before: Fuzzed, now: Fuzzed) -> bool:
    """Whether the states differ in one part: an analysis that overlooks a part calls these changes safe first."""
    return sum(was != became for was, became in zip(before.state(), now.state(), strict=True)) == 1


def classified(count: int) -> tuple[int, set[tuple[str, str]]]:
    """How many of so many changes are safe, and the distinct pairs of shapes among them.

    But for a long run, only those are classified that are near enough to be called safe by mistake, and some safe ones.
    """
    chance = random.Random(20261124)
    safe, shapes, equal = 0, set(), 0
    for number in range(count):
        if number % CHANGES_OF_ONE == 0:
            before, now = fuzzed_pair(chance)
        else:
            before, now = now, fuzzed_change(chance, now)
        is_equal = before.state() == now.state()
        equal += is_equal
        is_tried = equal % EQUAL_TRIED == 1 if is_equal else is_near(before, now)
        if (is_tried or IS_LONG) and classify(before, now):
            safe += 1
            shapes.add((shape_of(before), shape_of(now)))
            assert is_equal, (before.sql(), now.sql())
    return safe, shapes


def test_no_change_of_what_the_state_holds_is_called_safe() -> None:
    safe, shapes = classified(CHANGES_FEW)
    assert safe > 0
    assert shapes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_change_of_thousands_that_touches_the_state_is_called_safe() -> None:
    safe, shapes = classified(CHANGES)
    assert safe >= CHANGES // 40
    assert len(shapes) >= CHANGES // 40
