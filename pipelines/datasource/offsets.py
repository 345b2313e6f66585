"""Offsets of topics in Spark's form ({"topic": {"0": 5}}), and arithmetic on them. Pure."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

__all__ = [
    "OffsetRange",
    "Offsets",
    "Reach",
    "SourceOffset",
    "from_source_offset",
    "group_ranges",
    "limit_by_backlog",
    "parse_offsets",
    "split_ranges",
    "to_source_offset",
]

TopicPartition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[TopicPartition, int]
SourceOffset: TypeAlias = dict[str, dict[str, int]]

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a range is read beyond its end: up to `end`, or to the first batch not earlier than `later_ms`.

    `append_time_only`: a batch with its producer's timestamps, in the range or behind it, has all read up to `end`.
    """

    end: int
    later_ms: int
    append_time_only: bool


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records [start, end) of one partition. `topic_id` is the topic's id at planning, if known.

    With `reach`, the range continues behind `end`; see `headwater.pipelines.datasource.time_bounds`. `leader_epoch` is
    the one in which the log reached the end, -1 if unknown: a later leader may have lost records of the range.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: uuid.UUID | None = field(default=None, repr=False)
    reach: Reach | None = None
    leader_epoch: int = field(default=-1, repr=False)

    @property
    def size(self) -> int:
        """The number of offsets in the range, without its reach."""
        return self.end - self.start

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.size <= 0 and self.reach is None


def to_source_offset(offsets: Mapping[TopicPartition, int]) -> SourceOffset:
    """Offsets in the form of Spark's checkpoint, in a deterministic order.

    >>> to_source_offset({("b", 10): 1, ("b", 2): 3, ("a", 0): 5})
    {'a': {'0': 5}, 'b': {'2': 3, '10': 1}}
    """
    result: SourceOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_source_offset(source_offset: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_source_offset`."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in source_offset.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(text: str) -> Offsets:
    """Parse offsets (or timestamps) by topic and partition from an option.

    >>> parse_offsets('{"flights": {"0": 23, "1": -2}}')
    {('flights', 0): 23, ('flights', 1): -2}
    >>> parse_offsets('{"flights": 23}')
    Traceback (most recent call last):
    ValueError: not of the form {"topic": {"0": 23, "1": -2}}
    """
    try:
        parsed: Any = json.loads(text)
        offsets: Offsets = {}
        for topic, partitions in parsed.items():
            for partition, offset in partitions.items():
                if not isinstance(offset, int) or isinstance(offset, bool) or not -2 <= offset <= OFFSET_MAX:
                    raise ValueError(f"{offset!r} for {topic}-{partition} is not an offset")
                offsets[str(topic), int(partition)] = offset
    except (AttributeError, json.JSONDecodeError):
        raise ValueError('not of the form {"topic": {"0": 23, "1": -2}}') from None
    return offsets


def limit_by_backlog(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """End offsets that span `limit` records in total, distributed in proportion to each partition's backlog.

    So a partition far behind catches up as fast as the others, and no partition runs ahead in event time. The shares
    are rounded so that their sum is exactly the limit.

    >>> limit_by_backlog({("t", 0): 0, ("t", 1): 0}, {("t", 0): 900, ("t", 1): 100}, 10)
    {('t', 0): 9, ('t', 1): 1}
    >>> limit_by_backlog({("t", 0): 0, ("t", 1): 0}, {("t", 0): 2, ("t", 1): 1}, 1)
    {('t', 0): 1, ('t', 1): 0}
    """
    backlog = {key: max(0, end[key] - start[key]) for key in end}
    total = sum(backlog.values())
    if total <= limit:
        return dict(end)
    shares = {key: limit * size // total for key, size in backlog.items()}
    rest = limit - sum(shares.values())
    by_remainder = sorted(backlog, key=lambda key: (-(limit * backlog[key] % total), key))
    for key in by_remainder[:rest]:
        shares[key] += 1
    return {key: start[key] + shares[key] if backlog[key] else end[key] for key in end}


def split_ranges(
    ranges: Iterable[OffsetRange], partitions_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """The non-empty ranges, with large ranges split by minPartitions and maxRecordsPerPartition.

    First each range is split into equal pieces of at most `records_max` offsets; if there are fewer than
    `partitions_min` pieces, the larger ones are split further until there are about as many. A range whose batches
    decide together how far it reaches is never split.

    >>> [(r.start, r.end) for r in split_ranges([OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 10)], 4)]
    [(0, 30), (30, 60), (60, 90), (0, 10)]
    >>> [(r.start, r.end) for r in split_ranges([OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 10)], None, 40)]
    [(0, 30), (30, 60), (60, 90), (0, 10)]
    """
    wanted = [part for part in ranges if not part.is_empty]
    if records_max is not None:
        wanted = [piece for part in wanted for piece in _cut(part, -(-part.size // records_max))]
    if partitions_min is None or len(wanted) >= partitions_min:
        return wanted
    total = max(1, sum(part.size for part in wanted))
    # Ranges too small to split take a task each; the others share the rest by their sizes.
    small = [part for part in wanted if _share(part.size, total, partitions_min) == 1]
    rest_total = max(1, total - sum(part.size for part in small))
    rest_count = max(1, partitions_min - len(small))
    pieces: list[OffsetRange] = []
    for part in wanted:
        count = 1 if part in small else _share(part.size, rest_total, rest_count)
        pieces.extend(_cut(part, min(count, part.size)))
    return pieces


def group_ranges(ranges: Iterable[OffsetRange], offsets_min: int) -> list[tuple[OffsetRange, ...]]:
    """Group ranges, in order, until each group spans `offsets_min` offsets: one task reads a group.

    >>> parts = [OffsetRange("t", number, 0, size) for number, size in enumerate((5, 5, 20, 3))]
    >>> [[part.partition for part in group] for group in group_ranges(parts, 10)]
    [[0, 1], [2, 3]]
    >>> [[part.partition for part in group] for group in group_ranges(parts, 1)]
    [[0], [1], [2], [3]]
    """
    groups: list[list[OffsetRange]] = []
    size = 0
    for part in ranges:
        if not groups or size >= offsets_min:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    if len(groups) > 1 and size < offsets_min:  # the remaining ranges are too small for a separate task
        last = groups.pop()
        groups[-1] += last
    return [tuple(group) for group in groups]


def _share(size: int, total: int, count: int) -> int:
    return max(1, (2 * size * count + total) // (2 * total))


def _cut(part: OffsetRange, count: int) -> list[OffsetRange]:
    if count <= 1 or (part.reach is not None and part.reach.append_time_only):
        return [part]
    bounds = [part.start + part.size * index // count for index in range(count + 1)]
    pieces = [replace(part, start=start, end=end, reach=None) for start, end in itertools.pairwise(bounds)]
    pieces[-1] = replace(pieces[-1], reach=part.reach)
    return pieces
