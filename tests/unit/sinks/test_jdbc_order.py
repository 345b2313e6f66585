"""The SQL that keeps the order of changes, in a database of the standard library, beside the rule in plain Python."""

from __future__ import annotations

import random
import sqlite3
from typing import TypeAlias

import pytest

from headwater.pipelines.definition import Stage
from headwater.pipelines.definition.stage import SEQUENCE_KNOWN
from headwater.pipelines.sinks import jdbc, jdbc_order
from headwater.pipelines.sinks.change_rule import KeyChange, latest
from headwater.pipelines.sinks.stored_rows import DELETED
from headwater.pipelines.transforms.expectations import of_stage

Part: TypeAlias = int | None
Change: TypeAlias = tuple[int, Part, Part, str | None]  # key, the two parts of the sequence, name: none is a delete

SEQUENCE = ("a", "b")
COLUMNS = {name: name.upper() for name in ("id", *SEQUENCE, "name")}


class Database:
    """A target table beside the table of last changes, and a micro-batch of one change at a time."""

    def __init__(self, *rows: Change) -> None:
        self._connection = sqlite3.connect(":memory:")
        order = ", ".join(jdbc_order.names(SEQUENCE))
        self._run(f"CREATE TABLE target ({', '.join(COLUMNS.values())})")
        self._run(f"CREATE TABLE last (id, {order}, {DELETED})")
        self._run(jdbc_order.index_statement("last", ["id"], _quoted))
        self._run(f"CREATE TABLE staged ({', '.join(COLUMNS)}, {DELETED}, {order})")
        self._connection.executemany("INSERT INTO target VALUES (?, ?, ?, ?)", rows)

    def _run(self, statement: str) -> None:
        self._connection.execute(statement)

    def write(self, change: Change, place: int) -> None:
        key, a, b, name = change
        self._run("DELETE FROM staged")
        staged = (key, a, b, name, int(name is None), a, b, f"{place:020}/")
        self._connection.execute("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?, ?)", staged)
        moved = jdbc.move_statements("target", "staged", COLUMNS, ["id"], _quoted)
        for statement in [*ORDERING.passed_over(), *moved, *ORDERING.remembered(DELETED)]:
            self._run(statement)

    def plan(self, statement: str) -> str:
        """How the database would run a statement."""
        return "\n".join(row[-1] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {statement}"))

    def rows(self) -> list[tuple[int, str]]:
        return sorted(self._connection.execute("SELECT id, name FROM target").fetchall())

    def close(self) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    return f'"{name}"'


ORDERING = jdbc_order.Ordering("target", "staged", "last", COLUMNS, ["id"], SEQUENCE, _quoted)


def of_rule(changes: list[Change]) -> list[tuple[int, str]]:
    """What the rule makes of them; a part that is null is the smallest, as `change_order.order` has it."""
    given = [
        KeyChange(key, tuple((part is not None, part or 0) for part in (a, b)), (place,), name)
        for place, (key, a, b, name) in enumerate(changes)
    ]
    return sorted(latest(given).items())  # type: ignore[arg-type]


def written(changes: list[Change], *before: Change) -> list[tuple[int, str]]:
    database = Database(*before)
    try:
        for place, change in enumerate(changes):
            database.write(change, place)
        return database.rows()
    finally:
        database.close()


@pytest.mark.parametrize(
    "changes",
    [
        [(1, 10, 0, "new"), (1, None, 0, "unknown"), (1, 5, 0, "old")],
        [(1, 10, 0, "new"), (1, None, 0, None)],
        [(1, None, 7, "new"), (1, None, 5, "old")],
        [(1, None, None, "first"), (1, None, None, "second")],
        [(1, 3, None, "first"), (1, 3, 0, None), (1, 3, None, "late")],
    ],
)
def test_a_null_is_the_smallest_part_of_a_sequence(changes: list[Change]) -> None:
    assert written(changes) == of_rule(changes)


@pytest.mark.parametrize("seed", range(20))
def test_the_table_is_what_the_changes_amount_to_whichever_parts_are_null(seed: int) -> None:
    dice = random.Random(seed)
    parts = (None, 0, 1, 2)
    changes: list[Change] = [
        (dice.randrange(3), dice.choice(parts), dice.choice(parts), None if dice.random() < 0.3 else f"n{n}")
        for n in range(40)
    ]
    assert written(changes) == of_rule(changes)


def test_rows_of_others_in_the_target_are_asked_for_their_sequence() -> None:
    before: list[Change] = [(1, 5, 5, "kept"), (2, 5, None, "replaced"), (3, None, None, "replaced")]
    changes: list[Change] = [(1, 5, None, "late"), (1, None, 9, None), (2, 5, 0, "new"), (3, 0, 0, "new")]
    assert written(changes, *before) == [(1, "kept"), (2, "new"), (3, "new")]


def test_the_last_change_of_a_key_is_looked_up_by_the_index_of_the_keys() -> None:
    database = Database()
    try:
        remembered, _ = ORDERING.passed_over()
        assert "last_keys (id=?)" in database.plan(remembered)
    finally:
        database.close()


@pytest.mark.parametrize(
    ("keys", "sequence"), [(["id"], ["b", "a"]), (["id"], ["a"]), (["id", "name"], ["a", "b"]), (["name"], ["a", "b"])]
)
def test_what_is_remembered_by_other_keys_or_another_sequence_is_in_another_table(
    keys: list[str], sequence: list[str]
) -> None:
    assert jdbc_order.last_name("t", keys, sequence) != jdbc_order.last_name("t", ["id"], SEQUENCE)


def test_a_row_without_a_part_of_its_sequence_never_gets_to_a_database() -> None:
    sink = {"jdbc": "jdbc:x://db", "table": "t", "keys": "id", "sequence": list(SEQUENCE)}
    stage = Stage.model_validate({"name": "s", "from": {"topic": "t"}, "to": sink})
    (expected,) = of_stage(stage, ["id", "A", "b"])
    told = (expected.name, expected.that, expected.otherwise)
    assert told == (SEQUENCE_KNOWN, "`a` IS NOT NULL AND `b` IS NOT NULL", "dead_letter")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("name VARCHAR(100)", None),
        ("Id CHAR(2), price DECIMAL(9, 2),`v` INT", "Id CHAR(2), `v` INT"),
        ("price DECIMAL(9, 2) COMMENT 'id INT, v (', v INT", "v INT"),
        ("`id, v` INT, `a``b` CHAR(3)", "`a``b` CHAR(3)"),
        ("`id` CHAR(2)", "`id` CHAR(2)"),
    ],
)
def test_types_of_columns_that_a_table_lacks_are_left_out(given: str, kept: str | None) -> None:
    types = {} if kept is None else {"CreateTableColumnTypes": kept}
    options = {"batchsize": "5", "CreateTableColumnTypes": given}
    assert jdbc_order.of_columns(options, ["id", "V", "a`b"]) == {"batchsize": "5", **types}
