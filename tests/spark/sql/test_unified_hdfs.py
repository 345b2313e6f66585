"""The unified table of a topic whose archive is on a real HDFS: as a table, and as a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.pipelines.file_systems.opening import file_system
from tests.hdfs import HdfsProcesses
from tests.spark.sql.test_unified import JSON, Unified, unified
from tests.spark.sql.test_unified_streams import require_alike, trimmed

__all__ = ["unified"]

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(hdfs: HdfsProcesses, hdfs_folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    yield hdfs_folder
    file_system(hdfs_folder).delete(hdfs_folder)


def test_history_on_hdfs_and_the_log_behind_it_are_one_table_and_one_stream(unified: Unified, lake: str) -> None:
    lab = unified.lab
    lab.create("@flights", 2)
    unified.declare(JSON.replace("root: lake", f'root: "{lake}"'))
    for start in (0, 5):
        for partition in range(2):
            unified.flights(range(start, start + 5), partition)
        unified.archive()
    lab.spark.sql(f"OPTIMIZE delta.`{lake}/{lab.name('@flights')}`")
    trimmed(unified, {0: 10, 1: 7})
    for partition in range(2):
        unified.flights(range(10, 20), partition)
    assert unified.ids() == [*range(20)] * 2
    assert lab.one("SELECT count(*) FROM lake.@flights") == 20
    assert lab.one("SELECT count(*) FROM @flights a JOIN @flights b USING (_partition, _offset)") == 40
    assert len(require_alike(unified)) == 40
