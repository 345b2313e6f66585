"""SQL over frames: each is a view of its name in the session of its stage, where the tables are views, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply(views: Mapping[str, DataFrame], text: str) -> DataFrame:
    """Run the SQL over the frames, which have one session in common."""
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"`{name}`")
    return next(iter(views.values())).sparkSession.sql(text)
