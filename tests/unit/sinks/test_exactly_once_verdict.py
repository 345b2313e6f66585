"""Whether a run of Spark's tasks may be committed: only if each ran once and wrote all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headwater.logtier.client.transaction_codes import Reaction, reaction
from headwater.pipelines.sinks.exactly_once.exactly_once_verdict import NO_ANSWER, StageAttempt, TaskReport, Todo, judge

TARGETS = ["t", "t", "d"]
CLEAN = [TaskReport(0, 9, True, 5, 5), TaskReport(1, 9, True, 0, 0), TaskReport(2, 9, True, 1, 1)]
EXPECTED = {"t": 5, "d": 1}
STAGE = StageAttempt(attempt=0, tasks=3, completed=3, failed=0)


def changed(position: int, **fields: object) -> list[TaskReport]:
    return [replace(report, **fields) if report.target == position else report for report in CLEAN]  # type: ignore[arg-type]


def test_a_clean_run_is_committed() -> None:
    assert judge(CLEAN, STAGE, TARGETS, EXPECTED).todo is Todo.COMMIT
    assert judge(list(reversed(CLEAN)), STAGE, TARGETS, EXPECTED).todo is Todo.COMMIT


def test_nothing_to_write_is_committed_without_a_stage() -> None:
    assert judge([], None, TARGETS, {}).todo is Todo.COMMIT


@pytest.mark.parametrize(
    ("reports", "stage", "reason"),
    [
        (changed(1, first_attempt=False), STAGE, "a task ran more than once"),
        (CLEAN, replace(STAGE, attempt=1), "a second time"),
        (CLEAN, replace(STAGE, failed=1), "1 tasks failed"),
        (CLEAN, replace(STAGE, completed=2), "did not tell"),
        (CLEAN, StageAttempt(0, 0, 0, 0), "did not tell"),
        (CLEAN, None, "did not tell"),
        (CLEAN[:2], STAGE, "2 of 3 tasks"),
        ([*CLEAN[:2], CLEAN[1]], STAGE, "3 of 3 tasks"),
        (changed(0, error_code=47, error="old epoch"), STAGE, "old epoch"),
        (changed(0, error_code=48, error="timed out"), STAGE, "timed out"),
        (changed(0, error_code=45, error="sequence"), STAGE, "sequence"),
        (changed(0, error_code=120, error="abortable"), STAGE, "abortable"),
    ],
    ids=["retried or speculative task", "second stage attempt", "failed task", "tracker lags", "tracker knows nothing",
         "no stage", "a report is missing", "a report twice", "invalid epoch", "invalid state", "out of order",
         "abortable"],
)  # fmt: skip
def test_anything_else_is_written_anew(reports: Sequence[TaskReport], stage: StageAttempt | None, reason: str) -> None:
    verdict = judge(reports, stage, TARGETS, EXPECTED)
    assert verdict.todo is Todo.REDO
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("code", "todo"),
    [(90, Todo.FENCED), (10, Todo.FAIL), (29, Todo.FAIL), (53, Todo.FAIL), (NO_ANSWER, Todo.FAIL)],
    ids=["fenced", "record too large", "topic not allowed", "transactional id not allowed", "no broker answers"],
)
def test_what_another_attempt_does_not_mend_ends_the_stage(code: int, todo: Todo) -> None:
    verdict = judge(changed(2, error_code=code, error="why"), STAGE, TARGETS, EXPECTED)
    assert (verdict.todo, verdict.reason) == (todo, "why")


def test_fewer_records_than_were_counted_are_not_committed() -> None:
    verdict = judge(changed(0, records=4), STAGE, TARGETS, EXPECTED)
    assert verdict.todo is Todo.FAIL
    assert "5 records were to be written to t, 4 were" in verdict.reason
    assert judge([], None, TARGETS, EXPECTED).todo is Todo.FAIL


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Reaction.GO_ON),
        (51, Reaction.WAIT),
        (14, Reaction.RETRY),
        (15, Reaction.FIND_COORDINATOR),
        (16, Reaction.FIND_COORDINATOR),
        (3, Reaction.RETRY),
        (6, Reaction.RETRY),
        (47, Reaction.ABORT),
        (48, Reaction.ABORT),
        (49, Reaction.ABORT),
        (59, Reaction.ABORT),
        (120, Reaction.ABORT),
        (90, Reaction.FENCED),
        (30, Reaction.FATAL),
        (50, Reaction.FATAL),
        (53, Reaction.FATAL),
        (9999, Reaction.FATAL),
    ],
)
def test_what_is_done_about_an_error_code(code: int, expected: Reaction) -> None:
    assert reaction(code) is expected


@pytest.mark.parametrize(("code", "expected"), [(47, Reaction.FENCED), (90, Reaction.FENCED), (48, Reaction.FATAL)])
def test_a_refused_epoch_ends_the_producer_so_that_two_never_take_turns(code: int, expected: Reaction) -> None:
    assert reaction(code, initialising=True) is expected
