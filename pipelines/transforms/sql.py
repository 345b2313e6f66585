"""SQL over frames: each frame is a view in its stage's session, which also has the tables as views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply(views: Mapping[str, DataFrame], text: str) -> DataFrame:
    """Run the SQL over the frames, which share one session."""
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"`{name}`")
    return next(iter(views.values())).sparkSession.sql(text)
