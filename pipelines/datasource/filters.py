"""Narrows the ranges to fetch by filters on partition, offset, topic and timestamp. Pure.

Filters that require a key, value or headers also determine rows that need not leave a task. Spark still evaluates every
filter, so narrowing too little is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headwater.pipelines.datasource.offsets import OffsetRange

__all__ = ["Narrowing", "is_exact"]

LOW, HIGH = -(2**63), 2**63 - 1
#: The nullable columns.
_NULLABLE = frozenset({"key", "value", "headers"})


@dataclass(slots=True)
class Narrowing:
    """Bounds from filters: intervals of offsets, partitions and timestamps, conditions on topic names.

    `topic_parts` are (how, text): prefixes, suffixes or substrings of topic names; `present` are the columns that are
    non-null in every passing row.
    """

    offset_low: int = LOW
    offset_high: int = HIGH
    partition_low: int = LOW
    partition_high: int = HIGH
    partitions: frozenset[int] | None = None
    partitions_not: frozenset[int] = frozenset()
    topics: frozenset[str] | None = None
    topics_not: frozenset[str] = frozenset()
    topic_parts: tuple[tuple[type[Filter], str], ...] = ()
    timestamp_low_ms: int | None = None
    timestamp_high_ms: int | None = None
    present: frozenset[str] = frozenset()

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """The combined bounds of all filters; filters on other columns are ignored.

        >>> narrowed = Narrowing.of([GreaterThan(("offset",), 9), In(("partition",), (1, 2))])
        >>> narrowed.offset_low, sorted(narrowed.partitions)
        (10, [1, 2])
        """
        result = cls()
        for one in filters:
            if isinstance(one, Not):
                result._apply_not(_column(one.child), one.child)
            else:
                result._apply(_column(one), one)
        return result

    def _apply_not(self, column: str, one: Filter) -> None:
        values = _values(one) or ()
        if column == "partition":
            self.partitions_not |= {value for value in values if isinstance(value, int)}
        elif column == "topic":
            self.topics_not |= {value for value in values if isinstance(value, str)}

    def _apply(self, column: str, one: Filter) -> None:
        if column in ("offset", "partition"):
            bounds = _bounds(one)
            if bounds is None:
                return
            low, high, among = bounds
            if column == "offset":
                self.offset_low, self.offset_high = max(self.offset_low, low), min(self.offset_high, high)
            else:
                self.partition_low, self.partition_high = max(self.partition_low, low), min(self.partition_high, high)
                if among is not None:
                    self.partitions = among if self.partitions is None else self.partitions & among
        elif column == "topic":
            if isinstance(one, StringStartsWith | StringEndsWith | StringContains):
                self.topic_parts += ((type(one), one.value),)
            values = _values(one)
            if values is not None and all(isinstance(value, str) for value in values):
                named = frozenset(values)
                self.topics = named if self.topics is None else self.topics & named
        elif column == "timestamp":
            low_ms, high_ms = _timestamp_bounds_ms(one)
            if low_ms is not None and low_ms > 0:  # ListOffsets has other meanings for negative timestamps
                self.timestamp_low_ms = max(low_ms, self.timestamp_low_ms or 0)
            if high_ms is not None:
                self.timestamp_high_ms = min(
                    high_ms, HIGH if self.timestamp_high_ms is None else self.timestamp_high_ms
                )
        elif column in _NULLABLE and isinstance(one, IsNotNull):
            self.present |= {column}

    def admits(self, topic: str, partition: int) -> bool:
        """Whether a partition can hold a record that passes the filters."""
        if (self.topics is not None and topic not in self.topics) or topic in self.topics_not:
            return False
        if (self.partitions is not None and partition not in self.partitions) or partition in self.partitions_not:
            return False
        if not all(_holds(how, topic, text) for how, text in self.topic_parts):
            return False
        return self.partition_low <= partition <= self.partition_high

    def narrow(self, part: OffsetRange) -> OffsetRange:
        """The part of a range that can pass the filters on offset; empty if none can.

        >>> Narrowing(offset_low=5, offset_high=7).narrow(OffsetRange("t", 0, 0, 100))
        OffsetRange(topic='t', partition=0, start=5, end=8, reach=None)
        """
        start = max(part.start, self.offset_low)
        end = max(start, min(part.end, self.offset_high + 1))
        reach = part.reach
        if reach is not None:
            reach_end = min(reach.end, self.offset_high + 1)
            reach = replace(reach, end=reach_end) if reach_end > end else None
        return replace(part, start=start, end=end, reach=reach)


def is_exact(condition: Filter) -> bool:
    """Whether the narrowing by a filter leaves exactly the rows that pass it, so that Spark need not evaluate it.

    >>> is_exact(LessThan(("offset",), 9)), is_exact(In(("offset",), (1, 9))), is_exact(Not(In(("partition",), (1,))))
    (True, False, True)
    """
    if isinstance(condition, Not):
        column, values = _column(condition.child), _values(condition.child)
        # NOT IN with a null holds for no row.
        has_null = isinstance(condition.child, In) and None in condition.child.value
        return column == "partition" and bool(values) and not has_null and _are_integers(values or ())
    column = _column(condition)
    if column not in ("partition", "offset"):
        return False
    if isinstance(condition, IsNotNull):
        return True
    bounds = _bounds(condition)
    return bounds is not None and (column == "partition" or not isinstance(condition, In))


def _are_integers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, int) for value in values)


def _column(one: Filter) -> str:
    """A filter's column in lower case; empty for no column or a nested field."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    return str(attribute[0]).lower() if len(attribute) == 1 else ""


def _holds(how: type[Filter], topic: str, text: str) -> bool:
    if how is StringStartsWith:
        return topic.startswith(text)
    return topic.endswith(text) if how is StringEndsWith else text in topic


def _values(one: Filter) -> tuple[Any, ...] | None:
    if isinstance(one, EqualTo | EqualNullSafe):
        return (one.value,)
    if isinstance(one, In):
        return tuple(value for value in one.value if value is not None)
    return None


def _bounds(one: Filter) -> tuple[int, int, frozenset[int] | None] | None:
    """(lowest, highest, permitted values) of a filter on an integer, None if the filter sets no usable bound."""
    values = _values(one)
    if values is not None:
        if not _are_integers(values):
            return None
        return (min(values, default=HIGH), max(values, default=LOW), frozenset(values))
    value = getattr(one, "value", None)
    if not isinstance(value, int):
        return None
    if isinstance(one, GreaterThan):
        return value + 1, HIGH, None
    if isinstance(one, GreaterThanOrEqual):
        return value, HIGH, None
    if isinstance(one, LessThan):
        return LOW, value - 1, None
    if isinstance(one, LessThanOrEqual):
        return LOW, value, None
    return None


def _timestamp_bounds_ms(one: Filter) -> tuple[int | None, int | None]:
    """The earliest and the latest passing timestamp in whole milliseconds, as records have them; None if not limited.

    A lower bound maps to offsets exactly: all records before the first late enough record are too early. An upper bound
    does so only within the disorder of timestamps, which need not ascend (see `time_bounds`).
    """
    values = _values(one)
    has_low = values is not None or isinstance(one, GreaterThan | GreaterThanOrEqual)
    has_high = values is not None or isinstance(one, LessThan | LessThanOrEqual)
    if values is None:
        values = (getattr(one, "value", None),) if has_low or has_high else ()
    if not values or not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return None, None
    high_us = _since_epoch_us(max(values)) - isinstance(one, LessThan)
    return _since_epoch_us(min(values)) // 1000 if has_low else None, high_us // 1000 if has_high else None


def _since_epoch_us(moment: datetime) -> int:
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds
