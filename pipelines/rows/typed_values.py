"""Converts values of YAML, JSON and CSV to a column's type. Pure.

A value must have the column's type: text is not a number, and a number is not text. Timestamps are text or YAML
timestamps, in UTC unless they have an offset.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
import struct as binary_struct
from typing import Any

from headwater.pipelines.errors import nearest
from headwater.pipelines.rows.column_types import ColumnType, fields_of, shown

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def typed(kind: ColumnType, value: Any, *, partial: bool = False) -> Any:
    """Convert a value to Arrow's form. Raises ValueError with the fault's position in the value.

    With `partial`, missing fields of structs are omitted instead of null.

    >>> typed("timestamp", "2026-01-01T10:00:00+01:00").isoformat()
    '2026-01-01T09:00:00+00:00'
    >>> typed("long", "7")
    Traceback (most recent call last):
    ValueError: '7' is no BIGINT
    """
    if value is None:
        return None
    if isinstance(kind, str):
        return _scalar(kind, value)
    if kind["type"] == "array" and isinstance(value, list | tuple):
        return [_inner(f"[{i}]", kind["elementType"], item, partial) for i, item in enumerate(value)]
    if kind["type"] == "map" and isinstance(value, dict):
        return {
            typed(kind["keyType"], from_text(kind["keyType"], key) if isinstance(key, str) else key): _inner(
                f".{key}", kind["valueType"], item, partial
            )
            for key, item in value.items()
        }
    if kind["type"] == "struct" and isinstance(value, dict):
        return typed_fields(fields_of(kind), value, partial=partial)
    raise ValueError(_refused(kind, value))


def typed_fields(fields: dict[str, ColumnType], value: dict[str, Any], *, partial: bool) -> dict[str, Any]:
    """Convert a row or a struct. Raises ValueError; for an unknown field, the message suggests the nearest field."""
    for name in value:
        if name not in fields:
            hint = nearest(name, list(fields))
            raise ValueError(f".{name}: there is no such field" + (f"; {hint}" if hint else ""))
    names = [name for name in fields if name in value] if partial else list(fields)
    return {name: _inner(f".{name}", fields[name], value.get(name), partial) for name in names}


def _inner(where: str, kind: ColumnType, value: Any, partial: bool) -> Any:
    try:
        return typed(kind, value, partial=partial)
    except ValueError as error:
        text = str(error)
        raise ValueError(where + (text if text.startswith((".", "[")) else f": {text}")) from None


def _scalar(kind: str, value: Any) -> Any:
    found: Any = None
    if kind in _BITS:
        limit = 1 << (_BITS[kind] - 1)
        found = value if isinstance(value, int) and not isinstance(value, bool) else None
        if found is not None and not -limit <= found < limit:
            raise ValueError(f"{value} is too large for {shown(kind)}")
    elif kind in ("double", "float"):
        found = _double(kind, value)
    elif kind == "boolean":
        found = value if isinstance(value, bool) else None
    elif kind == "string" or kind.startswith(("varchar", "char")):
        if not isinstance(value, str):
            raise ValueError(f"{_value(value)} is not text; quote it")
        found = value
    elif kind == "binary":
        found = value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, bytes) else None
    elif kind in ("timestamp", "timestamp_ntz"):
        found = _moment(kind, value)
    elif kind == "date":
        found = _date(value)
    elif kind.startswith("decimal"):
        found = _decimal(kind, value)
    else:
        raise ValueError(f"rows of tests cannot have values of the type {shown(kind)}")
    if found is None:
        raise ValueError(_refused(kind, value))
    return found


def _refused(kind: ColumnType, value: Any) -> str:
    return f"{_value(value)} is no {shown(kind)}"


def _value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, dt.date):
        return value.isoformat()
    return repr(value)[:60]


def _double(kind: str, value: Any) -> float | None:
    if value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if kind == "double" else binary_struct.unpack("f", binary_struct.pack("f", value))[0]
    except OverflowError:
        raise ValueError(f"{value} is too large for {shown(kind)}") from None


def _moment(kind: str, value: Any) -> dt.datetime | None:
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
    elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time())
    if not isinstance(value, dt.datetime):
        return None
    if kind == "timestamp_ntz":
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)


def _date(value: Any) -> dt.date | None:
    if isinstance(value, str):
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, dt.date) and not isinstance(value, dt.datetime) else None


def _decimal(kind: str, value: Any) -> decimal.Decimal | None:
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
    assert found is not None, f"Spark writes decimals otherwise: {kind}"
    precision, scale = int(found[1]), int(found[2])
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        return None
    try:
        number = decimal.Decimal(str(value))
        fitted = number.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=60))
    except decimal.InvalidOperation:
        return None
    if fitted != number or len(fitted.as_tuple().digits) > max(precision, scale):
        raise ValueError(f"{value} does not fit {shown(kind)}")
    return fitted


def from_text(kind: ColumnType, text: str) -> Any:
    """Parse the text of a CSV cell, or of a map's key, by type; empty text is null, other values are unchanged.

    >>> from_text("long", "7"), from_text("double", ""), from_text("boolean", "true"), from_text("string", "7")
    (7, None, True, '7')
    """
    if isinstance(kind, str) and (kind in ("string", "binary") or kind.startswith(("varchar", "char"))):
        return text
    if not text:
        return None
    if not isinstance(kind, str):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return int(text) if kind in _BITS else float(text) if kind in ("double", "float") else text
    except ValueError:
        return text
