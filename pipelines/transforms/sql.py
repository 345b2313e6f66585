"""A stage's SQL: its topic is a view of the topic's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply(rows: DataFrame, topic: str, text: str) -> DataFrame:
    """Run the SQL over the rows, in the rows' own session, where the static tables are views, too."""
    rows.createOrReplaceTempView(f"`{topic}`")
    return rows.sparkSession.sql(text)
