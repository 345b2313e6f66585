"""Rows as a table for people."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, Final

from headwater.cli.sql.values import cell

WIDTH: Final = 200  # in a file or a pipe
WIDTH_MAX: Final = 4_000  # in a pager, which scrolls sideways


def print_table(names: Sequence[str], rows: Sequence[tuple[Any, ...]], title: str = "") -> None:
    """Print a table on stdout: as wide as the terminal, or `WIDTH` into a pipe."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    _print(console, names, rows, title)


def table_text(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Format a table as text, as wide as it is."""
    from rich.console import Console

    text = io.StringIO()
    _print(Console(file=text, highlight=False, width=WIDTH_MAX), names, rows, "")
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _print(console: Any, names: Sequence[str], rows: Sequence[tuple[Any, ...]], title: str) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if title:
        console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(names):
        number = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(Text(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console.print(table)
