"""How the product's Spark session reaches its Python workers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.pipelines.spark.worker_sockets import FOLDER_CONF

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

OPEN_AND_CLOSE = """
import sys, tempfile
from pathlib import Path
from headwater.pipelines.spark.session import close_session, open_session
spark = open_session("sockets", sys.argv[1], {"spark.master": "local[1]"})
print(spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT").count(), end=" ")
print(len(list(Path(tempfile.gettempdir()).glob("headwater-*/.*.sock"))) > 0, end=" ")
close_session()
print(list(Path(tempfile.gettempdir()).glob("headwater-*")))
"""


def test_workers_are_reached_by_sockets_that_only_this_user_may_reach(delta_spark: SparkSession) -> None:
    def ways(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            found = [os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR", "TCP")] * batch.num_rows
            yield pa.record_batch([pa.array(found)], names=["way"])

    folder = delta_spark.sparkContext.getConf().get(FOLDER_CONF)
    assert folder is not None
    rows = delta_spark.range(2).mapInArrow(ways, "way STRING").collect()
    assert [row.way for row in rows] == [folder, folder]
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert any(stat.S_ISSOCK(path.stat().st_mode) for path in Path(folder).iterdir())


@pytest.mark.parametrize("has_room", [True, False])
def test_nothing_of_the_sockets_is_left_when_the_session_is_closed(tmp_path: Path, has_room: bool) -> None:
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short) if has_room else Path(short) / ("x" * 80)  # too long for the path of a socket: TCP
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-c", OPEN_AND_CLOSE, str(tmp_path / "spark.log")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == f"3 {has_room} []\n", done.stderr
