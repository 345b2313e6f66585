"""The settings of Spark sessions."""

from __future__ import annotations

from pipelines.session import QUICK_COMPILER, settings

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def test_only_sessions_of_few_rows_do_without_the_slow_compiler() -> None:
    usual = settings()[JAVA_OPTIONS].split()
    assert QUICK_COMPILER not in usual
    assert settings(few_rows=True)[JAVA_OPTIONS].split() == [*usual, QUICK_COMPILER]


def test_what_the_user_sets_wins() -> None:
    assert settings({JAVA_OPTIONS: "-Xss4m"}, few_rows=True)[JAVA_OPTIONS] == "-Xss4m"
