"""Ten thousand changes of SQL with state: what `plan` calls safe is told apart, without Spark, by a model of the state.

`tests/spark/pipelines/test_safe_changes.py` runs a sample of the pairs that are called safe.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzzed_stages import classify, fuzzed_change, fuzzed_pair, shape_of

CHANGES = 10_000
CHANGES_FEW = 150
CHANGES_OF_ONE = 5
"""One after the other, each of what the one before has made: most of the time goes into taking stages apart."""


def classified(count: int) -> tuple[int, set[tuple[str, str]]]:
    """How many of so many changes are safe, and the distinct pairs of shapes among them."""
    chance = random.Random(20261124)
    safe, shapes = 0, set()
    for number in range(count):
        if number % CHANGES_OF_ONE == 0:
            before, now = fuzzed_pair(chance)
        else:
            before, now = now, fuzzed_change(chance, now)
        is_safe = classify(before, now)
        if is_safe:
            safe += 1
            shapes.add((shape_of(before), shape_of(now)))
            assert before.state() == now.state(), (before.sql(), now.sql())
    return safe, shapes


def test_no_change_of_what_the_state_holds_is_called_safe() -> None:
    safe, shapes = classified(CHANGES_FEW)
    assert safe > 0
    assert shapes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_change_of_ten_thousand_that_touches_the_state_is_called_safe() -> None:
    safe, shapes = classified(CHANGES)
    assert safe >= 300
    assert len(shapes) >= 300
