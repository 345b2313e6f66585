"""Changes of strings, numbers and enumerations."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from headwater.api.registry.json_schema.keywords import is_number
from headwater.api.registry.json_schema.nodes import Node
from headwater.pipelines.schemas.errors import Problem


def strings(original: Node, update: Node) -> Iterator[Problem]:
    """Yield the ways in which the new string schema is narrower."""
    yield from upper_limit(original, update, "maxLength", "MAX_LENGTH")
    yield from lower_limit(original, update, "minLength", "MIN_LENGTH")
    before, after = original.raw.get("pattern"), update.raw.get("pattern")
    if after is not None and before != after:
        if before is None:
            yield Problem("PATTERN_ADDED", "pattern", f"strings must match {after!r} now")
        else:
            yield Problem("PATTERN_CHANGED", "pattern", f"the pattern {before!r} became {after!r}")


def numbers(original: Node, update: Node) -> Iterator[Problem]:
    """Yield the ways in which the new number schema is narrower."""
    yield from upper_limit(original, update, "maximum", "MAXIMUM")
    yield from lower_limit(original, update, "minimum", "MINIMUM")
    yield from upper_limit(original, update, "exclusiveMaximum", "EXCLUSIVE_MAXIMUM")
    yield from lower_limit(original, update, "exclusiveMinimum", "EXCLUSIVE_MINIMUM")
    for keyword, name in (("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"), ("exclusiveMinimum", "EXCLUSIVE_MINIMUM")):
        # Draft 4: true takes the limit itself away.
        if update.raw.get(keyword) is True and original.raw.get(keyword) is not True:
            yield Problem(f"{name}_ADDED", keyword, "the limit itself is not allowed any more")
    before, after = original.raw.get("multipleOf"), update.raw.get("multipleOf")
    if after is not None:
        if before is None:
            yield Problem("MULTIPLE_OF_ADDED", "multipleOf", f"numbers must be multiples of {after} now")
        elif Decimal(str(before)) % Decimal(str(after)) != 0:
            expanded = Decimal(str(after)) % Decimal(str(before)) == 0
            kind = "MULTIPLE_OF_EXPANDED" if expanded else "MULTIPLE_OF_CHANGED"
            yield Problem(kind, "multipleOf", f"multiples of {before} became multiples of {after}")
    if update.integer and not original.integer:
        yield Problem("TYPE_NARROWED", "", "it was number and is integer now")


def enums(original: Node, update: Node) -> Iterator[Problem]:
    """Yield the values removed from an enumeration."""
    left = set(update.values)
    gone = [value for value in original.values if value not in left]
    if gone:
        only_fewer = left <= set(original.values)
        kind = "ENUM_ARRAY_NARROWED" if only_fewer else "ENUM_ARRAY_CHANGED"
        yield Problem(kind, "enum", f"these values are gone: {', '.join(gone)[:200]}")


def upper_limit(original: Node, update: Node, keyword: str, name: str) -> Iterator[Problem]:
    """Yield the problem of an upper limit that was added or decreased."""
    before, after = _limit(original, keyword), _limit(update, keyword)
    if after is None:
        return
    if before is None:
        yield Problem(f"{name}_ADDED", keyword, f"{keyword} is {after} now, and was not limited")
    elif before > after:
        yield Problem(f"{name}_DECREASED", keyword, f"{keyword} went from {before} down to {after}")


def lower_limit(original: Node, update: Node, keyword: str, name: str) -> Iterator[Problem]:
    """Yield the problem of a lower limit that was added or increased."""
    before, after = _limit(original, keyword), _limit(update, keyword)
    if after is None:
        return
    if before is None:
        yield Problem(f"{name}_ADDED", keyword, f"{keyword} is {after} now, and was not limited")
    elif before < after:
        yield Problem(f"{name}_INCREASED", keyword, f"{keyword} went from {before} up to {after}")


def _limit(node: Node, keyword: str) -> Any:
    value = node.raw.get(keyword)
    return value if is_number(value) else None
