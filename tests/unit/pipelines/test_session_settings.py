"""The settings of Spark sessions."""

from __future__ import annotations

from pipelines.session import JAVA_OPTIONS_CONF, QUICK_COMPILER, settings


def test_only_sessions_of_few_rows_do_without_the_slow_compiler() -> None:
    usual = settings()[JAVA_OPTIONS_CONF].split()
    assert QUICK_COMPILER not in usual
    assert settings(few_rows=True)[JAVA_OPTIONS_CONF].split() == [*usual, QUICK_COMPILER]


def test_what_the_user_sets_wins() -> None:
    assert settings({"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_java_options_of_the_user_stand_behind_ours_where_the_jvm_lets_them_win() -> None:
    ours = settings(few_rows=True)[JAVA_OPTIONS_CONF]
    given = {JAVA_OPTIONS_CONF: "-Xss4m -Duser.timezone=Europe/Rome"}
    assert "log4j2.configurationFile" in ours
    assert settings(given, few_rows=True)[JAVA_OPTIONS_CONF] == f"{ours} -Xss4m -Duser.timezone=Europe/Rome"
