"""The origin columns of decoded records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import Column


def origin() -> list[Column]:
    """The columns of `columns.ORIGIN`, taken from a record's own columns."""
    from pyspark.sql import functions as f

    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    return [f.col(name).alias(alias) for name, alias in zip(names, columns.ORIGIN, strict=True)]
