"""Comparison of expected and actual rows: missing, unexpected and nearly equal rows. Pure.

An expected row names some columns; other columns, and struct fields that it does not name, are ignored.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Row: TypeAlias = Mapping[str, Any]

RELATIVE_TOLERANCE = 1e-9  # of floating point: the order of summation may differ
SHOWN_MAX = 20  # differences of one run; the rest are counted
_VALUE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """A differing row. `row` counts expected rows from 1; `columns` are the differences from the nearest row."""

    kind: Literal["missing", "unexpected", "order"]
    row: int = 0
    expected: Row | None = None
    actual: Row | None = None
    columns: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return readable lines."""
        if self.kind == "unexpected":
            assert self.actual is not None
            return [f"unexpected  {row_text(self.actual)}"]
        assert self.expected is not None
        if self.kind == "order":
            return [f"out of order, row {self.row} is expected to be  {row_text(self.expected)}"]
        said = [f"missing     {row_text(self.expected)}"]
        if self.actual is not None:
            named = {name: self.actual.get(name) for name in self.expected}
            parts = (
                f"{name} is {value_text(named[name])}, not {value_text(self.expected[name])}" for name in self.columns
            )
            said.append(f"  nearest   {row_text(named)}: {'; '.join(parts)}")
        return said

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.row:
            found["row"] = self.row
        if self.expected is not None:
            found["expected"] = plain(self.expected)
        if self.actual is not None:
            found["actual"] = plain(self.actual)
        return found | ({"columns": list(self.columns)} if self.columns else {})


def compare(expected: Sequence[Row], actual: Sequence[Row], *, in_order: bool = False) -> list[Difference]:
    """Return the differences; empty if the expected and the actual rows match one to one.

    >>> [d.kind for d in compare([{"a": 1}], [{"a": 1, "b": 2}, {"a": 3, "b": 4}])]
    ['unexpected']
    """
    if in_order and len(expected) == len(actual) and all(map(matches, expected, actual)):
        return []
    partner = _same(expected, actual)
    left = [i for i in range(len(expected)) if i not in partner]
    free = sorted(set(range(len(actual))) - set(partner.values()))
    found_later = _matching([expected[i] for i in left], [actual[j] for j in free])
    partner |= {left[i]: free[j] for i, j in found_later.items()}
    missing = [i for i in range(len(expected)) if i not in partner]
    surplus = [j for j in range(len(actual)) if j not in set(partner.values())]
    if not missing and not surplus:
        if not in_order:
            return []
        return [
            Difference("order", i + 1, expected[i]) for i in range(len(expected)) if not matches(expected[i], actual[i])
        ]
    found = []
    for i in missing:
        near = min(surplus, key=lambda j, i=i: len(_differing(expected[i], actual[j])), default=None)  # type: ignore[misc]
        differing = () if near is None else _differing(expected[i], actual[near])
        if near is None or len(differing) == len(expected[i]):
            found.append(Difference("missing", i + 1, expected[i]))  # no row is similar
        else:
            surplus.remove(near)
            found.append(Difference("missing", i + 1, expected[i], actual[near], differing))
    return found + [Difference("unexpected", actual=actual[j]) for j in surplus]


def matches(expected: Row, actual: Row) -> bool:
    """Return whether a row has the expected values."""
    return all(equal(value, actual.get(name)) for name, value in expected.items())


def equal(expected: Any, actual: Any) -> bool:
    """Return whether two values of one type are equal.

    >>> equal(0.1 + 0.2, 0.3), equal({"a": 1}, {"a": 1, "b": 2}), equal([1], [1, 2])
    (True, True, False)
    """
    if expected is None or actual is None:
        return expected is actual
    if isinstance(expected, float) and isinstance(actual, float):
        return (
            math.isclose(expected, actual, rel_tol=RELATIVE_TOLERANCE)
            or expected == actual
            or (math.isnan(expected) and math.isnan(actual))
        )
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and equal(value, actual[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(equal, expected, actual))
    return bool(expected == actual)


def _differing(expected: Row, actual: Row) -> tuple[str, ...]:
    return tuple(name for name, value in expected.items() if not equal(value, actual.get(name)))


def _same(expected: Sequence[Row], actual: Sequence[Row]) -> dict[int, int]:
    """Return pairs of exactly equal rows, which are most pairs; only if all expected rows name the same columns.

    In that case no other pairing has more pairs, since equal rows are interchangeable.
    """
    if len({frozenset(row) for row in expected}) != 1:
        return {}
    names = list(expected[0])
    places: dict[str, list[int]] = {}
    for j, row in enumerate(actual):
        places.setdefault(repr([row.get(name) for name in names]), []).append(j)
    found = {}
    for i, row in enumerate(expected):
        same = places.get(repr([row[name] for name in names]))
        if same:
            found[i] = same.pop(0)
    return found


def _matching(expected: Sequence[Row], actual: Sequence[Row]) -> dict[int, int]:
    """Return a maximum matching of expected and actual rows, each row in at most one pair.

    Expected rows may name few columns and so match several rows: Kuhn's augmenting paths exchange pairs until no more
    can be added.
    """
    candidates = [[j for j, row in enumerate(actual) if matches(wanted, row)] for wanted in expected]
    owner: dict[int, int] = {}

    for start in range(len(expected)):
        # A path of exchanges, breadth first: `came_from` is the predecessor of an actual row on the path.
        came_from: dict[int, int] = {}
        waiting = [start]
        end = None
        while waiting and end is None:
            i = waiting.pop(0)
            for j in candidates[i]:
                if j in came_from:
                    continue
                came_from[j] = i
                if j not in owner:
                    end = j
                    break
                waiting.append(owner[j])
        while end is not None:
            i = came_from[end]
            taken = next((j for j, other in owner.items() if other == i), None)
            owner[end] = i
            if i == start:
                break
            assert taken is not None, "whoever is exchanged had a row"
            end = taken
    return {i: j for j, i in owner.items()}


def row_text(row: Row) -> str:
    """Format a row in the file's notation.

    >>> row_text({"host": "a", "n": 2, "at": None})
    '{host: a, n: 2, at: null}'
    """
    return "{" + ", ".join(f"{name}: {value_text(value)}" for name, value in row.items()) + "}"


def value_text(value: Any, characters_max: int = _VALUE_CHARACTERS_MAX) -> str:
    """Format a value in the file's notation; long values are truncated."""
    found = plain(value)
    if isinstance(found, str):
        text = found if found and found.isprintable() and not set(found) & set("{}[],:#'\"") else json.dumps(found)
        text = found if isinstance(value, dt.date) else text
    elif isinstance(found, dict):
        text = row_text(found)
    elif isinstance(found, list):
        text = "[" + ", ".join(value_text(item) for item in found) + "]"
    else:
        text = json.dumps(found, ensure_ascii=False)
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def plain(value: Any) -> Any:
    """Convert a value to JSON types.

    >>> plain([dt.date(2026, 1, 1), b"a", decimal.Decimal("1.50")])
    ['2026-01-01', 'a', 1.5]
    """
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat().replace("+00:00", "Z")
    return value if value is None or isinstance(value, bool | int | str) else str(value)
