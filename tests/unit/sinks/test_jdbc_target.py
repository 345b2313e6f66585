"""A database's new target does not inherit the remembered order of a removed one, wherever a crash comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.pipelines.sinks import jdbc

TARGET, LAST, MARK = "items", "headwater_last_1", "left p/s headwater_last_1"


class CrashError(Exception):
    """The process ends here."""


class FakeDatabase(jdbc._Database):
    """Tables by name, and the batches. Statement `fails_at` fails; from `ends_at` on all do, as after a crash."""

    def __init__(self, *tables: str, fails_at: int = 0, ends_at: int = 0) -> None:
        self.tables = set(tables)
        self.batches: dict[str, int] = {}
        self.fails_at, self.ends_at = fails_at, ends_at
        self.steps = 0
        self.is_created_meanwhile = False
        self._sink = cast("Any", SimpleNamespace(table=TARGET))
        self._batches = jdbc.BATCHES

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.fails_at or 0 < self.ends_at <= self.steps:
            raise CrashError

    def has(self, table: str) -> bool:
        self._step()
        return table in self.tables

    def made(self, table: str, rows: Any) -> bool:
        self._step()
        if self.is_created_meanwhile:
            self.tables |= {table, LAST}
            return False
        self.tables.add(table)
        return True

    def committed(self, app_id: str) -> int:
        self._step()
        return self.batches.get(app_id, -1)

    def commit(self, app_id: str, batch_id: int) -> None:
        self._step()
        self.batches[app_id] = batch_id

    def execute(self, statement: str, *values: str | int) -> int:
        self._step()
        if statement.startswith("DROP TABLE "):
            self.tables.remove(statement.removeprefix("DROP TABLE "))
        else:
            assert statement == f"DELETE FROM {jdbc.BATCHES} WHERE writer = ?"
            self.batches.pop(str(values[0]), None)
        return 1

    def make(self) -> None:
        self.make_ordered_target(cast("Any", None), LAST, MARK)


def test_the_order_of_a_removed_target_is_dropped() -> None:
    database = FakeDatabase(LAST)
    database.make()
    assert (database.tables, database.batches) == ({TARGET}, {})


@pytest.mark.parametrize("tables", [(), (TARGET,), (TARGET, LAST)])
def test_the_order_of_a_target_that_is_there_stays(tables: tuple[str, ...]) -> None:
    database = FakeDatabase(*tables)
    database.make()
    assert (database.tables, database.batches) == ({TARGET, *tables}, {})


def test_the_order_stays_where_another_stage_creates_the_target_meanwhile() -> None:
    database = FakeDatabase(LAST)
    database.is_created_meanwhile = True
    database.make()
    assert (database.tables, database.batches) == ({TARGET, LAST}, {})


def test_a_target_that_cannot_be_created_leaves_the_order_and_no_mark() -> None:
    database = FakeDatabase(LAST, fails_at=4)  # the CREATE is refused
    with pytest.raises(CrashError):
        database.make()
    assert (database.tables, database.batches) == ({LAST}, {})


def test_a_crash_at_any_statement_leaves_no_order_of_a_removed_target() -> None:
    whole = FakeDatabase(LAST)
    whole.make()
    assert whole.steps == 8
    for ends_at in range(1, whole.steps + 1):
        database = FakeDatabase(LAST, ends_at=ends_at)
        with pytest.raises(CrashError):
            database.make()
        database.ends_at = 0
        database.make()
        assert (database.tables, database.batches) == ({TARGET}, {}), ends_at
