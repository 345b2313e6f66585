"""The partitions, start and end of a read, from its options."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from headwater.logtier.client.cluster import EARLIEST, LATEST
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.offsets import Offsets, parse_offsets
from headwater.pipelines.datasource.option_values import LONG_MAX, OptionValues

__all__ = ["OffsetSpec", "Subscription", "check_start_before_end", "position", "subscription"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: by topic names, by topic pattern, or listed. Exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The start or end of a read: EARLIEST or LATEST for all, offsets by partition, or timestamps (ms)."""

    everywhere: int | None = None
    offsets: Offsets = field(default_factory=dict)
    timestamps: Offsets = field(default_factory=dict)
    timestamp: int | None = None


def subscription(values: OptionValues) -> Subscription:
    """The subscription from `subscribe`, `subscribePattern` or `assign`, of which one must be set."""
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if values.text(name) is not None]
    if len(ways) != 1:
        said = " and ".join(ways) if ways else "none of them"
        raise OptionError(f"exactly one of the options subscribe, subscribePattern, assign is needed; given: {said}")
    return Subscription(
        topics=values.parse("subscribe", _parse_topics, ()),
        pattern=values.parse("subscribePattern", _parse_pattern, None),
        assigned=values.parse("assign", _parse_assign, ()),
    )


def position(values: OptionValues, end: str) -> OffsetSpec | None:
    """The most specific of the three options for the end "starting" or "ending", in Spark's order of precedence."""
    if values.text(f"{end}Timestamp") is not None:
        return OffsetSpec(timestamp=values.integer(f"{end}Timestamp", 0, low=0, high=LONG_MAX))
    none: Offsets = {}
    by_timestamp = values.parse(f"{end}OffsetsByTimestamp", _parse_timestamps, none)
    if by_timestamp:
        return OffsetSpec(timestamps=by_timestamp)
    return values.parse(f"{end}Offsets", _parse_position, None)


def check_start_before_end(starting: OffsetSpec | None, ending: OffsetSpec | None) -> None:
    """Raise OptionError if both ends of a batch are given by partition and contradict each other."""
    if starting is None or ending is None:
        return
    for name, start, end in (
        ("Offsets", starting.offsets, ending.offsets),
        ("OffsetsByTimestamp", starting.timestamps, ending.timestamps),
    ):
        if not start or not end:
            continue
        for topic, partition in sorted(start.keys() ^ end.keys()):
            raise OptionError(
                f"the options starting{name} and ending{name} must name the same partitions; "
                f"only one of them names {topic}-{partition}"
            )
        for topic, partition in sorted(start):
            first, last = start[topic, partition], end[topic, partition]
            if first >= 0 and last >= 0 and first > last:
                raise OptionError(
                    f"option starting{name}: {topic}-{partition} starts at {first}, behind its end at {last}"
                )


def _parse_assign(text: str) -> tuple[tuple[str, int], ...]:
    try:
        parsed: Any = json.loads(text)
        assigned = tuple(sorted({(str(topic), int(part)) for topic, parts in parsed.items() for part in parts}))
    except (AttributeError, TypeError, ValueError):
        raise ValueError('not of the form {"topic": [0, 1]}') from None
    if not assigned:
        raise ValueError("no partition is named")
    return assigned


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ValueError("no topic is named")
    return topics


def _parse_pattern(text: str) -> str:
    if not text:
        raise ValueError("no pattern is given")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _parse_position(text: str) -> OffsetSpec:
    if text.lower() in ("earliest", "latest"):
        return OffsetSpec(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise ValueError('neither earliest, latest, nor of the form {"topic": {"0": 23, "1": -2}}')
    return OffsetSpec(offsets=parse_offsets(text))


def _parse_timestamps(text: str) -> Offsets:
    timestamps = parse_offsets(text)
    for value in timestamps.values():
        if value < 0:
            raise ValueError(f"{value} is not a timestamp in milliseconds")
    return timestamps
