"""Results on stdout, in each of the formats of `-o`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from headwater.cli.shell.output import note
from headwater.cli.sql.tables import print_table
from headwater.cli.sql.values import csv_cells, record

__all__ = ["FORMATS", "PARQUET", "TABLE_ROWS_MAX", "Output", "followed_output_of", "output_of"]

TABLE_ROWS_MAX: Final = 1_000  # a table is for people; the other formats give every row
PARQUET: Final = "parquet"
FORMATS: Final = ("table", "json", "jsonl", "csv", PARQUET)

Rows = Sequence[tuple[Any, ...]]
PrintTable = Callable[[Sequence[str], Rows], None]


class Output(Protocol):
    """Prints the result of one statement after another. A statement without columns prints nothing."""

    rows_max: int | None
    keyed: bool  # by the columns' names, which must differ

    def begin(self, names: Sequence[str]) -> None:
        """Start a result with these columns."""

    def rows(self, rows: Rows) -> None:
        """Print rows, or keep them until the end."""

    def end(self) -> None:
        """End the result; also called when it remains incomplete."""


class _Table:
    """A table, printed at its end."""

    rows_max: int | None = TABLE_ROWS_MAX
    keyed = False

    def __init__(self, show: PrintTable) -> None:
        self._show = show
        self._names: Sequence[str] | None = None
        self._rows: list[tuple[Any, ...]] = []

    def begin(self, names: Sequence[str]) -> None:
        self._names, self._rows = names, []

    def rows(self, rows: Rows) -> None:
        self._rows += rows

    def end(self) -> None:
        names, self._names = self._names, None
        if names is None:
            return
        self._show(names, self._rows[:TABLE_ROWS_MAX])
        if len(self._rows) > TABLE_ROWS_MAX:
            note(f"only the first {TABLE_ROWS_MAX:,} rows are shown; -o jsonl, json and csv give all")


class _FollowedTable:
    """A table for the rows that have come at once."""

    rows_max: int | None = None
    keyed = False

    def __init__(self) -> None:
        self._names: Sequence[str] = ()

    def begin(self, names: Sequence[str]) -> None:
        self._names = names

    def rows(self, rows: Rows) -> None:
        print_table(self._names, rows)

    def end(self) -> None:
        sys.stdout.flush()


class _Json:
    """One array of objects, an object a line."""

    rows_max: int | None = None
    keyed = True

    def __init__(self) -> None:
        self._names: Sequence[str] | None = None
        self._has_rows = False

    def begin(self, names: Sequence[str]) -> None:
        self._names, self._has_rows = names, False
        sys.stdout.write("[")

    def rows(self, rows: Rows) -> None:
        assert self._names is not None, "begin comes first"
        for row in rows:
            sys.stdout.write(",\n" if self._has_rows else "\n")
            sys.stdout.write(json.dumps(record(self._names, row), ensure_ascii=False))
            self._has_rows = True

    def end(self) -> None:
        if self._names is not None:
            sys.stdout.write("\n]\n" if self._has_rows else "]\n")
            sys.stdout.flush()
        self._names = None


class _JsonLines:
    """An object a line."""

    rows_max: int | None = None
    keyed = True

    def __init__(self) -> None:
        self._names: Sequence[str] = ()

    def begin(self, names: Sequence[str]) -> None:
        self._names = names

    def rows(self, rows: Rows) -> None:
        sys.stdout.writelines(json.dumps(record(self._names, row), ensure_ascii=False) + "\n" for row in rows)
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.flush()


class _NewLines:
    """Prints the lines of a CSV writer, which ends them with a carriage return and a line feed, with the latter."""

    def write(self, line: str) -> None:
        sys.stdout.write(line.removesuffix("\r\n") + "\n")


class _Csv:
    """A header line and a line a row."""

    rows_max: int | None = None
    keyed = False

    def __init__(self) -> None:
        # With the line end \n alone, Python's writer leaves a \r in a field without quotes.
        self._writer = csv.writer(_NewLines(), lineterminator="\r\n")

    def begin(self, names: Sequence[str]) -> None:
        self._writer.writerow(names)

    def rows(self, rows: Rows) -> None:
        self._writer.writerows(csv_cells(row) for row in rows)
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.flush()


def output_of(name: str, show_table: PrintTable = print_table) -> Output:
    """The output of a format other than Parquet."""
    if name == "json":
        return _Json()
    if name == "jsonl":
        return _JsonLines()
    return _Csv() if name == "csv" else _Table(show_table)


def followed_output_of(name: str) -> Output:
    """The output of `--follow`: jsonl, csv or table."""
    return _FollowedTable() if name == "table" else output_of(name)
