"""Topics as streams for statements that follow them, and the reasons for which a statement cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.definition import TopicSource
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql import topic_rows
from headwater.pipelines.sql.statement_errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["ArrivingFrames", "require_bounded"]

#: Metadata of the column that a WATERMARK clause names: Spark's `EventTimeWatermark.delayKey`.
WATERMARK_KEY: Final = "spark.watermarkDelayMs"
MARK: Final = "give its topics a WATERMARK clause: FROM t WATERMARK at DELAY OF INTERVAL 1 MINUTE"
_ENDLESS: Final = {
    "Sort": "ORDER BY needs the last row before it can show the first, and a stream has no last row",
    "GlobalLimit": "LIMIT ends a result, and a stream goes on; stop it with Ctrl-C",
    "LocalLimit": "LIMIT ends a result, and a stream goes on; stop it with Ctrl-C",
    "Offset": "OFFSET counts from the first row of a whole result, and a stream is never whole",
    "Tail": "the last rows of a stream never come",
    "Window": "OVER compares each row with rows that may come later, and a stream has no last row",
}


class ArrivingFrames:
    """The records that come to topics from a start on, at most `most` of each topic in a micro-batch."""

    def __init__(
        self, spark: SparkSession, where: Brokers, source_of: Callable[[str], TopicSource], most: int | None
    ) -> None:
        """`source_of` returns a topic's start."""
        self._spark = spark
        self._where = where
        self._source_of = source_of
        self._most = most

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:  # noqa: ARG002 - for batches
        """`NAME`."""
        return topic_rows.arriving(self._spark, self._where, self._source_of(topic), known, self._most)

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:  # noqa: ARG002 - for batches
        """`log.NAME`."""
        return topic_rows.log_arriving(self._spark, self._where, self._source_of(topic), self._most)

    def of_statement(self) -> ArrivingFrames:
        """These: a stream begins where it is told."""
        return self

    def decided_lines(self) -> list[str]:
        """Nothing."""
        return []

    def reason(self, error: Exception, statement: str) -> str:  # noqa: ARG002 - Spark's error tells
        """None."""
        return ""


def require_bounded(spark: SparkSession, plan: Any) -> None:
    """Raise StatementError if an analysed plan (Catalyst's) cannot follow its topics with bounded state."""
    for node in _nodes(plan):
        if not node.isStreaming():
            continue
        name = str(node.nodeName())
        if name in _ENDLESS:
            raise StatementError(f"--follow: {_ENDLESS[name]}")
        if name == "Aggregate" and not _has_event_time(node.children().apply(0)):
            raise StatementError(f"--follow: without a watermark no group is ever final, and all are kept; {MARK}")
        if name in ("Distinct", "Deduplicate", "DeduplicateWithinWatermark"):
            _require_final_keys(node, name)
        if name == "Join":
            _require_bounded_join(spark, node)


def _require_final_keys(node: Any, name: str) -> None:
    child = node.children().apply(0)
    keys = child.output() if name == "Distinct" else node.keys()
    if not any(_is_event_time(each) for each in _each(keys)):
        what = (
            "DISTINCT remembers every row that it has seen, unless a column with a watermark tells when none can repeat"
        )
        raise StatementError(f"--follow: {what}; {MARK}")


def _require_bounded_join(spark: SparkSession, node: Any) -> None:
    """A join of streams must let Spark drop rows of both sides, or it keeps them all."""
    if node.left().isStreaming() and node.right().isStreaming() and not jvm.drops_rows_of_both(spark, node):
        what = (
            "a join of topics keeps the rows of both, unless its condition says that columns with a watermark are "
            "equal, or bounds them on both sides (a.at BETWEEN b.at AND b.at + INTERVAL 1 HOUR)"
        )
        raise StatementError(f"--follow: {what}; {MARK}")


def _has_event_time(plan: Any) -> bool:
    return any(str(node.nodeName()) == "EventTimeWatermark" for node in _nodes(plan))


def _is_event_time(attribute: Any) -> bool:
    return bool(attribute.metadata().contains(WATERMARK_KEY))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    yield from (below for child in _each(plan.children()) for below in _nodes(child))


def _each(sequence: Any) -> Iterator[Any]:
    for position in range(sequence.size()):
        yield sequence.apply(position)
