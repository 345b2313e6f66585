"""Reads files of tests' rows: JSON, as an array or one row per line, or CSV with a header."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from typing import Any, Final

FILE_BYTES_MAX: Final = 16 << 20
FILE_ROWS_MAX: Final = 10_000  # a test compares rows one by one; load tests need other tools


@dataclass(frozen=True, slots=True)
class RowsOfFile:
    """The rows of a file; CSV values are still text, to be parsed by their columns' types."""

    rows: tuple[dict[str, Any], ...]
    are_texts: bool


def read(path: str) -> RowsOfFile:
    """Read a file. Raises ValueError with the file's fault, or OSError."""
    if os.path.getsize(path) > FILE_BYTES_MAX:
        raise ValueError(f"the file is larger than {FILE_BYTES_MAX} bytes")
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            text = file.read()
        except UnicodeDecodeError:
            raise ValueError("the file is not UTF-8 text") from None
    is_csv = path.lower().endswith(".csv")
    rows = _csv(text) if is_csv else _json(text)
    if len(rows) > FILE_ROWS_MAX:
        raise ValueError(f"the file has {len(rows)} rows, and at most {FILE_ROWS_MAX:,} are compared")
    return RowsOfFile(tuple(rows), is_csv)


def _csv(text: str) -> list[dict[str, Any]]:
    try:
        lines = list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from None
    if not lines:
        raise ValueError("the file is empty; its first line names the columns")
    header = lines[0]
    if len(set(header)) != len(header):
        raise ValueError("the first line names a column twice")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise ValueError(f"line {number} has {len(line)} cells, and the first line names {len(header)} columns")
        rows.append(dict(zip(header, line, strict=True)))
    return rows


def _json(text: str) -> list[dict[str, Any]]:
    rows: Any
    if text.lstrip().startswith("["):
        rows = _parsed(text, "")
    else:
        lines = enumerate(text.splitlines(), 1)
        rows = [_parsed(line, f"line {number}: ") for number, line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is no JSON object")
    found: list[dict[str, Any]] = rows
    return found


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{where}nested too deep") from None
