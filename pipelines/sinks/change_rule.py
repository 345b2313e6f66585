"""The rule of merges: the result of changes, independent of micro-batch boundaries. Pure.

A change is later than another change of its key if its sequence is greater, or if the sequences are equal and its
position at the source is greater. The position is the change's position in the database's log (Debezium's lsn, or file,
position and row), then the record's offset, partition and topic. Without a position in the rows, the change that
arrives later is later.

- The latest state (SCD 1): a key has the row of its latest change, and no row if that change is a delete.
- The history (SCD 2): of a key's changes with the same sequence (the moment), the latest applies. A state is valid
  from its moment to the moment of the next change, which is a state or a delete.
- The history with tracked columns: a run of successive states with the same values of these columns (null equals null)
  is one state. It is valid from the run's first moment, and has the row of the run's last change. A delete ends a run.

Deletes are ordered like any change: a delete hides older changes of its key that arrive after it. Sinks implement this
rule in Spark and SQL, and tests compare the sinks with these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from headwater.pipelines import columns

__all__ = ["POSITION", "KeyChange", "State", "history", "latest"]

#: Columns that order changes with the same sequence, the most significant first, and their Spark types.
POSITION: Final = dict(zip(columns.POSITION, ("string", "bigint", "int", "string"), strict=True))


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change of one key's row. `position` has the order of POSITION; `row` is None for a delete."""

    key: Hashable
    sequence: Any
    position: tuple[Any, ...]
    row: Any


@dataclass(frozen=True, slots=True)
class State:
    """A row with its period of validity; `valid_to` is None for the current state."""

    key: Hashable
    row: Any
    valid_from: Any
    valid_to: Any


def latest(changes: Iterable[KeyChange]) -> dict[Hashable, Any]:
    """The current row of each existing key. `changes` are in the order of arrival.

    >>> put, late = KeyChange(1, 10, (5,), "a"), KeyChange(1, 10, (3,), "b")
    >>> latest([put, late]), latest([put, KeyChange(1, 10, (6,), None), late])
    ({1: 'a'}, {})
    """
    last: dict[Hashable, KeyChange] = {}
    for change in changes:
        known = last.get(change.key)
        if known is None or (change.sequence, change.position) >= (known.sequence, known.position):
            last[change.key] = change
    return {key: change.row for key, change in last.items() if change.row is not None}


def history(changes: Iterable[KeyChange], tracked: Callable[[Any], Any] | None = None) -> list[State]:
    """Every state of each key, by key and time. `changes` are in the order of arrival.

    `tracked` returns a row's values of the tracked columns; None if every change starts a state.

    >>> for state in history([KeyChange(1, 20, (2,), None), KeyChange(1, 10, (9,), "a"), KeyChange(1, 20, (1,), "b")]):
    ...     print(state.row, state.valid_from, state.valid_to)
    a 10 20
    >>> rows = [KeyChange(1, moment, (), row) for moment, row in [(10, "a1"), (30, "b1"), (20, "a2")]]
    >>> for state in history(rows, tracked=lambda row: row[0]):
    ...     print(state.row, state.valid_from, state.valid_to)
    a2 10 30
    b1 30 None
    """
    moments: dict[Hashable, dict[Any, KeyChange]] = {}
    for change in changes:
        own = moments.setdefault(change.key, {})
        known = own.get(change.sequence)
        if known is None or change.position >= known.position:
            own[change.sequence] = change
    found: list[State] = []
    for key, own in moments.items():
        points = sorted(own)
        before = None  # the row of the point before
        for start, end in zip(points, [*points[1:], None], strict=True):
            row = own[start].row
            if row is not None and before is not None and tracked is not None and tracked(row) == tracked(before):
                found[-1] = replace(found[-1], row=row, valid_to=end)
            elif row is not None:
                found.append(State(key, row, start, end))
            before = row
    return found
