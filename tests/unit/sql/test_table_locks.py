"""A statement holds the locks of the Delta tables on local disks that it may change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.sql.table_locks import locked_tables

WAIT_S = 60


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "a" / "_delta_log").mkdir(parents=True)
    return tmp_path / "a"


@contextmanager
def locked(text: str, known: dict[str, Path] | None = None, waits: list[str] | None = None) -> Iterator[None]:
    def location(name: tuple[str, ...]) -> str | None:
        return str((known or {}).get(name[-1], "")) or None

    def on_wait(path: str) -> None:
        if waits is None:
            raise TimeoutError(path)
        waits.append(path)

    with locked_tables(text, location, on_wait):
        yield


@pytest.mark.parametrize(
    "text",
    ["OPTIMIZE delta.`{}`", "vacuum delta.`file://{}` RETAIN 200 HOURS", "WITH n AS (SELECT 1) INSERT INTO a TABLE n",
     "MERGE INTO lake.a USING n ON true WHEN MATCHED THEN DELETE", "DELETE FROM a", "ALTER TABLE a ADD COLUMN b INT"],
)  # fmt: skip
def test_what_changes_a_table_waits_for_its_lock(table: Path, text: str) -> None:
    with table_lock(str(table)):
        with pytest.raises(TimeoutError, match=str(table)), locked(text.format(table), {"a": table}):
            pass
        with locked("SELECT * FROM a", {"a": table}), locked("EXPLAIN OPTIMIZE a", {"a": table}):
            pass
    with locked(text.format(table), {"a": table}), pytest.raises(TimeoutError), locked("OPTIMIZE a", {"a": table}):
        pass


def test_a_statement_begins_when_the_lock_is_free(table: Path) -> None:
    waits: list[str] = []
    entered = threading.Event()

    def state() -> None:
        with locked("OPTIMIZE a", {"a": table}, waits):
            entered.set()

    thread = threading.Thread(target=state)
    with table_lock(str(table)):
        thread.start()
        while not waits:
            assert thread.is_alive()
        assert not entered.is_set()
    thread.join(WAIT_S)
    assert entered.is_set()


def test_folders_that_are_no_tables_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    names = {"b": tmp_path / "b", "c": tmp_path / "c"}
    with locked("INSERT INTO b SELECT * FROM c", names), locked("VACUUM delta.`hdfs://n/b`"), locked("DROP TABLE x"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["b"]
