"""Values of Spark's as JSON and as cells of a table. Pure."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

CELL_WIDTH_MAX: Final = 60


def row_values(schema: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The function that takes a row's values with each TIMESTAMP in UTC.

    PySpark gives it as the time of the process's time zone, without saying so, as a TIMESTAMP_NTZ, which has none.
    """
    steps = [_in_utc(each.dataType) for each in schema.fields]

    def values(row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(value if step is None else step(value) for step, value in zip(steps, row, strict=True))

    return tuple if all(step is None for step in steps) else values


def _in_utc(data_type: Any) -> Callable[[Any], Any] | None:
    """The function that brings a value's timestamps to UTC; None if its type has none."""
    step = _step(data_type)
    return None if step is None else lambda value: None if value is None else step(value)


def _step(data_type: Any) -> Callable[[Any], Any] | None:
    kind = data_type.typeName()
    if kind == "timestamp":
        return lambda value: value.astimezone(dt.UTC)
    if kind == "array":
        of = _in_utc(data_type.elementType)
        return None if of is None else lambda value: [of(each) for each in value]
    if kind == "map":
        keys, values = (_in_utc(each) or _same for each in (data_type.keyType, data_type.valueType))
        if keys is _same and values is _same:
            return None
        return lambda value: {keys(k): values(v) for k, v in value.items()}
    if kind == "struct":
        names, steps = data_type.names, [_in_utc(each.dataType) or _same for each in data_type.fields]
        if all(step is _same for step in steps):
            return None
        return lambda value: {name: step(v) for name, step, v in zip(names, steps, value, strict=True)}
    return None


def _same(value: Any) -> Any:
    return value


def equal_names(schema: Any, *, keyed: bool) -> Sequence[str]:
    """Names that columns share, if rows are `keyed` by them, and names that fields of a structure share."""
    found = {name for fields in _objects(schema, keyed=keyed) for name in fields if fields.count(name) > 1}
    return sorted(found)


def _objects(data_type: Any, *, keyed: bool = True) -> Iterator[list[str]]:
    kind = data_type.typeName()
    if kind == "struct":
        if keyed:
            yield data_type.names
        inner = [each.dataType for each in data_type.fields]
    else:
        inner = [data_type.elementType] if kind == "array" else [data_type.valueType] if kind == "map" else []
    for each in inner:
        yield from _objects(each)


def plain(value: Any) -> Any:
    """Convert a value of Spark's to JSON types; bytes that are not UTF-8 become `X'…'`, Spark's literal of them.

    >>> import datetime
    >>> plain([datetime.date(2013, 1, 1), b"N14228", bytes([0, 255]), None, 2.5])
    ['2013-01-01', 'N14228', "X'00FF'", None, 2.5]
    >>> plain([datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC), datetime.datetime(2013, 1, 1), Decimal("0E-3")])
    ['2013-01-01T05:00:00Z', '2013-01-01T00:00:00', '0.000']
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
    if isinstance(value, dt.datetime) and value.tzinfo is dt.UTC:
        return value.replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.timedelta):
        return interval_of(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def interval_of(value: dt.timedelta) -> str:
    """Show a duration as Spark's literal.

    >>> import datetime
    >>> interval_of(datetime.timedelta(minutes=-1)), interval_of(datetime.timedelta(days=2, milliseconds=5))
    ("INTERVAL '-0 00:01:00' DAY TO SECOND", "INTERVAL '2 00:00:00.005' DAY TO SECOND")
    """
    seconds, micros = divmod(abs(value) // dt.timedelta(microseconds=1), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    sign = "-" if value < dt.timedelta() else ""
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return f"INTERVAL '{sign}{days} {hour:02}:{minute:02}:{second:02}{fraction}' DAY TO SECOND"


def text_of(value: bytes) -> str:
    """Show bytes as text where they are UTF-8, else as Spark's literal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"X'{value.hex().upper()}'"


def record(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Convert a row to a JSON object; the names differ (`equal_names`)."""
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
