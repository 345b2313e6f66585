"""`-o parquet --to FILE`: a result in one Parquet file, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Final

from headwater.pipelines.sql.statement_errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMESTAMPS_CONF: Final = "spark.sql.parquet.outputTimestampType"


def write_parquet(frame: DataFrame, path: str) -> int:
    """Write the rows to a file, replacing it, and return their number.

    Spark's tasks write files in parallel into a folder beside the target, which are then copied together by row group,
    in their order: an ORDER BY holds, and memory need not hold the result. On a cluster the folder must be one that all
    machines share.
    """
    target = os.path.abspath(path)
    try:
        folder = tempfile.mkdtemp(prefix=f".{os.path.basename(target)}-", dir=os.path.dirname(target))
    except OSError as error:
        raise StatementError(f"{path}: {error.strerror}", is_users=False) from None
    try:
        parts = os.path.join(folder, "parts")
        frame.sparkSession.conf.set(TIMESTAMPS_CONF, "TIMESTAMP_MICROS")
        frame.write.parquet(f"file:{parts}")
        rows = _join(parts, os.path.join(folder, "whole"), path)
        os.replace(os.path.join(folder, "whole"), target)
        return rows
    except OSError as error:
        raise StatementError(f"{path}: {error.strerror or error}", is_users=False) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _join(parts: str, whole: str, shown: str) -> int:
    import pyarrow.parquet as pq

    names = sorted(name for name in os.listdir(parts) if name.endswith(".parquet")) if os.path.isdir(parts) else []
    if not names:
        raise StatementError(f"{shown}: no task wrote here; on a cluster, name a folder that all its machines share",
                             is_users=False)  # fmt: skip
    rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        for name in names:
            with pq.ParquetFile(os.path.join(parts, name)) as file:
                if writer is None:
                    writer = pq.ParquetWriter(whole, file.schema_arrow, compression="zstd")
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    writer.write_table(table)
                    rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows
