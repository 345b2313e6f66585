"""The effect of changed sinks: what an existing target fixes, and what applies to rows from now on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwater.pipelines.definition.sinks.delta import EXCEPTED
from headwater.pipelines.deployment.effects import Difference, Effect, difference, without
from headwater.pipelines.deployment.stage_record import StageRecord

__all__ = ["sink_changes"]


def sink_changes(before: StageRecord, now: StageRecord) -> Iterator[Difference]:
    """Each change of the stage's sinks."""
    old = {key: _as_now(each) for key, each in _by_target(before.sinks)}
    new = dict(_by_target(now.sinks))
    for position, (key, each) in enumerate(_by_target(now.sinks)):
        place = ("to", position)
        if key not in old:
            reason = (
                f"{each['kind']} {each['target']} gets what comes from now on; a replay would fill it with the rest"
            )
            yield Effect.SAFE, "sink added", reason, place
            continue
        was = old[key]
        for name in sorted({*was["kept"], *each["kept"]}):
            if name == "sequence" and name not in was["kept"]:
                continue  # its earlier value is not known
            if was["kept"].get(name) != each["kept"].get(name):
                yield Effect.NEEDS_RESET, *_kept(each, name, was["kept"].get(name), each["kept"].get(name)), place
        changed = sorted(n for n in {*was["more"], *each["more"]} if was["more"].get(n) != each["more"].get(n))
        at_creation = [name for name in changed if name in ("cluster_by", "properties")]
        if at_creation:
            reason = "it has no effect on a table that exists: it is taken when the table is made"
            yield Effect.SAFE, f"{', '.join(at_creation)} of {each['target']}", reason, place
        if "when" in changed:
            yield Effect.SAFE, f"when of {each['target']}", _received(each, now.mode), place
        if "underscore_columns" in changed:
            reason = _underscores(each["kind"], each["more"]["underscore_columns"]) + _new_states(each)
            yield Effect.SAFE, f"underscore columns of {each['target']}", reason, place
        rest = [name for name in changed if name not in (*at_creation, "when", "underscore_columns")]
        if rest:
            reason = "what is written from now on; what is written stays as it is"
            reason += _new_states(each) if {"columns", "except"} & {*rest} else ""
            yield Effect.SAFE, f"{', '.join(rest)} of {each['target']}", reason, place
    for kind, target, _ in sorted(old.keys() - new.keys()):
        yield Effect.SAFE, "sink removed", f"{kind} {target} keeps what it has, and gets no more", ("to",)


def _by_target(sinks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str, int], Mapping[str, Any]]]:
    """Each sink by kind, target, and its number among equal ones: several sinks may call one function."""
    seen: Counter[tuple[str, str]] = Counter()
    for each in sinks:
        target = (each["kind"], each["target"])
        seen[target] += 1
        yield (*target, seen[target]), each


def _received(sink: Mapping[str, Any], mode: str) -> str:
    """The effect of another `when` on what a sink has."""
    if mode == "complete" and sink["kind"] == "delta" and sink["kept"]["merge"] is None:
        return "the next micro-batch replaces the table by the rows for which it is true"
    return (
        "it applies to rows that come from now on; what is written stays as it is, and a replay would add the rows "
        "that were left out"
    )


def _underscores(kind: str, option: str) -> str:
    """The effect of changed `underscore_columns` on what is there."""
    if kind == "files":
        return f"files that are written from now on have {'no' if option == 'omit' else 'all'} such columns"
    if option == "omit":
        return "the table keeps the columns that it has; rows that are written from now on have null there"
    if kind == "jdbc":
        return "rows that are written from now on have these columns, and the table needs them"
    return "the table gets these columns again, which are null in rows that are there; merge_schema: false refuses them"


def _new_states(sink: Mapping[str, Any]) -> str:
    """The effect of other stored columns on a history that tracks all columns but some; empty for other sinks."""
    merge = sink["kept"].get("merge") or {}
    if not (merge.get("track_history") or "").startswith(EXCEPTED):
        return ""
    return "; the next change of each key starts a new state if a tracked column thereby gets or loses its value"


def _as_now(sink: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sink from an earlier release's record, which listed a database's sequence among the changeable options, and
    stored all underscore columns.
    """
    if sink["kind"] in ("delta", "files", "jdbc"):
        sink = {**sink, "more": {"underscore_columns": "keep", **sink["more"]}}
    if sink["kind"] != "jdbc" or "sequence" not in sink["more"]:
        return sink
    sequence = [name.lower() for name in sink["more"]["sequence"]]
    return {**sink, "kept": {"sequence": sequence, **sink["kept"]}, "more": without(sink["more"], {"sequence"})}


def _kept(sink: Mapping[str, Any], name: str, old: Any, new: Any) -> tuple[str, str]:
    """Message and hint for a changed option that an existing table fixes."""
    what = f"{name.replace('_', ' ')} of {sink['kind']} {sink['target']}"
    if name == "partition_by":
        return what, "a table keeps the partitions that it was made with: write to another table, or remove this one"
    if name == "sequence":
        said = f"it was {', '.join(old) or 'none'} and is {', '.join(new) or 'none'}"
        reason = (
            f"{said}: the rows that it holds were ordered by the old one, whose table headwater_last_… is used no more"
        )
        return what, f"{reason}. Write to another table, or remove this one"
    parts = ("keys", "sequence", "scd", "track_history")
    changed = [part for part in parts if (old or {}).get(part) != (new or {}).get(part)]
    if name == "keys":
        said = f"keys were {', '.join(old or []) or 'none'} and are {', '.join(new or []) or 'none'}"
    elif old is None or new is None:
        said = "its rows were " + ("added, not merged" if old is None else "merged, not added")
    else:
        said = ", ".join(f"{part}: {difference(old.get(part), new.get(part))}" for part in changed)
    return what, f"{said}: the rows that it holds were written otherwise. Write to another table, or remove this one"
