"""Which records of an input are late: those whose rows the stage's first stateful operator drops. Pure.

Spark drops a row whose event time is at or before the watermark; for a window, the event time is its end. Later
operators drop none of these rows: what passes the first one is ahead of the watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.pipelines.definition.graph import input_views
from headwater.pipelines.definition.sources import TopicSource, TopicWatermark
from headwater.pipelines.definition.stage import Stage
from headwater.pipelines.definition.steps import DeduplicateStep, PythonStep, SqlStep, StatefulStep, Step, WatermarkStep
from headwater.pipelines.sql_text.event_time import EVENT_TIME, NotFollowedError, followed

__all__ = ["LateRule", "NoLateRuleError", "late_rule"]

NOTHING_DROPPED = "a topic of late records stays empty: leave late out"


class NoLateRuleError(Exception):
    """The late records of a stage cannot be told; with a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class LateRule:
    """How the rows that reach the first stateful operator are made of records, and what drops them.

    `selects` are SQL texts, one after the other, each with the names under which it reads the rows before it. The rows
    of the last one, or of the input if there is none, have the event time in the column `by`.
    """

    source: TopicSource
    watermark: TopicWatermark
    topic: str
    selects: tuple[tuple[tuple[str, ...], str], ...]
    by: str

    @property
    def has_sessions(self) -> bool:
        """Whether the operator groups rows by session windows."""
        return any("session_window(" in text and f"`{EVENT_TIME}`" in text for _, text in self.selects)


def late_rule(stage: Stage) -> LateRule | None:
    """The rule of a stage's input with `late`; None without any. Raises NoLateRuleError.

    >>> source = {"topic": "t", "watermark": {"column": "at", "delay": "1 hour", "late": "l"}}
    >>> steps = [{"deduplicate": {"by": ["id"]}}]
    >>> rule = late_rule(Stage.model_validate({"name": "s", "from": source, "steps": steps, "to": {"topic": "u"}}))
    >>> rule.selects, rule.by
    ((), 'at')
    """
    given = [source for source in stage.topic_inputs if source.watermark is not None and source.watermark.late]
    if not given:
        return None
    if len(stage.inputs) > 1:
        raise NoLateRuleError(
            "late rows are told in stages with one input, and this stage joins several",
            "leave late out, or keep late rows in a stage before this one",
        )
    if stage.mode == "complete":
        raise NoLateRuleError("mode: complete keeps every group, and Spark drops no late rows", NOTHING_DROPPED)
    (source,) = given
    mark = source.watermark
    assert mark is not None
    assert mark.late is not None
    selects, by = _until_state(stage, mark.column)
    return LateRule(source, mark, mark.late, tuple(selects), by)


def _until_state(stage: Stage, column: str) -> tuple[list[tuple[tuple[str, ...], str]], str]:
    """The selects up to the first operator, and the column with the event time."""
    selects: list[tuple[tuple[str, ...], str]] = []
    names: Sequence[str] = [column.lower()]
    for position, step in enumerate(stage.transforms[: stage.stream_steps]):
        if isinstance(step, SqlStep):
            views = input_views(stage, position)
            try:
                found = followed(step.sql, views, names)
            except NotFollowedError as error:
                raise NoLateRuleError(
                    f"which rows are late cannot be told from the SQL: {error}",
                    "late needs a stage whose first stateful operator is a GROUP BY with a window of the watermark's "
                    "column in a SELECT of its own, deduplicate, or stateful by event_time",
                ) from None
            selects.append((tuple(views), found.text))
            if found.keeps_state:
                return selects, EVENT_TIME
            names = sorted(found.names, key=lambda name: (name != column.lower(), name))
            continue
        _check_operator(step)
        if not names:
            raise NoLateRuleError(
                f"the steps before {'deduplicate' if isinstance(step, DeduplicateStep) else 'stateful'} do not keep "
                f"the watermark's column '{column}'",
                f"select {column} unchanged",
            )
        return selects, names[0]
    raise NoLateRuleError("the stage keeps no state, and Spark drops no late rows", NOTHING_DROPPED)


def _check_operator(step: Step) -> None:
    """Raises NoLateRuleError for a step that is no operator which drops rows by the input's watermark."""
    if isinstance(step, PythonStep):
        raise NoLateRuleError(
            "which rows are late cannot be told: a Python step comes before the first stateful operator",
            "write the rows to a topic first, and let the stage that reads it have the watermark",
        )
    if isinstance(step, WatermarkStep) or (isinstance(step, DeduplicateStep) and step.deduplicate.within is not None):
        raise NoLateRuleError("the steps set another watermark than that of the input", "leave one of them out")
    if isinstance(step, StatefulStep) and step.stateful.time != "event_time":
        raise NoLateRuleError(
            f"a processor with time: {step.stateful.time} gets late rows, too: Spark drops none", NOTHING_DROPPED
        )
