"""The records of a micro-batch whose rows Spark dropped because they were behind the watermark.

Spark counts such rows without showing them. A batch with a count is read again, and the stage's SELECT up to its first
stateful operator is run over these records alone (see `headwater.pipelines.definition.late_rule`). The operator's own
watermark decides: Spark computes windows here as it does in the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.definition.late_rule import LateRule
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sources.event_times import event_time_us
from headwater.pipelines.spark.source_order import by_source
from headwater.pipelines.sql_text.event_time import EVENT_TIME, RECORD
from headwater.pipelines.transforms import sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["check_rule", "late_records"]

#: Spark's setting, off by default, to merge the rows of a session before it drops late ones.
MERGED_SESSIONS: Final = "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition"

_AT: Final = "_headwater_at_us"


def check_rule(session: SparkSession, stage: str, rule: LateRule, schema: StructType) -> None:
    """Let Spark analyse the SELECTs of a rule before a late record comes; `schema` is that of the input's rows.

    Raises PipelineFailed if Spark may count rows that the rule calls late, and Spark's errors.
    """
    if rule.has_sessions and str(session.conf.get(MERGED_SESSIONS, "false")).lower() == "true":
        raise PipelineFailed(
            f"stage {stage}: late records of session windows cannot be told with {MERGED_SESSIONS}, by which Spark "
            "counts late rows in sessions that are open; leave the setting or late out"
        )
    _rows_with_event_times(session.createDataFrame([], schema), rule)


def late_records(decoded: DataFrame, rule: LateRule, watermark_ms: int) -> DataFrame:
    """The late ones among a batch's decoded records: `columns.ORIGIN`, and the reason in `columns.ERROR`.

    `watermark_ms` is the watermark by which the batch's first stateful operator dropped rows.
    """
    from pyspark.sql import functions as f

    watermark_us = watermark_ms * 1000
    rows = decoded.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
    # A window ends after its rows: those ahead of the watermark need no SELECT.
    behind = rows.where(event_time_us(rows, rule.watermark.column) <= watermark_us)
    made = _rows_with_event_times(behind, rule)
    # A sliding window makes several rows of a record, which is late if all of them were dropped.
    last = made.groupBy(RECORD).agg(f.max(EVENT_TIME).alias(EVENT_TIME)).where(f.col(EVENT_TIME) <= watermark_us)
    why = f.concat(
        f.lit("late: the event time "),
        _moment(f.col(f"{RECORD}.{_AT}")),
        f.lit(" is behind the watermark "),
        _moment(f.lit(watermark_us)),
        f.lit(f" ({rule.watermark.column}, delay {rule.watermark.delay})"),
    )
    found = last.select(*(f.col(f"{RECORD}.{name}").alias(name) for name in columns.ORIGIN), why.alias(columns.ERROR))
    return by_source(found, f.col(columns.KEY), [columns.TOPIC, columns.PARTITION, columns.OFFSET])


def _rows_with_event_times(records: DataFrame, rule: LateRule) -> DataFrame:
    """The rows that reach the stage's first stateful operator: RECORD, and EVENT_TIME in microseconds."""
    from pyspark.sql import functions as f

    origin = [f.col(name) for name in columns.ORIGIN]
    at = event_time_us(records, rule.watermark.column).alias(_AT)
    rows = records.withColumn(RECORD, f.struct(*origin, at))
    for views, text in rule.selects:
        rows = sql.apply(dict.fromkeys(views, rows), text)
    return rows.select(RECORD, event_time_us(rows, rule.by).alias(EVENT_TIME))


def _moment(us: Column) -> Column:
    """Microseconds since 1970 as ISO 8601 in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as f

    seconds = (us / f.lit(1_000_000)).cast("decimal(18,6)")
    zero = f.lit(0)
    moment = f.expr("TIMESTAMP_NTZ'1970-01-01'") + f.make_dt_interval(zero, zero, zero, seconds)
    return f.concat(f.replace(moment.cast("string"), f.lit(" "), f.lit("T")), f.lit("Z"))
