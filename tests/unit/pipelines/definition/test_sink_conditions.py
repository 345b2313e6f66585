"""`when` of sinks of every kind: plan, record, checks, and what another condition means for a deployed stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.reference import PARTS
from headwater.pipelines.deployment.changes import Change, Deployed, Effect, changes_of_pipeline
from headwater.pipelines.deployment.stage_record import record_of


def one(sink: str, mode: str = "append") -> str:
    """A pipeline of one stage."""
    stage = f"  - name: s\n    from: {{topic: a}}\n    mode: {mode}\n    to: {sink}\n"
    return f"pipeline: p\ntopics: {{a: {{value: string}}}}\nstages:\n{stage}"


SINKS = {
    "topic": "{topic: out, key: value, when: value > 'a'}",
    "delta": "{delta: x, partition_by: [value AS v], merge: {keys: v, delete_when: value = 'd'}, when: value > 'a'}",
    "files": "{files: out, format: json, when: value > 'a'}",
    "jdbc": "{jdbc: 'jdbc:x:y', table: t, keys: value, delete_when: value = 'd', when: value > 'a'}",
    "python": "{python: {file: f.py, function: f}, when: value > 'a'}",
}


def test_every_kind_of_sink_may_have_a_condition() -> None:
    assert set(SINKS) == {kind.removeprefix("to: ") for kind in PARTS if kind.startswith("to: ")}


@pytest.mark.parametrize("kind", SINKS)
def test_the_condition_of_a_sink_is_planned_recorded_and_checked(load: Callable[..., Loaded], kind: str) -> None:
    loaded = load(one(SINKS[kind]))
    assert loaded.warnings == ()
    (sink,) = loaded.pipeline.stages[0].to
    assert sink.planned(loaded.path, is_complete=False).when == "value > 'a'"
    assert sink.record(loaded.path)["more"]["when"] == "value > 'a'"
    assert next(sink.expressions()) == (("when",), "value > 'a'")
    assert len(list(sink.expressions())) == {"topic": 2, "delta": 3, "jdbc": 2}.get(kind, 1)
    (warning,) = load(one(SINKS[kind].replace("value > 'a'", "'value > > ('"))).warnings
    assert warning.field == "stages[0].to.when"
    assert (warning.line, warning.message.partition(":")[0]) == (7, "when may not be a valid SQL expression")


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_without_a_condition_receives_every_row(load: Callable[..., Loaded], kind: str) -> None:
    loaded = load(one(SINKS[kind].replace(", when: value > 'a'", "")))
    (sink,) = loaded.pipeline.stages[0].to
    assert sink.when is None
    assert sink.planned(loaded.path, is_complete=False).when is None
    assert ("when",) not in [place for place, _ in sink.expressions()]


def changes(load: Callable[..., Loaded], old: str, new: str, mode: str) -> list[Change]:
    """The changes between two sinks of a deployed stage."""
    before, now = (load(one(sink, mode)) for sink in (old, new))
    record, stage = record_of(before, before.pipeline.stages[0], {}), now.pipeline.stages[0]
    return changes_of_pipeline({"s": record_of(now, stage, {})}, {"s": Deployed(has_checkpoint=True, record=record)})


@pytest.mark.parametrize(
    ("sink", "mode", "said"),
    [
        *((sink, "append", "a replay would add the rows that were left out") for sink in SINKS.values()),
        (SINKS["delta"], "complete", "what is written stays as it is"),
        ("{delta: x, when: value > 'a'}", "append", "what is written stays as it is"),
        ("{delta: x, when: value > 'a'}", "complete", "the next micro-batch replaces the table by the rows for which"),
    ],
)
def test_another_condition_says_what_becomes_of_what_a_sink_has(
    load: Callable[..., Loaded], sink: str, mode: str, said: str
) -> None:
    for new in ("when: value > 'b'}", "when: VALUE > 'a'}"):
        (change,) = changes(load, sink, sink.replace("when: value > 'a'}", new), mode)
        assert (change.effect, change.place) == (Effect.SAFE, ("to", 0))
        assert change.what.startswith("when of ")
        assert said in change.reason
    without = sink.replace(", when: value > 'a'", "")
    assert [change.what.partition(" ")[0] for change in changes(load, without, sink, mode)] == ["when"]
    assert changes(load, sink, sink, mode) == []


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_of_an_earlier_release_has_no_condition(load: Callable[..., Loaded], kind: str) -> None:
    loaded = load(one(SINKS[kind].replace(", when: value > 'a'", "")))
    stage = loaded.pipeline.stages[0]
    before, now = record_of(loaded, stage, {}), record_of(loaded, stage, {})
    for sink in before.sinks:
        del sink["more"]["when"]
    assert changes_of_pipeline({"s": now}, {"s": Deployed(has_checkpoint=True, record=before)}) == []
