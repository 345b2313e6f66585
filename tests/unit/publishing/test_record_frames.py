from __future__ import annotations

import pytest

from headwater.pipelines.publishing.record_frames import Division, changing_expression


@pytest.mark.parametrize(
    "name",
    ["CurrentDate", "CurrentTimestamp", "CurrentTime", "CurrentUser", "CurrentDatabase", "Now", "LocalTimestamp"],
)
def test_what_is_of_the_moment_changes_though_it_is_deterministic_to_spark(name: str) -> None:
    assert changing_expression([("Concat", True), (name, True)]) == name


def test_the_innermost_expression_that_is_not_deterministic_is_named() -> None:
    assert changing_expression([("Rand", False), ("Cast", False), ("Alias", False)]) == "Rand"
    assert changing_expression([("AttributeReference", True), ("NowAndThen", True)]) is None


def test_a_division_counts_all_records() -> None:
    assert Division((3, 0, 4), "aa").rows == 7
