"""Values of Spark's as JSON and as cells of a table. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

CELL_WIDTH_MAX: Final = 60


def plain(value: Any) -> Any:
    """Convert a value of Spark's to JSON types; bytes that are not UTF-8 become `X'…'`, Spark's literal of them.

    >>> import datetime
    >>> plain([datetime.date(2013, 1, 1), b"N14228", bytes([0, 255]), None, 2.5])
    ['2013-01-01', 'N14228', "X'00FF'", None, 2.5]
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return text_of(bytes(value))
    if hasattr(value, "asDict"):
        return {name: plain(v) for name, v in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def text_of(value: bytes) -> str:
    """Show bytes as text where they are UTF-8, else as Spark's literal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"X'{value.hex().upper()}'"


def record(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Convert a row to a JSON object; of two columns with the same name, the last remains."""
    return {name: plain(value) for name, value in zip(names, row, strict=True)}


def csv_cells(row: Sequence[Any]) -> list[Any]:
    """Convert a row to the cells of CSV; structures become JSON, and null an empty cell."""
    cells = []
    for value in row:
        shown = plain(value)
        cells.append(json.dumps(shown) if isinstance(shown, dict | list) else "" if shown is None else shown)
    return cells


def cell(value: Any) -> str:
    """Format a value for a table.

    >>> cell(None), cell(12.345678), cell(336776)
    ('', '12.35', '336,776')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    shown = plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"
