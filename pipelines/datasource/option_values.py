"""Values of options: case-insensitive lookup, parsing, and errors that name the option."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from headwater.pipelines.datasource.errors import OptionError

__all__ = ["OptionValues", "duration_ms"]

_T = TypeVar("_T")

# Options that Spark itself adds for a reader or writer; ignored.
_SPARK_OWN: Final = frozenset({"path", "checkpointlocation", "querytype", "streamname", "name"})
# Properties of a table that Spark's catalog passes among its options: `TableCatalog`'s reserved names, and each option
# again behind this prefix.
_TABLE_OWN: Final = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider", "serialization.format"}
)
_TABLE_OPTION: Final = "option."
_MS: Final = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class OptionValues:
    """The options given to a reader or writer.

    Each of `parse`, `integer` and so on raises OptionError, which names the option, its value and the fault. Options
    that may be secret are not read with these methods.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}

    def names(self) -> Iterable[str]:
        """The names given, in lower case."""
        return self._given.keys()

    def check_known(self, known: Iterable[str], doing: str) -> None:
        """Refuse unknown options, suggesting the nearest known name."""
        names = {name.lower(): name for name in known}
        for given in self._given:
            if given in names or given in _SPARK_OWN or given in _TABLE_OWN:
                continue
            if given.startswith(_TABLE_OPTION) and given.removeprefix(_TABLE_OPTION) in self._given:
                continue
            near = difflib.get_close_matches(given, names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            raise OptionError(f"option {given!r} is not known to headwater when {doing}{hint}")

    def text(self, name: str) -> str | None:
        """The value without surrounding white space, None if the option is not set."""
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def parse(self, name: str, parser: Callable[[str], _T], default: _T) -> _T:
        """The parsed value; the parser's ValueErrors become OptionErrors."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return parser(text)
        except ValueError as error:
            raise OptionError(f"option {name} = {text!r}: {error}") from None

    def integer(self, name: str, default: int, *, low: int = 1, high: int = INT_MAX) -> int:
        """An integer within limits."""

        def parse(text: str) -> int:
            if not re.fullmatch(r"-?\d{1,19}", text):
                raise ValueError("not a whole number")
            if not low <= int(text) <= high:
                raise ValueError(f"not between {low} and {high}")
            return int(text)

        return self.parse(name, parse, default)

    def integer_or_none(self, name: str, *, low: int, high: int) -> int | None:
        """An integer within limits, None if the option is not set."""
        return None if self.text(name) is None else self.integer(name, low, low=low, high=high)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self.choice(name, {"true": True, "false": False}, default)

    def choice(self, name: str, choices: Mapping[str, _T], default: _T) -> _T:
        """One of several words, case-insensitive."""

        def parse(text: str) -> _T:
            if text.lower() not in choices:
                raise ValueError(f"only {' or '.join(choices)} is supported")
            return choices[text.lower()]

        return self.parse(name, parse, default)


def duration_ms(text: str) -> int:
    """A duration in Spark's notation: a number and a unit, milliseconds without a unit.

    >>> [duration_ms(text) for text in ("15m", "2 h", "250", "1500us", "90s")]
    [900000, 7200000, 250, 1, 90000]
    >>> duration_ms("soon")
    Traceback (most recent call last):
    ValueError: not a time such as 500ms, 30s, 15m, 2h or 1d
    """
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] and found[2] not in _MS):
        raise ValueError("not a time such as 500ms, 30s, 15m, 2h or 1d")
    return int(int(found[1]) * _MS[found[2] or "ms"])
