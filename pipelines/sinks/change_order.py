"""The order of changes (`change_rule`) as Spark columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from headwater.pipelines.sinks.change_rule import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column


def known_positions(*sides: Collection[str]) -> list[str]:
    """The columns of POSITION that all sides have: only these can be compared.

    >>> known_positions(["id", "_offset", "_partition"], ["_offset", "id"])
    ['_offset']
    """
    return [name for name in POSITION if all(name in side for side in sides)]


def order(sequence: Sequence[str], positions: Sequence[str], side: str = "") -> Column:
    """A column that sorts like the changes; null parts sort first.

    `side` is the alias of the rows. Compared sides must use the same `positions`.
    """
    from pyspark.sql import functions as f

    prefix = f"{side}." if side else ""
    parts = [f.col(f"{prefix}`{name}`") for name in sequence]
    parts += [f.col(f"{prefix}`{name}`").cast(POSITION[name]) for name in positions]
    return f.struct(f.lit(0).alias("_"), *(part.alias(f"_{n}") for n, part in enumerate(parts)))
