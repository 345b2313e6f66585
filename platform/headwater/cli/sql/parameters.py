"""Values of `--param`: Python values, which Spark takes as literals. No value becomes part of a statement's text."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from headwater.cli.shell.errors import CliError

_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")
_DECIMAL: Final = re.compile(r"-?(0|[1-9]\d{0,17})\.\d{1,18}")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}


def _boolean(text: str) -> bool:
    value = _WORDS.get(text.lower())
    if not isinstance(value, bool):
        raise ValueError(text)
    return value


def _timestamp(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "bigint": int,
    "double": float,
    "decimal": Decimal,
    "boolean": _boolean,
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
}
"""Spark's types that a parameter can have, and how its text is read; a timestamp without a zone is UTC."""


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` and `NAME:TYPE=VALUE`. Raises CliError.

    >>> parameters(["n=5", "code=007", "day:date=2013-01-01", "id:string=5"])
    {'n': 5, 'code': '007', 'day': datetime.date(2013, 1, 1), 'id': '5'}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, value = _parameter(text)
        if name in found:
            raise CliError("sql", f"--param {name} is given twice")
        found[name] = value
    return found


def _parameter(text: str) -> tuple[str, Any]:
    left, separator, value = text.partition("=")
    name, _, kind = left.partition(":")
    if not separator or not _NAME.fullmatch(name):
        raise CliError("sql", f"--param {text[:60]!r} is not of the form NAME=VALUE or NAME:TYPE=VALUE")
    if not kind:
        return name, inferred(value)
    reader = TYPES.get(kind.lower())
    if reader is None:
        raise CliError("sql", f"--param {name}: unknown type {kind[:30]!r}", f"known: {', '.join(TYPES)}")
    try:
        return name, reader(value)
    except (ValueError, InvalidOperation):
        raise CliError("sql", f"--param {name}: {value[:60]!r} is not a {kind.lower()}") from None


def inferred(text: str) -> Any:
    """The value of a text without a type: a number, true, false or null as SQL writes them; else the text.

    >>> inferred("-7"), inferred("2.50"), inferred("true"), inferred("1e3"), inferred("")
    (-7, Decimal('2.50'), True, '1e3', '')
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    return _WORDS.get(text.lower(), text)
