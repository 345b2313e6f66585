"""Errors of Spark's that say in their text alone what the session lacks."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from headwater.pipelines.sql.statement_errors import is_mistake, missing_format, missing_relation_of_plan

TEXT = (
    "An error occurred while calling o77.load.\n: Exc: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: {}. Make"
)


@pytest.mark.parametrize(("name", "line"), [("delta", "has no Delta"), ("headwater", "Python has no Headwater")])
def test_a_missing_format_is_one_line(name: str, line: str) -> None:
    told = missing_format(RuntimeError(TEXT.format(name)))
    assert told is not None
    assert line in told
    assert "\n" not in told


def test_another_format_is_sparks_to_report() -> None:
    assert missing_format(RuntimeError(TEXT.format("csvv"))) is None


def test_a_broker_that_does_not_answer_while_a_statement_is_analysed_is_no_mistake_in_it() -> None:
    text = "Traceback\nheadwater.pipelines.datasource.errors.{}: it is so"
    assert is_mistake(AnalysisException("no such column"))
    assert is_mistake(AnalysisException(text.format("OptionError")))
    assert not is_mistake(AnalysisException(text.format("SourceError")))
    assert not is_mistake(ValueError("no such column"))


def test_the_relation_that_a_plan_misses_is_read_from_its_text() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `log`.`a``.b` cannot be found. Verify"
    assert missing_relation_of_plan(text) == ("log", "a`.b")
    assert missing_relation_of_plan("== Physical Plan ==") is None
