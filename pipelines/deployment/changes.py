"""The effect of a deployed stage's change on its checkpoint: continue, start anew, or reset required. Pure.

Comparing records (`headwater.pipelines.deployment.stage_record`) finds changes that Spark would refuse or, worse,
silently accept (such as another grouping key of the same type), before anything is modified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headwater.pipelines.definition import interval_ms
from headwater.pipelines.deployment.effects import Difference, Effect, difference, shown, without
from headwater.pipelines.deployment.recorded_databases import aligned, aligned_tables, is_untold, url_of
from headwater.pipelines.deployment.sink_changes import sink_changes
from headwater.pipelines.deployment.stage_record import SHUFFLE_PARTITIONS, StageRecord
from headwater.pipelines.deployment.state_proof import StateForm, state_form

__all__ = ["Change", "Deployed", "Effect", "changes_of_pipeline", "changes_of_stage"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the deployed stage and the stage in the file.

    `place` is its path within the stage: `("from", 0, "topic")`; empty for the stage as a whole.
    """

    stage: str
    effect: Effect
    what: str
    reason: str
    place: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.effect.value}: {self.what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Deployed:
    """The state folder's data of a stage.

    `topics` are the topics whose offsets its checkpoint holds; `waits` is a micro-batch that is planned and not done.
    """

    has_checkpoint: bool
    record: StageRecord | None = None
    topics: frozenset[str] = frozenset()
    waits: int | None = None


def changes_of_pipeline(stages: Mapping[str, StageRecord], deployed: Mapping[str, Deployed]) -> list[Change]:
    """Every change, in the order of the file; removed stages come last."""
    found: list[Change] = []
    gone = {name: state for name, state in deployed.items() if name not in stages}
    for name, record in stages.items():
        state = deployed.get(name, Deployed(has_checkpoint=False))
        if state.has_checkpoint:
            found += changes_of_stage(name, state, record)
        else:
            found.append(_new(name, record, gone))
    for name, state in gone.items():
        if state.has_checkpoint:
            reason = "the stage is not in the file any more; its checkpoint, its topics and its tables stay as they are"
            found.append(Change(name, Effect.SAFE, "stage removed", reason))
    return found


def _new(name: str, record: StageRecord, gone: Mapping[str, Deployed]) -> Change:
    starts = ", ".join(f"{each['target']} from {each['start'] or 'its beginning'}" for each in record.inputs)
    for other, state in gone.items():
        before = state.record
        if before is None or not state.has_checkpoint:
            continue
        if (aligned(before.inputs, record.inputs), before.steps) == (record.inputs, record.steps):
            reason = (
                f"it is the stage {other} under another name, and starts anew: {starts}; what {other} has written "
                f"is written once more. Name it {other} to go on"
            )
            return Change(name, Effect.NEW_STATE, "stage renamed", reason)
    return Change(name, Effect.NEW_STATE, "new stage", f"it has no checkpoint and starts with {starts}")


def changes_of_stage(name: str, deployed: Deployed, now: StageRecord) -> list[Change]:
    """The changes of a stage that has a checkpoint."""
    before = deployed.record
    if before is None:
        return list(_by_topics(name, deployed.topics, now))
    is_stateful = before.is_stateful if before.is_stateful is not None else _may_keep_state(before)
    unknown = list(_unknown_databases(before, now))
    before = dataclasses.replace(
        before,
        inputs=aligned(before.inputs, now.inputs),
        sinks=aligned(before.sinks, now.sinks),
        declared=aligned_tables(before.declared, now.declared),
    )
    found = [
        *unknown,
        *_inputs(before, now, is_stateful=is_stateful),
        *_declared(before, now, is_stateful=is_stateful),
        *_watermarks(before, now, is_stateful=is_stateful),
        *_late_records(before, now),
        *_steps(before, now, is_stateful=is_stateful),
        *_mode(before, now, is_stateful=is_stateful),
        *sink_changes(before, now),
        *_rest(before, now),
    ]
    changes = [Change(name, effect, what, reason, place) for effect, what, reason, place in found]
    if deployed.waits is not None and changes and all(change.effect is Effect.SAFE for change in changes):
        reason = (
            f"micro-batch {deployed.waits} is planned and not done: it runs again, with its records and these changes; "
            "what it has written already may differ. Run the file as it was to its end first, to keep them apart"
        )
        changes.append(Change(name, Effect.SAFE, "batch under way", reason))
    return changes


def _may_keep_state(record: StageRecord) -> bool:
    """Whether a stage may keep state, for a checkpoint that does not show it."""
    known = all(
        step["kind"] == "watermark" or step["of_batch"] or (step["kind"] == "sql" and step["outputs"] is not None)
        for step in record.steps
        if step["kind"] in ("watermark", "sql", "python")
    )
    return bool(record.operators) or not known


def _by_topics(name: str, topics: frozenset[str], now: StageRecord) -> Iterator[Change]:
    """Changes of a stage whose checkpoint has no record: only its topics are known."""
    read = [each["target"] for each in now.inputs if each["kind"] == "topic"]
    others = sorted(topics - set(read))
    if others:
        instead = f", not '{read[0]}'" if read else ""
        place = ("from", 0, "topic") if read else ("from", 0)
        what, reason = "other input", f"the checkpoint of stage {name} has read the topic '{others[0]}'{instead}"
        yield Change(name, Effect.NEEDS_RESET, what, reason, place)


# -- inputs --------------------------------------------------------------------------------------------------------


def _inputs(before: StageRecord, now: StageRecord, *, is_stateful: bool) -> Iterator[Difference]:
    old = [(each["kind"], each["target"]) for each in before.inputs]
    new = [(each["kind"], each["target"]) for each in now.inputs]
    if old != new:
        if sorted(old) == sorted(new):
            reason = (
                "the checkpoint keeps offsets by the place of the input, and would read one by the offsets of another"
            )
            yield Effect.NEEDS_RESET, "order of inputs", reason, ("from",)
            return
        for position, (kind, target) in enumerate(new):
            if position >= len(old):
                reason = f"the checkpoint has no offsets of {kind} '{target}'"
                yield Effect.NEEDS_RESET, "input added", reason, ("from", position)
            elif (kind, target) != old[position]:
                read = f"{old[position][0]} '{old[position][1]}'"
                reason = f"the checkpoint holds the place in {read}, not in {kind} '{target}'"
                yield Effect.NEEDS_RESET, "other input", reason, ("from", position, kind)
        for kind, target in old[len(new) :]:
            yield Effect.NEEDS_RESET, "input removed", f"the checkpoint holds the place in {kind} '{target}'", ("from",)
        return
    if len(now.inputs) > 1 and _places(before) != _places(now):
        reason = (
            f"the SQL names its inputs in another order ({', '.join(now.reads)}; it was {', '.join(before.reads)}), "
            "and the checkpoint keeps offsets in the order in which the query reads them"
        )
        yield Effect.NEEDS_RESET, "order of inputs", reason, ("sql",)
    for position, (was, is_) in enumerate(zip(before.inputs, now.inputs, strict=True)):
        yield from _input(position, was, is_, is_stateful=is_stateful)


def _unknown_databases(before: StageRecord, now: StageRecord) -> Iterator[Difference]:
    """Databases named by secrets whose current and recorded identities cannot be compared."""
    inputs = enumerate(zip(before.inputs, now.inputs, strict=False))
    pairs: list[tuple[tuple[str | int, ...], str, Any, Any]]
    pairs = [(("from", position), f"input {is_['name']}", was, is_) for position, (was, is_) in inputs]
    old, new = before.declared or {}, now.declared or {}
    pairs += [(("from",), name, old[name], new[name]) for name in sorted(old.keys() & new.keys())]
    for place, name, was, is_ in pairs:
        if not is_untold(was, is_):
            continue
        if is_["database"] is None and "${" not in url_of(is_):
            reason = f"the URL of {url_of(is_)} does not tell which one it is; if it is another one now, give --reset"
        elif is_["database"] is None:
            reason = (
                f"which one {url_of(is_)} is cannot be told here, without the values of its secrets; `run` compares it"
            )
        else:
            reason = (
                f"the record of an earlier release does not say which one {url_of(is_)} was; if it is another one now, "
                "give --reset. The next run notes it"
            )
        yield Effect.SAFE, f"database of {name}", reason, place


def _places(record: StageRecord) -> list[int]:
    """Positions of the inputs in the order in which the query reads them, regardless of their views' names."""
    names = [each["name"].lower() for each in record.inputs]
    return [names.index(name) for name in record.reads if name in names]


def _input(position: int, was: Mapping[str, Any], now: Mapping[str, Any], *, is_stateful: bool) -> Iterator[Difference]:
    place: tuple[str | int, ...] = ("from", position)
    for name in sorted({*was["rows"], *now["rows"]}):
        old, new = was["rows"].get(name), now["rows"].get(name)
        if old == new:
            continue
        said = f"{name} was {shown(old)} and is {shown(new)}"
        if name in ("changes", "increment"):
            reason = f"{said}: the checkpoint counts something else"
            yield Effect.NEEDS_RESET, "how an input is read", reason, (*place, name)
        elif is_stateful:
            reason = f"{said}: the state was made of other rows"
            yield Effect.NEEDS_RESET, "rows of an input", reason, (*place, name)
        else:
            yield Effect.SAFE, "rows of an input", f"{said}; rows that come from now on are read so", (*place, name)
    if was["start"] != now["start"]:
        reason = "it has no effect: the stage goes on where it is. `headwater pipeline replay` starts it elsewhere"
        yield Effect.SAFE, "where an input starts", reason, place
    if was["name"] != now["name"]:
        yield Effect.SAFE, "name of an input", f"only SQL sees it: {was['name']} is {now['name']} now", place
    changed = sorted(name for name in {*was["more"], *now["more"]} if was["more"].get(name) != now["more"].get(name))
    if is_stateful and (others := [name for name in changed if name not in _PACE]):
        reason = "the state was made of rows that were read otherwise"
        yield Effect.NEEDS_RESET, ", ".join(others), reason, place
    elif changed:
        yield Effect.SAFE, ", ".join(changed), "how the input is read from now on; its place stays", place


#: Options that set how fast an input is read, and when a run stops; they do not change its rows.
_PACE = frozenset(
    {
        "max_offsets_per_trigger", "min_offsets_per_trigger", "max_trigger_delay", "max_files_per_trigger",
        "fail_on_data_loss", "driver",
    }
)  # fmt: skip


def _declared(before: StageRecord, now: StageRecord, *, is_stateful: bool) -> Iterator[Difference]:
    """Changes of the declarations of inputs and tables, of their schemas, and of their identities."""
    for kind, old, new in (("declared", before.declared, now.declared), ("ids", before.ids, now.ids)):
        if new is None or (kind == "ids" and not new):
            continue  # the brokers were not asked
        if old is None:
            if kind == "declared" and new:
                reason = (
                    f"the record of an earlier release does not say how {', '.join(sorted(new))} was when the stage "
                    "was deployed; if it has changed since, give --reset. The next run notes it"
                )
                yield Effect.SAFE, "declarations", reason, ("from",)
            continue
        for name in sorted({*old, *new}):
            if old.get(name) == new.get(name) or (kind == "ids" and (name not in old or name not in new)):
                continue
            yield _one_declared(kind, name, old.get(name), new.get(name), is_stateful=is_stateful)


def _one_declared(kind: str, name: str, old: Any, new: Any, *, is_stateful: bool) -> Difference:
    if kind == "ids":
        what = "it is another cluster" if name == "cluster" else "it was deleted and made anew"
        reason = f"{what} (its id was {old} and is {new}): the checkpoint's offsets are those of other records"
        return Effect.NEEDS_RESET, name, reason, ("from",)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        fields = [each for each in sorted({*old, *new}) if old.get(each) != new.get(each)]
        said = f"{', '.join(fields)} changed"
    else:
        said = "it is new here" if old is None else "it is used no more" if new is None else "what it says has changed"
    if is_stateful:
        return Effect.NEEDS_RESET, name, f"{said}: the state was made of other rows", ("from",)
    return Effect.SAFE, name, f"{said}; rows that come from now on are read so", ("from",)


def _watermarks(before: StageRecord, now: StageRecord, *, is_stateful: bool) -> Iterator[Difference]:
    old, new = before.watermarks, now.watermarks
    if old == new:
        return
    if [each["column"] for each in old] != [each["column"] for each in new]:
        names = [", ".join(each["column"] for each in marks) or "none" for marks in (old, new)]
        said = f"the watermark was on {names[0]} and is on {names[1]}"
        if is_stateful:
            reason = f"{said}: the state is dropped by another time than it was kept by"
            yield Effect.NEEDS_RESET, "watermark", reason, ("from",)
        else:
            yield Effect.SAFE, "watermark", f"{said}; the stage keeps no state", ("from",)
        return
    changed = [(a["delay"], b["delay"]) for a, b in zip(old, new, strict=True) if a["delay"] != b["delay"]]
    if not changed:
        return  # only the names of the views differ
    said = "; ".join(f"{a} is {b} now" for a, b in changed)
    if all(interval_ms(a) == interval_ms(b) for a, b in changed):
        yield Effect.SAFE, "delay of the watermark", f"{said}: it is as long", ("from",)
    elif not is_stateful:
        yield Effect.SAFE, "delay of the watermark", f"{said}; the stage keeps no state", ("from",)
    else:
        reasons = (
            _LONGER if any(interval_ms(b) > interval_ms(a) for a, b in changed) else "",
            _SHORTER if any(interval_ms(b) < interval_ms(a) for a, b in changed) else "",
        )
        reason = f"{said}: {', and '.join(filter(None, reasons))}"
        yield Effect.NEEDS_RESET, "delay of the watermark", reason, ("from",)


def _late_records(before: StageRecord, now: StageRecord) -> Iterator[Difference]:
    """Changes of the topics for late records, which are written beside the state."""
    old, new = ({each["of"]: each["late"] for each in record.watermarks if "late" in each} for record in (before, now))
    if list(old.values()) == list(new.values()):
        return  # only the names of the views differ
    said = f"{', '.join(old.values()) or 'none'} is {', '.join(new.values()) or 'none'} now"
    reason = f"{said}, for rows that are late from now on; the state stays as it is"
    yield Effect.SAFE, "topic of late records", reason, ("from",)


#: The effect of another delay on a state. Spark resumes from the watermark in the checkpoint, which never goes back,
#: and `dropDuplicatesWithinWatermark` stores with each row its expiry, computed from the delay at that time.
_LONGER: Final = (
    "the state has let go, and late rows were dropped, by the old delay; what a longer one would still wait for is gone"
)
_SHORTER: Final = "the state has taken late rows that a shorter delay would have dropped"


# -- steps ---------------------------------------------------------------------------------------------------------


def _steps(before: StageRecord, now: StageRecord, *, is_stateful: bool) -> Iterator[Difference]:
    if _same_steps(before, now):
        if _known_code(before, now) and not is_stateful:
            yield Effect.SAFE, "code", "rows that come from now on go through it", ("to",)
        elif _known_code(before, now) and _stream_code(before, now):
            reason = "the stage keeps state, and what code does with it is not looked into"
            yield Effect.NEEDS_RESET, "code", reason, _step_place(now)
        elif _known_code(before, now):
            yield Effect.SAFE, "code", "no state is made by it; it gets what comes from now on", ("to",)
        return
    if any(step["kind"] == "sql" and step["outputs"] is None for step in (*now.steps, *before.steps)):
        reason = (
            "the SQL cannot be looked into here, and has changed: which state it asks for, and which the checkpoint "
            "has, cannot be told"
        )
        yield Effect.NEEDS_RESET, "steps", reason, _step_place(now)
        return
    old, new = _without(before.operators, "step", "uses"), _without(now.operators, "step", "uses")
    if old != new and (is_stateful or len(new) > len(old)):
        if not is_stateful and not old:
            reason = f"the stage gets state ({_names(new)}), and its checkpoint has none for what was read already"
            yield Effect.NEEDS_RESET, "state", reason, _step_place(now)
        else:
            yield from ((Effect.NEEDS_RESET, *told, _step_place(now)) for told in _operators(old, new))
        return
    if not is_stateful:
        yield Effect.SAFE, "steps", "the stage keeps no state: rows that come from now on go through the new steps", ()
        return
    yield _stateful_steps(before, now)


def _same_steps(before: StageRecord, now: StageRecord) -> bool:
    """Whether only layout, comments and code in files differ.

    SQL text is compared token by token; a record of an earlier release has only sqlglot's normalized form.
    """
    if len(before.steps) != len(now.steps):
        return False
    for was, is_ in zip(before.steps, now.steps, strict=True):
        left_out = {"code", "outputs", *(("text",) if "source" in was and "source" in is_ else ("source",))}
        if without(was, left_out) != without(is_, left_out):
            return False
    return True


def _known_code(before: StageRecord, now: StageRecord) -> list[str]:
    """The names of changed code; code that an earlier release did not record counts as unchanged."""
    return sorted(name for name in {*before.code} & {*now.code} if before.code[name] != now.code[name])


def _stream_code(before: StageRecord, now: StageRecord) -> bool:
    """Whether changed code runs on the stream, where it makes the state or the state's input."""
    files = {step.get("file") for step in now.steps if "file" in step and not step.get("of_batch")}
    return any(name in files or name.removeprefix("imports of ") in files for name in _known_code(before, now))


def _stateful_steps(before: StageRecord, now: StageRecord) -> Difference:
    """The effect of changed steps around operators that look the same: safe only if the state is proven the same."""
    place = _step_place(now)
    if _stream_code(before, now):
        return Effect.NEEDS_RESET, "code", "the stage keeps state, and what code does with it is not looked into", place
    different = _form(before).difference(_form(now))
    if different:
        reason = f"{different} has changed, and a state that was made otherwise gives other rows"
        return Effect.NEEDS_RESET, "steps before the state" if "before" in different else "steps", reason, place
    return Effect.SAFE, "steps", "the state stays: it is made of the same rows, keys and functions", place


def _form(record: StageRecord) -> StateForm:
    """The form of the steps on the stream; hashes distinguish the code that runs there."""
    steps = []
    for step in record.steps:
        if step.get("of_batch"):
            break
        steps.append(without(step, {"outputs", "of_batch", "code"}))
    numbers = [each["step"] for each in record.operators]
    is_seen = not any(step["kind"] in ("python", "stateful") for step in steps)
    return state_form(steps, max(numbers) if numbers and is_seen else None)


def _operators(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Differences between two lists of operators, each with its effect on the state."""
    if [each["kind"] for each in old] != [each["kind"] for each in new]:
        yield "state", f"the state was that of {_names(old)}, and would be that of {_names(new)}"
        return
    for was, now in zip(old, new, strict=True):
        for name in sorted({*was, *now}):
            if was.get(name) != now.get(name):
                label, why = _MEANINGS.get((str(now["kind"]), name), (name, "the state was made by what it was"))
                yield label, f"{difference(was.get(name), now.get(name))}: {why}"


_MEANINGS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("aggregate", "keys"): ("grouping keys", "the state holds sums of other groups"),
    ("aggregate", "functions"): ("aggregate functions", "the state has no values of them for what was read already"),
    ("join", "on"): ("join condition", "the rows in the state are kept by the keys of the join that it was"),
    ("join", "how"): ("kind of join", "the state does not know which of its rows have found a match"),
    ("join", "with"): ("sides of a join", "the rows in the state are those of other sides"),
    ("distinct", "columns"): ("columns of DISTINCT", "the state remembers rows of other columns"),
    ("subquery", "columns"): ("columns of a subquery", "the state is made of them"),
    ("deduplicate", "by"): ("columns of deduplicate", "the state remembers other keys"),
    ("deduplicate", "column"): ("event time of deduplicate", "the state remembers rows by another time"),
    ("stateful", "by"): ("keys of the processor", "its state is kept by other keys"),
    ("stateful", "output"): ("output of the processor", "Spark keeps its columns with the state"),
    ("stateful", "time"): ("time of the processor", "its timers are kept by another time"),
}


def _without(operators: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [without(each, names) for each in operators]


def _names(operators: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(each["kind"]) for each in operators if each["kind"] != "subquery") or "nothing"


def _step_place(record: StageRecord) -> tuple[str | int, ...]:
    """Path of a stage's steps; the file determines which of its fields that is."""
    return ("steps",) if record.steps else ()


# -- the rest ------------------------------------------------------------------------------------------------------


def _mode(before: StageRecord, now: StageRecord, *, is_stateful: bool) -> Iterator[Difference]:
    if before.mode == now.mode:
        return
    said = f"{before.mode} is {now.mode} now"
    if is_stateful:
        reason = f"{said}: the state does not know which of its rows were given out"
        yield Effect.NEEDS_RESET, "mode", reason, ("mode",)
    else:
        yield Effect.SAFE, "mode", f"{said}; without state it makes no difference", ("mode",)


def _rest(before: StageRecord, now: StageRecord) -> Iterator[Difference]:
    if before.expect != now.expect:
        old, new = {each["name"] for each in before.expect}, {each["name"] for each in now.expect}
        names = (
            sorted(old ^ new)
            or sorted(b["name"] for a, b in zip(before.expect, now.expect, strict=True) if a != b)
            or ["their order"]
        )
        yield Effect.SAFE, f"expectations ({', '.join(names)})", "for rows that come from now on", ("expect",)
    if before.trigger != now.trigger:
        reason = f"{shown(before.trigger)} is {shown(now.trigger)} now; it says how often, not what"
        yield Effect.SAFE, "trigger", reason, ("trigger",)
    partitions = before.shuffle_partitions, now.shuffle_partitions
    if partitions[0] is not None and partitions[1] is not None and partitions[0] != partitions[1]:
        reason = f"it has no effect: the checkpoint keeps {partitions[0]}; a stage that is reset takes {partitions[1]}"
        yield Effect.SAFE, SHUFFLE_PARTITIONS, reason, ()
