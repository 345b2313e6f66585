"""The partition columns of a table or a folder, as `partition_by` declares them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

from headwater.pipelines.definition.model import Shown
from headwater.pipelines.definition.sinks.model import Within

PartitionBy: TypeAlias = Annotated[tuple[str, ...], Shown("list of SQL expressions")]


def partition_column(expression: str) -> tuple[str, str]:
    """Return name and expression of a partition column: `EXPRESSION AS NAME`, a column, or an unnamed expression.

    >>> partition_column("to_date(departed_at) AS day")
    ('day', 'to_date(departed_at)')
    >>> partition_column("carrier")
    ('carrier', 'carrier')
    >>> partition_column("to_date(departed_at)")
    ('to_date_departed_at', 'to_date(departed_at)')
    """
    named = re.fullmatch(r"(?is)(.+?)\s+as\s+`?([a-z_][a-z0-9_]*)`?\s*", expression)
    if named:
        return named[2], named[1].strip()
    plain = expression.strip().strip("`")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", plain):
        return plain, expression.strip()
    return re.sub(r"[^A-Za-z0-9]+", "_", expression).strip("_").lower(), expression.strip()


def partition_names(partition_by: Sequence[str]) -> tuple[str, ...]:
    """Names of the partition columns."""
    return tuple(partition_column(expression)[0] for expression in partition_by)


def partition_expressions(partition_by: Sequence[str]) -> Iterator[tuple[Within, str]]:
    """The expressions, each with its place in the sink."""
    for position, expression in enumerate(partition_by):
        yield ("partition_by", position), expression
