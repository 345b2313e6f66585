"""Which failures are tried again, how often, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.logtier.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ProducerFencedError,
    UnknownTopicError,
    broker_error,
)
from headwater.pipelines.definition import Loaded
from headwater.pipelines.engine.restarts import StageGivenUp, StageRestart, StageRestarts, decide
from headwater.pipelines.engine.supervision import restart_policy
from headwater.pipelines.engine.transient_failures import is_transient
from headwater.pipelines.errors import PipelineError, PipelineFailed, Problem

POLICY = StageRestarts(attempts=3, within_ms=10_000, backoff_ms=100, backoff_max_ms=1_000)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def test_the_pause_doubles_up_to_its_most_and_chance_only_shortens_it() -> None:
    many = StageRestarts(attempts=100, within_ms=10_000, backoff_ms=100, backoff_max_ms=1_000)
    pauses = []
    for count in (0, 1, 2, 3, 4, 40):
        decision = decide(many, [0] * count, 1, 0.0)
        assert isinstance(decision, StageRestart)
        pauses.append(decision.after_ms)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]
    for chance in (0.0, 0.3, 0.999):
        decision = decide(many, [0], 1, chance)
        assert isinstance(decision, StageRestart)
        assert 100 <= decision.after_ms <= 200


def test_after_the_limit_within_the_time_the_stage_is_given_up() -> None:
    assert decide(POLICY, [1_000, 2_000, 3_000], 4_000, 0.0) == StageGivenUp(3)


def test_restarts_of_long_ago_are_forgotten() -> None:
    assert decide(POLICY, [1_000, 2_000, 3_000], 12_500, 0.0) == StageRestart(2, 200)


def test_zero_attempts_never_restart() -> None:
    assert decide(StageRestarts(attempts=0), [], 0, 0.0) == StageGivenUp(0)


def test_a_declared_pause_longer_than_the_most_is_kept() -> None:
    assert decide(StageRestarts(backoff_ms=120_000), [], 0, 0.0) == StageRestart(1, 120_000)


def test_the_file_says_how_often_a_stage_is_restarted(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace(
        "  - name: clean\n", "  - name: clean\n    restart: {attempts: 5, within: 2 hours, backoff: 3 seconds}\n"
    )
    clean, totals = load(text).pipeline.stages
    assert restart_policy(clean, continuous=False) == StageRestarts(5, 7_200_000, 3_000)
    assert restart_policy(totals, continuous=True) == StageRestarts()
    assert restart_policy(totals, continuous=False).attempts < StageRestarts().attempts


WORKER = """\
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: Traceback:
headwater.logtier.client.errors.{cause}: {text}

The above exception was the direct cause of the following exception:

headwater.pipelines.datasource.errors.SourceError: {text}
"""


@pytest.mark.parametrize(
    "error",
    [
        BrokerConnectionError("no broker answers at b:9092 (refused)"),
        broker_error(6, "producing to t-0"),
        broker_error(15, "the coordinator"),
        caused(PipelineFailed("stage s: ..."), BrokerConnectionError("gone")),
        ConnectionRefusedError(111, "refused"),
        TimeoutError("slow"),
        Exception(WORKER.format(cause="BrokerConnectionError", text="no broker answers at b:9092")),
        Exception(WORKER.format(cause="BrokerError", text="listing: the broker answered LEADER_NOT_AVAILABLE (5)")),
        Exception("Job aborted due to stage failure: ... ExecutorLostFailure (executor 1 exited ...)"),
        Exception("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        Exception("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] ..."),
        Exception("java.net.ConnectException: Call From a to nn:8020 failed on connection exception"),
        Exception("java.sql.SQLTransientConnectionException: pool is exhausted"),
        OSError("write failed: No space left on device"),
    ],
)
def test_a_transient_failure_is_tried_again(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        PipelineError([Problem("p.yaml", 1, 1, "sql", "no such column")]),
        PipelineFailed("stage s: 3 rows do not meet the expectation paid (amount > 0)"),
        caused(PipelineFailed("stage s: another run of it has taken over"), ProducerFencedError(90, "EndTxn")),
        caused(PipelineFailed("stage s: wrong password"), AuthenticationError("SASL")),
        UnknownTopicError("there is no topic 't'"),
        broker_error(29, "producing to t-0"),
        ValueError("the user's function"),
        Exception("headwater.pipelines.datasource.errors.DataLossError: t-0 begins at 7; set failOnDataLoss=false"),
        Exception(WORKER.format(cause="AuthenticationError", text="no broker answers at b:9092: wrong password")),
        Exception("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column cannot be resolved"),
        Exception("ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_a_mistake_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)


def test_a_chain_of_causes_without_end_is_left() -> None:
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert not is_transient(one)
