"""Tables of `CREATE TABLE ... USING headwater`.

Spark creates and describes such tables, but cannot read a table of a Python data source: its own session catalog passes
none of the table's options to the source, and with another one, such as Delta's, it does not find the source at all. So
the SQL shell makes a relation of the table's options when a statement names it. The tables stay in the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.datasource import DISORDER_CONF, DISORDER_OPTION, PUSHDOWN_OPTION
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["topic_table"]

_PROVIDER: Final = "headwater"


def topic_table(spark: SparkSession, name: str, *, pushdown: bool) -> DataFrame | None:
    """The rows of a table of `USING headwater` in the current schema; None if there is none.

    With `pushdown`, the frame has it if the table was created with it, and Spark must scan it once only. A table
    without a disorder of timestamps has the session's.
    """
    options = jvm.table_options(spark, name, _PROVIDER)
    if options is None:
        return None
    if not pushdown:
        options = {key: value for key, value in options.items() if key.lower() != PUSHDOWN_OPTION}
    disorder = spark.conf.get(DISORDER_CONF, None)
    if disorder is not None and DISORDER_OPTION.lower() not in map(str.lower, options):
        options = {**options, DISORDER_OPTION: disorder}
    return spark.read.format(_PROVIDER).options(**options).load()
