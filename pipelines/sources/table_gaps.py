"""Counts of undecodable records missing from tables of topics, for commands that show rows without a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded, TopicTable
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.sources.latest import latest_decoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["TableGap", "gaps_of"]


@dataclass(frozen=True, slots=True)
class TableGap:
    """The latest records of keys that a table omits: their number, the first one's position, and the error.

    >>> print(TableGap("shops", "s", 2, 0, 17, "qty is no INT"))
    table shops lacks 2 records of topic s that cannot be decoded; the first is partition 0, offset 17: qty is no INT
    """

    table: str
    topic: str
    records: int
    partition: int
    offset: int
    error: str

    def __str__(self) -> str:
        count = f"{self.records:,} records" if self.records > 1 else "1 record"
        first = f"the first is partition {self.partition}, offset {self.offset}: {self.error}"
        return f"table {self.table} lacks {count} of topic {self.topic} that cannot be decoded; {first}"


def gaps_of(
    session: SparkSession, loaded: Loaded, known: KnownColumns, tables: Iterable[str], where: Brokers
) -> list[TableGap]:
    """The gaps of the tables that are topics. Reads their topics; raises the errors of Spark or of the broker."""
    from pyspark.sql import functions as f

    found = []
    for name in tables:
        table = loaded.pipeline.tables[name]
        if not isinstance(table, TopicTable):
            continue
        decoded = latest_decoded(known, topic_source.batch(session, where, table.topic), table)
        place = f.struct(columns.PARTITION, columns.OFFSET, columns.ERROR)
        bad = decoded.where(f.col(columns.ERROR).isNotNull())
        row = bad.agg(f.count("*").alias("records"), f.min(place).alias("first")).collect()[0]
        if row["records"]:
            first = row["first"]
            gap = TableGap(
                name, table.topic, row["records"], first[columns.PARTITION], first[columns.OFFSET], first[columns.ERROR]
            )
            found.append(gap)
    return found
