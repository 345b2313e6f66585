"""The settings of Spark sessions."""

from __future__ import annotations

import pytest

from headwater.pipelines.spark.session import COLLECTOR, JAVA_OPTIONS_CONF, QUICK_COMPILER, settings


def test_only_sessions_of_few_rows_do_without_the_slow_compiler() -> None:
    usual = settings()[JAVA_OPTIONS_CONF].split()
    assert QUICK_COMPILER not in usual
    assert set(settings(few_rows=True)[JAVA_OPTIONS_CONF].split()) == {*usual, QUICK_COMPILER}


def test_what_the_user_sets_wins() -> None:
    assert settings({"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_java_options_of_the_user_stand_behind_ours_where_the_jvm_lets_them_win() -> None:
    ours = settings(few_rows=True)[JAVA_OPTIONS_CONF]
    given = {JAVA_OPTIONS_CONF: "-Xss4m -Duser.timezone=Europe/Rome"}
    assert "log4j2.configurationFile" in ours
    assert settings(given, few_rows=True)[JAVA_OPTIONS_CONF] == f"{ours} -Xss4m -Duser.timezone=Europe/Rome"


def test_a_session_on_one_machine_has_the_collector_of_the_least_work() -> None:
    assert COLLECTOR in settings(environment={})[JAVA_OPTIONS_CONF].split()
    assert COLLECTOR not in settings({"spark.master": "spark://there:7077"}, environment={})[JAVA_OPTIONS_CONF]


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"])
def test_a_collector_that_somebody_has_chosen_is_the_only_one(name: str) -> None:
    # Told of two, a JVM does not start.
    assert COLLECTOR not in settings(environment={name: "-Xmx1g -XX:+UseG1GC"})[JAVA_OPTIONS_CONF]
    assert COLLECTOR in settings(environment={name: "-XX:+UseStringDeduplication"})[JAVA_OPTIONS_CONF]
    own = settings({JAVA_OPTIONS_CONF: "-XX:+UseZGC"}, environment={})[JAVA_OPTIONS_CONF]
    assert own.endswith("-XX:+UseZGC")
    assert COLLECTOR not in own
