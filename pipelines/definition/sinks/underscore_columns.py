"""Columns of a sink's rows whose names begin with `_`: whether tables, files and databases store them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

__all__ = ["UnderscoreColumns", "left_out"]

UnderscoreColumns: TypeAlias = Annotated[
    Literal["keep", "omit"],
    Field(
        description="`omit` leaves out columns whose names begin with `_`, such as `_topic` and `_offset`, [except "
        "those that the sink names or makes](#underscore-columns)",
    ),
]


def left_out(option: UnderscoreColumns, names: Iterable[str], named: Collection[str]) -> list[str]:
    """The columns of the rows that a sink does not store. `named` are those that it stores in any case.

    >>> left_out("omit", ["id", "_offset", "_Day", "day_"], ["_day"])
    ['_offset']
    >>> left_out("keep", ["id", "_offset"], [])
    []
    """
    if option == "keep":
        return []
    stored = {name.lower() for name in named}
    return [name for name in names if name.startswith("_") and name.lower() not in stored]
