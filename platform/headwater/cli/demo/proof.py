"""The demo's proof: every source record occurs exactly once in the Delta table or among the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.datasource.brokers import Brokers


@dataclass(frozen=True, slots=True)
class ProofCheck:
    """One statement, the observed counts, and whether the statement holds."""

    statement: str
    observed: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts for the checks; `offsets` are (partition, first, end) of the source topic."""

    table_rows: int
    dead_letters: int
    distinct_sources: int
    outside: int
    late_rows: int
    offsets: Sequence[tuple[int, int, int]]


def gather(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    table: str,
    topic: str,
    offsets: Sequence[tuple[int, int, int]],
    late_rows: int,
) -> Evidence:
    """Count rows of the table and of the dead letters."""
    from pyspark.sql import functions as f

    from headwater.pipelines import columns
    from headwater.pipelines.dead_letters import frames as dead_letters
    from headwater.pipelines.definition.graph import dead_letter_topic
    from headwater.pipelines.sources import topic as topic_source

    stored = spark.read.format("delta").load(table)
    letters = topic_source.batch(spark, bootstrap_servers, dead_letter_topic(topic), headers=True)
    refused = dead_letters.readable(letters).where(f.col("source_topic") == topic)
    sources = stored.select(columns.PARTITION, columns.OFFSET).unionAll(
        refused.select("source_partition", "source_offset")
    )
    ranges = spark.createDataFrame([tuple(o) for o in offsets], "p INT, first BIGINT, end BIGINT")
    inside = (f.col(columns.PARTITION) == f.col("p")) & f.col(columns.OFFSET).between(f.col("first"), f.col("end") - 1)
    counted = (
        sources.groupBy(columns.PARTITION, columns.OFFSET)
        .count()
        .join(f.broadcast(ranges), inside, "left")
        .agg(f.count("*").alias("distinct"), f.count(f.when(f.col("p").isNull(), 1)).alias("outside"))
        .first()
    )
    assert counted is not None, "an aggregate without groups has one row"
    return Evidence(stored.count(), refused.count(), counted["distinct"], counted["outside"], late_rows, offsets)


def checks(evidence: Evidence, expected: int) -> list[ProofCheck]:
    """Return the checks of the proof. Pure.

    >>> good = Evidence(3, 1, 4, 0, 0, [(0, 0, 3), (1, 0, 1)])
    >>> all(check.holds for check in checks(good, 4))
    True
    >>> doubled = Evidence(4, 1, 4, 0, 0, [(0, 0, 3), (1, 0, 1)])
    >>> [check.holds for check in checks(doubled, 4)]
    [True, False, False, True]
    """
    total = evidence.table_rows + evidence.dead_letters
    in_topic = sum(end - first for _, first, end in evidence.offsets)
    once = evidence.distinct_sources == total == in_topic and evidence.outside == 0
    unknown = f", {evidence.outside:,} unknown" if evidence.outside else ""
    return [
        ProofCheck(f"the topic holds {expected:,} records", f"{in_topic:,}", in_topic == expected),
        ProofCheck(
            f"Delta rows + dead letters = {expected:,}",
            f"{evidence.table_rows:,} + {evidence.dead_letters:,}",
            total == expected,
        ),
        ProofCheck(
            "every source (partition, offset) exactly once",
            f"{evidence.distinct_sources:,} of {in_topic:,}" + unknown,
            once,
        ),
        ProofCheck("no row dropped late", f"{evidence.late_rows:,}", evidence.late_rows == 0),
    ]


def all_hold(proof: Sequence[ProofCheck]) -> bool:
    """Whether the proof holds."""
    return all(check.holds for check in proof)
