"""Rows to a Delta table, once a micro-batch.

A batch carries txnAppId (which checkpoint) and txnVersion (which batch) in its commit: Delta skips a batch that it has
already.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pipelines import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.spec import DeltaSink


def partition_column(expression: str) -> tuple[str, str]:
    """Name and expression of a partition column: `EXPRESSION AS NAME`, a column, or an expression that names itself.

    >>> partition_column("to_date(departed_at) AS day")
    ('day', 'to_date(departed_at)')
    >>> partition_column("carrier")
    ('carrier', 'carrier')
    >>> partition_column("to_date(departed_at)")
    ('to_date_departed_at', 'to_date(departed_at)')
    """
    named = re.fullmatch(r"(?is)(.+?)\s+as\s+`?([a-z_][a-z0-9_]*)`?\s*", expression)
    if named:
        return named[2], named[1].strip()
    plain = expression.strip().strip("`")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", plain):
        return plain, expression.strip()
    return re.sub(r"[^A-Za-z0-9]+", "_", expression).strip("_").lower(), expression.strip()


def table_rows(rows: DataFrame, sink: DeltaSink) -> DataFrame:
    """The rows as the table holds them: data columns, `columns.LINEAGE`, partition columns."""
    from pyspark.sql import functions as f

    hidden = [name for name in columns.RESERVED if name in rows.columns and name not in columns.LINEAGE]
    rows = rows.drop(*hidden)
    for expression in sink.partition_by:
        name, value = partition_column(expression)
        if name not in rows.columns:
            rows = rows.withColumn(name, f.expr(value))
    return rows


def write(rows: DataFrame, sink: DeltaSink, path: str, app_id: str, batch_id: int) -> None:
    """Append one micro-batch unless the table has it already."""
    frame = table_rows(rows, sink)
    names = [partition_column(expression)[0] for expression in sink.partition_by]
    if names:
        # One task a partition value: else every task writes a small file into every partition.
        frame = frame.repartition(*(f"`{name}`" for name in names))
    writer = frame.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", batch_id)
    (writer.partitionBy(*names) if names else writer).save(path)
