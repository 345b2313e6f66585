"""Rows to a function of the user's, which gets the number of the micro-batch to tell one that runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.pipelines.sinks.stored_rows import with_lineage
from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(rows: DataFrame, path: str, function: Callable[..., Any], batch_id: int) -> None:
    """Call the function. Raises python.UserCodeError with the line of the user's file where it failed."""
    python.call(path, function, with_lineage(rows), batch_id)
