"""Finds the row that cannot be written, after a task has failed: its file, and its number there.

Spark names neither, so the rows are encoded again without being sent: by halves of the files, then by halves of the
rows of the first file that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines.spark.session_settings import settings_for_a_job
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RowFault", "find_fault", "first_failing"]

_NUMBER: Final = "_headwater_row"
_FILE: Final = "_headwater_file"
#: Larger than any file: a file is read by one task, in its order.
_WHOLE_FILES: Final = {"spark.sql.files.maxPartitionBytes": str(1 << 50), "spark.sql.files.openCostInBytes": "0"}


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that cannot be written: the URL of its file, its number there from 1 on, and the reason."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"row {self.row:,} of {self.file} cannot be written: {self.reason}"


def find_fault(rows: DataFrame, file_column: str, encode: Callable[[DataFrame], None]) -> RowFault | None:
    """The first row, by file and number, with which `encode` fails; None if it does not fail again, or without files.

    `encode` computes the records of some rows and raises Spark's error.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    reasons: dict[int, str] = {}

    def fails(some: DataFrame) -> str | None:
        try:
            encode(some.drop(_FILE, _NUMBER))
        except (PySparkException, Py4JJavaError) as error:
            return first_line(error)
        return None

    try:
        placed = rows.withColumn(_FILE, f.col(file_column))
        with settings_for_a_job(rows.sparkSession, _WHOLE_FILES):
            files = sorted(row[0] for row in placed.select(_FILE).distinct().collect())
    except PySparkException:
        return None
    with settings_for_a_job(rows.sparkSession, _WHOLE_FILES):
        position = first_failing(len(files), lambda low, high: fails(placed.where(f.col(_FILE).isin(files[low:high]))))
        if position is None:
            return None
        numbered = placed.where(f.col(_FILE) == files[position]).withColumn(_NUMBER, f.monotonically_increasing_id())

        def fails_at(low: int, high: int) -> str | None:
            reason = fails(numbered.where((f.col(_NUMBER) >= low) & (f.col(_NUMBER) < high)))
            if reason is not None:
                reasons[low] = reason
            return reason

        row = first_failing(numbered.count(), fails_at)
        return None if row is None else RowFault(files[position], row + 1, reasons[row])


def first_failing(count: int, fails: Callable[[int, int], str | None]) -> int | None:
    """The first position whose range [position, position + 1) fails; None if none does.

    A range fails if one of its positions does.

    >>> first_failing(9, lambda low, high: "bad" if low <= 5 < high else None)
    5
    >>> first_failing(9, lambda low, high: None)
    """
    low, high = 0, count
    if not count or fails(low, high) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle) is not None:
            high = middle
        elif fails(middle, high) is not None:
            low = middle
        else:
            return None
    return low
