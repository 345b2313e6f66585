"""A test's input rows: rows with an input's columns, whole records, watermark advances. Pure.

A row has the columns that the stage's SQL sees; omitted columns are null. A row with `_value` is an encoded record of
the topic, decoded as in a run; it may also have `_key`, `_headers`, `_partition`, `_offset` and `_timestamp`.
`{_watermark: MOMENT}` ends the micro-batch and advances the input's watermark to that moment.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines import columns as names
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import nearest
from headwater.pipelines.rows.column_types import Columns, ColumnType
from headwater.pipelines.rows.comparison import plain
from headwater.pipelines.rows.row_files import RowsOfFile
from headwater.pipelines.rows.typed_values import from_text, typed

WATERMARK: Final = "_watermark"
HEADERS: Final = "_headers"

# Defaults of a record's origin.
FIRST_TIMESTAMP: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)

ORIGIN_TYPES: Final[dict[str, ColumnType]] = {
    names.TOPIC: "string",
    names.PARTITION: "integer",
    names.OFFSET: "long",
    names.TIMESTAMP: "timestamp",
    names.KEY: "binary",
    names.VALUE: "binary",
}
_RECORD_FIELDS: Final = (names.VALUE, names.KEY, HEADERS, names.PARTITION, names.OFFSET, names.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Feature:
    """The permitted rows of an input: `topic` is None for inputs other than topics, which have no records."""

    topic: str | None = None
    has_watermark: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a row, with its position in the row."""

    rest: Loc
    message: str
    hint: str = ""


@dataclass(slots=True)
class Fed:
    """One micro-batch's rows of an input. `watermark` is the watermark to reach at the batch's end."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    watermark: dt.datetime | None = None

    @property
    def count(self) -> int:
        """Return the number of rows and records."""
        return len(self.rows) + len(self.records)


def check(given: RowsOfFile, columns: Columns | None, feature: Feature) -> list[Fault]:
    """Return all faults of rows; their columns are checked if `columns` is not None."""
    faults: list[Fault] = []
    for number, row in enumerate(given.rows):
        if WATERMARK in row:
            faults += _watermark_faults(number, row, feature)
        elif _is_record(row, columns, feature):
            faults += _record_faults(number, row, feature)
        elif columns is not None:
            faults += _row_faults(number, row, _all(columns, feature), are_texts=given.are_texts)
    return faults


def _is_record(row: dict[str, Any], columns: Columns | None, feature: Feature) -> bool:
    if feature.topic is not None:
        return names.VALUE in row
    return columns is not None and names.VALUE in row and names.VALUE not in columns


def _all(columns: Columns, feature: Feature) -> dict[str, ColumnType]:
    return {**columns, **(ORIGIN_TYPES if feature.topic is not None else {})}


def _row_faults(number: int, row: dict[str, Any], columns: dict[str, ColumnType], *, are_texts: bool) -> list[Fault]:
    faults = []
    for name, value in row.items():
        if name not in columns:
            known = [known for known in columns if known not in names.RESERVED]
            faults.append(Fault((number, name), f"there is no column '{name}'", nearest(name, known)))
            continue
        try:
            typed(columns[name], _cell(columns[name], value, are_texts=are_texts))
        except ValueError as error:
            faults.append(Fault((number, name), str(error)))
    return faults


def _record_faults(number: int, row: dict[str, Any], feature: Feature) -> list[Fault]:
    if feature.topic is None:
        return [Fault((number, names.VALUE), "only a topic's rows can be given as records", "give the row's columns")]
    faults = [
        Fault(
            (number, name), f"a record has no '{name}'",
            f"{nearest(name, _RECORD_FIELDS)} (a row with {names.VALUE} is a record as it comes)",
        )
        for name in row
        if name not in _RECORD_FIELDS
    ]  # fmt: skip
    headers = row.get(HEADERS)
    if headers is not None and not isinstance(headers, dict):
        faults.append(Fault((number, HEADERS), "headers are a mapping of names to texts"))
    for name in (names.PARTITION, names.OFFSET, names.TIMESTAMP):
        try:
            typed(ORIGIN_TYPES[name], row.get(name))
        except ValueError as error:
            faults.append(Fault((number, name), str(error)))
    return faults


def _watermark_faults(number: int, row: dict[str, Any], feature: Feature) -> list[Fault]:
    if len(row) > 1:
        return [Fault((number, WATERMARK), "a row that moves the watermark has nothing else")]
    if not feature.has_watermark:
        what = "the input has no watermark that could be moved"
        return [Fault((number, WATERMARK), what, "of a watermark among the steps, let a later row move it")]
    try:
        moment = typed("timestamp", row[WATERMARK])
    except ValueError:
        moment = None
    return [] if moment is not None else [Fault((number, WATERMARK), f"{row[WATERMARK]!r} is no moment")]


def _cell(kind: ColumnType, value: Any, *, are_texts: bool) -> Any:
    return from_text(kind, value) if are_texts and isinstance(value, str) else value


def typed_rows(given: RowsOfFile, columns: Columns) -> list[dict[str, Any]]:
    """Return rows of a table, or expected rows, with typed values; only named columns are included.

    Raises ValueError for faulty rows, which `check` reports.
    """
    return [
        {
            name: typed(columns[name], _cell(columns[name], value, are_texts=given.are_texts), partial=True)
            for name, value in row.items()
        }
        for row in given.rows
    ]


def micro_batches(given: RowsOfFile, columns: Columns, feature: Feature, rows_max: int | None) -> list[Fed]:
    """Divide rows into micro-batches of at most `rows_max` rows; None divides at watermark advances only."""
    batches = [Fed()]
    offset = 0
    for row in given.rows:
        present = batches[-1]
        if WATERMARK in row:
            present.watermark = typed("timestamp", row[WATERMARK])
            # Spark drops late rows by the previous batch's watermark: after an empty batch, that is the new watermark.
            batches += [Fed(), Fed()]
            continue
        if rows_max is not None and present.count >= rows_max:
            present = Fed()
            batches.append(present)
        if _is_record(row, columns, feature):
            present.records.append(_record(row, feature, offset))
        else:
            present.rows.append(_fed_row(row, columns, feature, offset, are_texts=given.are_texts))
        offset += 1
    while len(batches) > 1 and not batches[-1].count and batches[-1].watermark is None:
        batches.pop()
    return batches


def _record(row: dict[str, Any], feature: Feature, offset: int) -> dict[str, Any]:
    """Return a record with the columns of `headwater.pipelines.sources.decoding.empty_records`."""
    headers = row.get(HEADERS) or {}
    stamp = typed("timestamp", row.get(names.TIMESTAMP))
    return {
        "key": _bytes(row.get(names.KEY)),
        "value": _bytes(row.get(names.VALUE)),
        "topic": feature.topic,
        "partition": row.get(names.PARTITION, 0),
        "offset": row.get(names.OFFSET, offset),
        "timestamp": FIRST_TIMESTAMP if stamp is None else stamp,
        "headers": [{"key": name, "value": _bytes(value)} for name, value in headers.items()],
    }


def _bytes(value: Any) -> bytes | None:
    """Return text and bytes unchanged, other values as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False).encode()


def _fed_row(
    row: dict[str, Any], columns: Columns, feature: Feature, offset: int, *, are_texts: bool
) -> dict[str, Any]:
    kinds = _all(columns, feature)
    found: dict[str, Any] = dict.fromkeys(columns)
    if feature.topic is not None:
        content = {name: value for name, value in row.items() if name not in ORIGIN_TYPES}
        found |= {
            names.TOPIC: feature.topic,
            names.PARTITION: 0,
            names.OFFSET: offset,
            names.TIMESTAMP: FIRST_TIMESTAMP,
            names.KEY: None,
            names.VALUE: json.dumps(plain(content), ensure_ascii=False).encode(),
        }
    return found | {
        name: typed(kinds[name], _cell(kinds[name], value, are_texts=are_texts)) for name, value in row.items()
    }


def in_step(inputs: Sequence[list[Fed]]) -> list[list[Fed]]:
    """Return the inputs with equal numbers of micro-batches: shorter inputs get empty ones."""
    count = max(len(batches) for batches in inputs)
    return [[*batches, *(Fed() for _ in range(count - len(batches)))] for batches in inputs]
