"""The offsets that Spark has planned to read from topics, which its own EXPLAIN cannot show for a Python source."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headwater.pipelines.datasource.reading import RangePartition
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.datasource.offsets import OffsetRange

__all__ = ["planned_offsets", "planned_text"]

_SOURCE: Final = "headwater"
_SHOWN_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999, Python's last


def planned_offsets(frame: DataFrame) -> list[list[OffsetRange]]:
    """The ranges of each scan of `format("headwater")` in a batch frame's plan, by topic and partition.

    The filters of the frame have narrowed them. They are those of this frame: executing it reads them, a frame made
    anew asks the brokers again.
    """
    scans = []
    for partitions in jvm.python_scan_partitions(frame, _SOURCE):
        # Pickled by the planner that this session's JVM has started, as Spark's workers are given them.
        tasks = [pickle.loads(pickled) for pickled in partitions]  # noqa: S301
        ranges = [part for task in tasks if isinstance(task, RangePartition) for part in task.ranges]
        scans.append(sorted(ranges, key=lambda part: (part.topic, part.partition, part.start)))
    return scans


def planned_text(part: OffsetRange) -> str:
    """A range as a line of EXPLAIN.

    >>> from headwater.pipelines.datasource.offsets import OffsetRange, Reach
    >>> planned_text(OffsetRange("flights", 0, 5, 40))
    'flights-0: offsets 5 to 39 (35)'
    >>> planned_text(OffsetRange("flights", 1, 40, 40, reach=Reach(90, 1061, append_time_only=False)))
    'flights-1: from offset 40 to the first batch not earlier than 1970-01-01 00:00:01.061 UTC, at most to 89'
    """
    where = f"{part.topic}-{part.partition}"
    if part.reach is None:
        return f"{where}: offsets {part.start} to {part.end - 1} ({part.size})"
    later = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(part.reach.later_ms, _SHOWN_MS_MAX))
    moment = later.strftime("%Y-%m-%d %H:%M:%S.") + f"{later.microsecond // 1000:03}"
    begin = (
        f"offsets {part.start} to {part.end - 1} ({part.size}), and on" if part.size else f"from offset {part.start}"
    )
    return f"{where}: {begin} to the first batch not earlier than {moment} UTC, at most to {part.reach.end - 1}"
