"""Decides whether the output of Spark's tasks may be committed. Pure.

A broker detects duplicates only of a producer's last five batches, and a second attempt of a task may hold other rows
than the first. So a transaction is committed only after a clean run: each task ran once, and wrote all its records.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.client.transaction_codes import Reaction, reaction

__all__ = ["StageAttempt", "TaskReport", "Todo", "Verdict", "judge"]

#: Error code of a report on a failure without a broker's response: a lost connection, a timeout.
NO_ANSWER: Final = -1


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The result of the task of one output partition.

    `target` is the number of the output partition among all topics' partitions; `first_attempt` is false for a task
    that Spark started again, which therefore wrote nothing.
    """

    target: int
    stage_id: int
    first_attempt: bool
    records: int
    next_sequence: int
    error_code: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """The status tracker's data of the Spark stage whose tasks wrote."""

    attempt: int
    tasks: int
    completed: int
    failed: int

    @property
    def is_known(self) -> bool:
        """Whether the tracker, which lags behind, shows the end of the stage."""
        return self.completed >= self.tasks > 0


class Todo(enum.Enum):
    """The next action."""

    COMMIT = "commit"
    #: Abort, request a new epoch, and write the batch again.
    REDO = "redo"
    #: Another producer has fenced this one: end.
    FENCED = "fenced"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The next action and its reason."""

    todo: Todo
    reason: str = ""


def judge(
    reports: Sequence[TaskReport], stage: StageAttempt | None, targets: Sequence[str], expected: Mapping[str, int]
) -> Verdict:
    """Judge a run.

    Args:
        stage: None if no task ran.
        targets: The topic of each output partition.
        expected: Number of records to write, by topic.

    >>> judge([TaskReport(0, 4, True, 2, 2)], StageAttempt(0, 1, 1, 0), ["t"], {"t": 2}).todo
    <Todo.COMMIT: 'commit'>
    >>> judge([TaskReport(0, 4, False, 0, 0)], StageAttempt(0, 1, 1, 1), ["t"], {"t": 2})
    Verdict(todo=<Todo.REDO: 'redo'>, reason='a task ran more than once')
    """
    for report in reports:
        if report.error_code:
            return _about_error(report)
    if any(not report.first_attempt for report in reports):
        return Verdict(Todo.REDO, "a task ran more than once")
    if reports and (stage is None or not stage.is_known):
        return Verdict(Todo.REDO, "Spark did not tell whether each task ran once")
    if stage is not None and stage.attempt:
        return Verdict(Todo.REDO, "Spark ran the stage a second time")
    if stage is not None and stage.failed:
        return Verdict(Todo.REDO, f"{stage.failed} tasks failed")
    if reports and sorted(report.target for report in reports) != list(range(len(targets))):
        return Verdict(Todo.REDO, f"{len(reports)} of {len(targets)} tasks reported")
    written = dict.fromkeys(expected, 0)
    for report in reports:
        written[targets[report.target]] = written.get(targets[report.target], 0) + report.records
    for topic, count in expected.items():
        if written[topic] != count:
            return Verdict(
                Todo.FAIL,
                f"{count} records were to be written to {topic}, {written[topic]} were: the rows of the micro-batch "
                "changed while it was written",
            )
    return Verdict(Todo.COMMIT)


def _about_error(report: TaskReport) -> Verdict:
    if report.error_code == NO_ANSWER:
        return Verdict(Todo.FAIL, report.error)
    match reaction(report.error_code):
        case Reaction.FENCED:
            return Verdict(Todo.FENCED, report.error)
        case Reaction.FATAL:
            return Verdict(Todo.FAIL, report.error)
        case _:
            return Verdict(Todo.REDO, report.error)
