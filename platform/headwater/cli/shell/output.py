"""Data on stdout in the requested format: a table for people; JSON, JSON lines, YAML with stable keys for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], output: str) -> None:
    """Print rows; a table shows `columns` (key -> heading), the other formats all keys."""
    if output == "table":
        _write(format_table(rows, columns))
    elif output == "json":
        _write(json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n")
    elif output == "jsonl":
        _write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        import yaml

        _write(yaml.safe_dump([dict(row) for row in rows], sort_keys=False, allow_unicode=True))


def format_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    r"""Format rows as a table: numbers aligned right, text left.

    >>> print(format_table([{"t": "flights", "n": 6}, {"t": "d", "n": 12}], {"t": "TOPIC", "n": "PARTITIONS"}), end="")
    TOPIC    PARTITIONS
    flights           6
    d                12
    """
    cells = [[format_cell(row.get(key)) for key in columns] for row in rows]
    headings = list(columns.values())
    widths = [max(len(line[i]) for line in [headings, *cells]) for i in range(len(headings))]
    right = [bool(rows) and all(isinstance(row.get(key), int | None) for row in rows) for key in columns]
    lines = []
    for line in [headings, *cells]:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def format_cell(value: Any) -> str:
    """Format one value for people.

    >>> format_cell(None), format_cell([1, 2]), format_cell(True)
    ('-', '1,2', 'yes')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value) or "-"
    return str(value)


def note(message: str) -> None:
    """Print a note about the work on stderr; data goes to stdout."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
