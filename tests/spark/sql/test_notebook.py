"""`headwater.sql` and `headwater.table` in a session; a session without Delta ends with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.pipelines.datasource import session_environment
from headwater.pipelines.sql.statement_errors import StatementError

pytestmark = pytest.mark.slow


def test_statements_and_tables_are_frames_that_may_be_scanned_again(lab: Any, tmp_path: Path) -> None:
    lab.create("@a.b", 2)
    for partition in range(2):
        lab.produce("@a.b", [(b"k", str(n).encode()) for n in range(5)], partition)
    where = {"bootstrap_servers": lab.servers}
    rows = headwater.table(lab.spark, lab.name("@a.b"), **where)
    assert (rows.where("partition = 0").count(), rows.count()) == (5, 10)
    assert rows.union(rows.where("offset > 3")).count() == 12
    assert headwater.table(lab.spark, lab.name("log.`@a.b`"), **where).columns[-1] == "headers"
    path = str(tmp_path / "t")
    lab.spark.sql("SELECT 1 AS one").write.format("delta").save(path)
    text = lab.name("SELECT count(*) AS n FROM `@a.b`, t WHERE offset >= :low")
    found = headwater.sql(lab.spark, text, {"low": 3}, tables={"t": path}, **where)
    assert [row.n for row in found.collect()] == [4]
    lab.produce("@a.b", [(b"k", b"5")])
    assert (rows.count(), headwater.table(lab.spark, lab.name("@a.b"), **where).count()) == (10, 11)
    assert headwater.sql(lab.spark, text, {"low": 3}, tables={"t": path}, **where).collect()[0].n == 5
    assert headwater.table(lab.spark, "t", tables={"t": path}, **where).collect() == [(1,)]
    with pytest.raises(StatementError, match=r"did you mean '.*a\.b'\?"):
        headwater.table(lab.spark, lab.name("@a.c"), **where)
    with pytest.raises(StatementError, match="takes one statement, and there are 2"):
        headwater.sql(lab.spark, "SELECT 1; SELECT 2", **where)
    with pytest.raises(StatementError, match="there is no column 'nope'"):
        headwater.sql(lab.spark, "SELECT nope", **where)


WITHOUT_DELTA = """\
import sys
from pyspark.sql import SparkSession
import headwater

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for call in (
    lambda: headwater.table(spark, "t", bootstrap_servers=sys.argv[1], tables={"t": sys.argv[2]}),
    lambda: headwater.sql(spark, "SELECT * FROM t", bootstrap_servers=sys.argv[1], tables={"t": sys.argv[2]}),
    lambda: headwater.sql(spark, "SELECT * FROM log.`%s`" % sys.argv[3], bootstrap_servers=sys.argv[1]),
    lambda: headwater.sql(spark, "SELECT * FROM lake.t", bootstrap_servers=sys.argv[1], tables={"t": sys.argv[2]}),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
print(headwater.table(spark, sys.argv[3], bootstrap_servers=sys.argv[1]).count())
spark.stop()
"""


def test_a_session_without_delta_is_one_line_and_topics_are_read(lab: Any, tmp_path: Path) -> None:
    lab.create("@topic")
    lab.produce("@topic", [(None, b"v")])
    script = tmp_path / "notebook.py"
    script.write_text(WITHOUT_DELTA)
    done = subprocess.run(
        [sys.executable, str(script), lab.servers, str(tmp_path / "t"), lab.name("@topic")],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False,
        env=os.environ | session_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two, log, lake, count = done.stdout.splitlines()
    assert one == two
    assert one.startswith("StatementError ")
    assert "the session has no Delta: start it with spark.jars.packages=io.delta:delta-spark" in one
    assert "needs a session with spark.sql.globalTempDatabase=log" in log
    assert "name the table t, or delta." in lake
    assert count == "1"
