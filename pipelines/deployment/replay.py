"""Replay of a stage from offsets or a moment: start offsets, deleted records, duplicate output. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.definition import DeltaSink, Loaded, Stage
from headwater.pipelines.definition.graph import upstream
from headwater.pipelines.deployment.checkpoint_progress import TopicOffsets
from headwater.pipelines.timestamps import timestamp_ms

__all__ = [
    "Gone",
    "LogBounds",
    "Origin",
    "StageReplay",
    "default_stages",
    "furthest",
    "histories",
    "parse_origin",
    "replay_of",
    "written_twice",
]

_FIRST: Final = -2  # Kafka's numbers for the earliest and the latest offset
_NEXT: Final = -1


@dataclass(frozen=True, slots=True)
class Origin:
    """The start of a replay: the earliest record, a moment (ms since 1970), or offsets.

    `offsets` are by topic; '' is the stage's only topic.
    """

    moment_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def is_earliest(self) -> bool:
        """Whether the replay starts at the log start offset."""
        return self.moment_ms is None and not self.offsets


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The log start offset, the next offset and the first offset at or after the moment (-1: none), by partition."""

    first: TopicOffsets
    end: TopicOffsets
    at_moment: TopicOffsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """A partition without the requested records; `asked` is None for a moment, whose offset is unknown."""

    topic: str
    partition: int
    asked: int | None
    first: int

    def __str__(self) -> str:
        asked = "records since then" if self.asked is None else f"offset {self.asked}"
        kept = f"the log begins at offset {self.first}"
        return (
            f"{self.topic}-{self.partition}: {asked} may be gone, {kept}"
            if self.asked is None
            else (f"{self.topic}-{self.partition}: {asked} is gone, {kept}")
        )


@dataclass(frozen=True, slots=True)
class StageReplay:
    """Start offset of each partition of a stage's topics, and the partitions whose records are deleted."""

    start: dict[str, dict[int, int]]
    gone: tuple[Gone, ...]


def parse_origin(text: str) -> Origin:
    """Parse `--from`. Raises ValueError.

    >>> parse_origin('{"0": 17, "1": -2}').offsets
    {'': {0: 17, 1: -2}}
    >>> parse_origin('{"orders": {"0": 17}}').offsets
    {'orders': {0: 17}}
    >>> parse_origin("2026-01-01T00:00:00Z").moment_ms, parse_origin("@1767225600000").moment_ms
    (1767225600000, 1767225600000)
    >>> parse_origin("earliest").is_earliest
    True
    """
    if text == "earliest":
        return Origin()
    if text.startswith("{"):
        return Origin(offsets=_offsets(text))
    moment = text.removeprefix("@")
    if text.startswith("@") and moment.isdecimal() and moment.isascii() and len(moment) <= 16:
        return Origin(moment_ms=int(moment))
    found = timestamp_ms(moment)
    if found is None:
        raise ValueError(
            f"{text[:80]!r} is no place to start: use earliest, a moment (2026-01-01T00:00:00Z), or offsets "
            '({"0": 17, "1": 3} or {"TOPIC": {"0": 17}}; -2 is the earliest, -1 the next record)'
        )
    return Origin(moment_ms=found)


def _offsets(text: str) -> dict[str, dict[int, int]]:
    try:
        parsed = json.loads(text)
        if parsed and not any(isinstance(value, dict) for value in parsed.values()):
            parsed = {"": parsed}
        found = {str(topic): {int(p): _offset(at) for p, at in parts.items()} for topic, parts in parsed.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f'{text[:80]!r} is not of the form {{"0": 17, "1": 3}} or {{"TOPIC": {{"0": 17}}}}: offsets by partition'
        ) from None
    if not any(found.values()):
        raise ValueError("no partition is named")
    return found


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < _FIRST:
        raise ValueError(value)
    return value


def replay_of(stage: Stage, origin: Origin, bounds: LogBounds, known: TopicOffsets) -> StageReplay:
    """The start offsets of a stage. `known` are its current offsets, which apply to partitions that are not named.

    Raises ValueError if the origin does not fit the stage's topics.
    """
    topics = list(dict.fromkeys(source.topic for source in stage.topic_inputs))
    if len(stage.topic_inputs) < len(stage.inputs) or not topics:
        raise ValueError(
            f"stage {stage.name} reads something else than topics: `headwater pipeline run --reset {stage.name}` "
            "starts it anew from its beginning"
        )
    start: dict[str, dict[int, int]] = {}
    gone: list[Gone] = []
    asked = _by_topic(stage, origin, topics)
    for topic in topics:
        first, end = bounds.first[topic], bounds.end[topic]
        if origin.is_earliest:
            start[topic] = dict(first)
        elif origin.moment_ms is not None:
            start[topic] = {p: at if at >= 0 else end[p] for p, at in bounds.at_moment[topic].items()}
            # Records before the first offset may have been after the moment; whether they were is unknown.
            gone += [
                Gone(topic, p, None, first[p])
                for p, at in sorted(start[topic].items())
                if first[p] > 0 and at <= first[p]
            ]
        else:
            start[topic] = _named(stage, topic, asked.get(topic, {}), first, end, known.get(topic, {}))
            gone += [Gone(topic, p, at, first[p]) for p, at in sorted(start[topic].items()) if at < first[p]]
    return StageReplay(start, tuple(gone))


def _by_topic(stage: Stage, origin: Origin, topics: list[str]) -> dict[str, Mapping[int, int]]:
    asked = dict(origin.offsets)
    if "" in asked:
        if len(topics) > 1:
            raise ValueError(
                f"stage {stage.name} reads {' and '.join(topics)}: give offsets by topic, "
                f'{{"{topics[0]}": {{"0": 17}}}}'
            )
        asked[topics[0]] = asked.pop("")
    unknown = sorted(asked.keys() - set(topics))
    if unknown:
        raise ValueError(f"stage {stage.name} does not read the topic '{unknown[0]}', but {', '.join(topics)}")
    return asked


def _named(
    stage: Stage,
    topic: str,
    asked: Mapping[int, int],
    first: Mapping[int, int],
    end: Mapping[int, int],
    known: Mapping[int, int],
) -> dict[int, int]:
    unknown = sorted(asked.keys() - end.keys())
    if unknown:
        raise ValueError(f"topic {topic} has no partition {unknown[0]}: it has {len(end)}")
    found = {}
    for partition in sorted(end):
        if partition not in asked and partition not in known:
            raise ValueError(
                f"no offset is given for {topic}-{partition}, and stage {stage.name} has not read it yet; "
                "-2 is the earliest, -1 the next record"
            )
        at = asked.get(partition, known.get(partition, 0))
        found[partition] = {_FIRST: first[partition], _NEXT: end[partition]}.get(at, at)
        if found[partition] > end[partition]:
            raise ValueError(f"{topic}-{partition} ends at offset {end[partition]}; {at} lies beyond")
    return found


def furthest(first: TopicOffsets, second: TopicOffsets) -> dict[str, dict[int, int]]:
    """The higher of two offsets of each partition.

    >>> furthest({"a": {0: 5, 1: 2}}, {"a": {0: 3, 1: 4}, "b": {0: 1}})
    {'a': {0: 5, 1: 4}, 'b': {0: 1}}
    """
    found: dict[str, dict[int, int]] = {}
    for offsets in (first, second):
        for topic, parts in offsets.items():
            known = found.setdefault(topic, {})
            for partition, offset in parts.items():
                known[partition] = max(offset, known.get(partition, offset))
    return found


def default_stages(loaded: Loaded) -> list[str]:
    """The stages that no other stage feeds: their repeated output flows through the other stages."""
    pipeline = loaded.pipeline
    return [s.name for s in pipeline.stages if not any(u is not s for u in upstream(pipeline, s))]


def histories(loaded: Loaded, topic: str) -> list[str]:
    """Descriptions of the pipeline's Delta tables that hold a topic's earlier records."""
    found = []
    for stage in loaded.pipeline.stages:
        writes = any(sink.place == ("topic", topic) for sink in stage.to)
        reads = any(source.place == ("topic", topic) for source in stage.inputs)
        if not (writes or reads):
            continue
        made = f"the rows that stage {stage.name} wrote to it" if writes else f"what stage {stage.name} made of it"
        for sink in stage.to:
            if isinstance(sink, DeltaSink):
                only = ", the latest state of each key" if sink.merge is not None and sink.merge.scd == 1 else ""
                found.append(f"{loaded.path(sink.delta)} ({made}{only})")
    return list(dict.fromkeys(found))


def written_twice(loaded: Loaded, stage: Stage) -> list[str]:
    """Descriptions of a stage's output that is duplicated when it reads records again; empty if none is."""
    found = []
    for sink in stage.to:
        again = sink.written_twice(loaded.path, is_complete=stage.mode == "complete")
        if again is None:
            continue
        place = sink.place
        topic = place is not None and place[0] == "topic"
        readers = [
            other.name
            for other in loaded.pipeline.stages
            if topic and other.name != stage.name and any(source.place == place for source in other.inputs)
        ]
        found.append(f"{again}, which stage {', '.join(readers)} reads again" if readers else again)
    return found
