"""The unified table of a topic whose archive is on a real HDFS: as a table, and as a stream."""

from __future__ import annotations

import pytest

from tests.spark.sql.test_unified import JSON, Unified, unified
from tests.spark.sql.test_unified_streams import require_alike, trimmed

__all__ = ["unified"]

pytestmark = pytest.mark.slow


def test_history_on_hdfs_and_the_log_behind_it_are_one_table_and_one_stream(unified: Unified, hdfs_lake: str) -> None:
    lab = unified.lab
    lab.create("@flights", 2)
    unified.declare(JSON.replace("root: lake", f'root: "{hdfs_lake}"'))
    for start in (0, 5):
        for partition in range(2):
            unified.flights(range(start, start + 5), partition)
        unified.archive()
    lab.spark.sql(f"OPTIMIZE delta.`{hdfs_lake}/{lab.name('@flights')}`")
    trimmed(unified, {0: 10, 1: 7})
    for partition in range(2):
        unified.flights(range(10, 20), partition)
    assert unified.ids() == [*range(20)] * 2
    assert lab.one("SELECT count(*) FROM lake.@flights") == 20
    assert lab.one("SELECT count(*) FROM @flights a JOIN @flights b USING (_partition, _offset)") == 40
    assert len(require_alike(unified)) == 40
