"""Statements in threads of their own: cancelled while they run, plan and wait; results in files; topics as streams."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headwater.cli.sql.execution import Executor, ResultColumns
from headwater.cli.sql.follow import Follower, parse_from, start_of
from headwater.cli.sql.outputs import output_of
from headwater.cli.sql.script import Script, run_script
from headwater.cli.sql.statement_run import Cancelled, StatementRun
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.sql.relations import Known, Relations
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql.streams import ArrivingFrames
from headwater.pipelines.sql.topic_names import TopicNames

pytestmark = pytest.mark.slow

WAIT_S = 120
#: Runs for longer than any test: two tasks that never come to an end.
ENDLESS = "SELECT count(*) FROM (SELECT explode(sequence(1, 100000)) FROM range(1000000000)) WHERE rand() < 2"


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def jobs(lab: Any) -> list[int]:
    return list(lab.spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.fixture
def executor(lab: Any) -> Executor:
    return Executor(lab.spark, lab.relations, output_of("jsonl"))


def test_a_running_statement_is_cancelled_and_the_session_stays(lab: Any, executor: Executor) -> None:
    run = executor.start(lab.statement(ENDLESS))
    wait_for(lambda: jobs(lab) != [])
    run.cancel()
    assert run.wait(WAIT_S)
    wait_for(lambda: jobs(lab) == [])
    assert lab.one("SELECT 1") == 1


def test_a_statement_that_commits_waits_for_the_tables_lock_and_can_be_cancelled(
    lab: Any, executor: Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    lab.spark.range(10).repartition(2).write.format("delta").save(str(table))
    note = f"another process changes {table}: the statement waits"
    with table_lock(str(table)):
        cancelled = executor.start(lab.statement(f"DELETE FROM delta.`{table}`"))
        wait_for(lambda: note in capsys.readouterr().err)
        cancelled.cancel()
        assert cancelled.wait(WAIT_S)
        run = executor.start(lab.statement(f"OPTIMIZE delta.`{table}`"))
        wait_for(lambda: note in capsys.readouterr().err)
    assert [type(chunk) for chunk in run.chunks()] == [ResultColumns, list]
    assert lab.one(f"SELECT count(*) FROM delta.`{table}`") == 10


def test_another_statements_jobs_go_on(lab: Any, executor: Executor) -> None:
    one, two = (executor.start(lab.statement(ENDLESS)) for _ in range(2))
    wait_for(lambda: len(jobs(lab)) == 2)
    one.cancel()
    assert one.wait(WAIT_S)
    wait_for(lambda: len(jobs(lab)) == 1)  # Spark's status tells of a job's end a little later
    assert two.is_alive
    two.cancel()
    assert two.wait(WAIT_S)


def test_rows_that_nobody_takes_do_not_keep_a_cancelled_statement(lab: Any, executor: Executor) -> None:
    run = executor.start(lab.statement("SELECT id FROM range(0, 100000000, 1, 10000)"))
    chunks = run.chunks()
    assert next(chunks) == ResultColumns(["id"])
    assert next(chunks)[0] == (0,)
    run.cancel()
    assert run.wait(WAIT_S)


@pytest.fixture
def silent() -> Iterator[str]:
    """A broker that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_what_waits_for_a_broker_is_left_behind_and_starts_no_job_later(lab: Any, silent: str) -> None:
    topics = TopicNames(lambda: ["flights"])
    executor = Executor(lab.spark, Relations(lab.spark, silent, topics, Known()), output_of("jsonl"))
    run = executor.start(lab.statement("SELECT count(*) FROM flights"))
    time.sleep(2)
    run.cancel()
    run.wait(1.0)  # whether it has ended or not, the caller is free again
    assert lab.one("SELECT 1") == 1
    assert jobs(lab) == []


def test_a_job_that_begins_after_the_cancellation_is_cancelled(lab: Any) -> None:
    goes_on, ended = threading.Event(), threading.Event()

    def work(run: StatementRun) -> None:
        del run
        goes_on.wait(WAIT_S)
        try:
            lab.spark.sql(ENDLESS).collect()
        finally:
            ended.set()

    run = StatementRun(lab.spark, work)
    run.start()
    run.cancel()
    assert not run.wait(0.3)
    goes_on.set()
    assert ended.wait(WAIT_S)
    assert run.wait(WAIT_S)


def test_the_caller_of_a_cancelled_statement_that_is_stuck_is_free(lab: Any) -> None:
    goes_on = threading.Event()

    def work(run: StatementRun) -> None:
        del run
        goes_on.wait(WAIT_S)

    run = StatementRun(lab.spark, work)
    run.start()
    run.cancel()
    with pytest.raises(Cancelled):
        list(run.chunks())
    assert run.is_alive
    goes_on.set()
    assert run.wait(WAIT_S)


def test_a_thread_that_waits_in_the_jvm_is_interrupted(lab: Any) -> None:
    run = StatementRun(lab.spark, lambda _: lab.spark._jvm.java.lang.Thread.sleep(3_600_000))
    run.start()
    run.cancel()
    assert run.wait(WAIT_S)
    with pytest.raises(Exception, match="InterruptedException"):
        list(run.chunks())


def test_a_parquet_file_is_whole_ordered_and_one(lab: Any, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    target.write_text("an older result")
    executor = Executor(lab.spark, lab.relations, output_of("table"), {}, str(target))
    text = "SELECT id, TIMESTAMP '2013-01-01 05:00:00' AS at FROM range(0, 5000, 1, 7) ORDER BY id DESC"
    assert executor.show(executor.start(lab.statement(text))) == 5000
    table = pq.read_table(target)
    assert table["id"].to_pylist() == list(range(4999, -1, -1))
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    with pytest.raises(StatementError, match="takes the result of one statement"):
        executor.show(executor.start(lab.statement("SELECT 1")))
    failing = Executor(lab.spark, lab.relations, output_of("table"), {}, str(target))
    with pytest.raises(StatementError, match="DIVIDE_BY_ZERO"):
        failing.show(failing.start(lab.statement("SELECT 1 / (id - id) AS x FROM range(3)")))
    assert pq.read_table(target).num_rows == 5000
    nowhere = Executor(lab.spark, lab.relations, output_of("table"), {}, str(tmp_path / "none" / "f"))
    with pytest.raises(StatementError, match="No such file or directory"):
        nowhere.show(nowhere.start(lab.statement("SELECT 1 AS x")))


def printed(lab: Any, executor: Executor, text: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    executor.show(executor.start(lab.statement(text)))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_explain_tells_the_offsets_and_tables_of_topics_are_read(
    lab: Any, executor: Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.create("@clicks")
    lab.produce("@clicks", [(None, str(n).encode()) for n in range(10)])
    told = printed(lab, executor, "EXPLAIN SELECT * FROM @clicks WHERE offset > 6", capsys)
    assert "Physical Plan" in told[0]["plan"]
    assert [each["plan"] for each in told[1:]] == [lab.name("@clicks-0: offsets 7 to 9 (3)")]
    options = f"`kafka.bootstrap.servers` '{lab.servers}', subscribe '@clicks', `headwater.pushdown` 'true'"
    assert printed(lab, executor, f"CREATE TABLE @made USING headwater OPTIONS ({options})", capsys) == []
    both = "SELECT count(*) AS n FROM @made WHERE offset > 6 UNION ALL SELECT count(*) FROM @made"
    assert printed(lab, executor, both, capsys) == [{"n": 3}, {"n": 10}]
    described = printed(lab, executor, "DESCRIBE EXTENDED @made", capsys)
    assert {"col_name": "Provider", "data_type": "headwater", "comment": ""} in described
    assert printed(lab, executor, "DROP TABLE @made", capsys) == []
    with pytest.raises(StatementError, match="there is no topic, table or view"):
        executor.show(executor.start(lab.statement("SELECT * FROM @made")))


def test_a_command_that_fails_while_it_runs_is_a_line_and_times_are_utc(
    lab: Any, executor: Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.spark.udf.register("fails", lambda _: 1 // 0, "int")
    with pytest.raises(StatementError) as caught:
        executor.show(
            executor.start(lab.statement("CREATE TABLE @failed USING delta AS SELECT fails(id) AS x FROM range(3)"))
        )
    assert not caught.value.is_users
    assert "ZeroDivisionError" in caught.value.message
    assert "\n" not in caught.value.message
    with pytest.raises(StatementError, match="outside of the years 1 to 9999"):
        executor.show(executor.start(lab.statement("SELECT make_timestamp(-5, 1, 1, 0, 0, 0) AS at")))
    capsys.readouterr()
    text = (
        "SELECT TIMESTAMP '2026-07-01 12:00:00+02:00' AS at, CAST(0 AS DECIMAL(38, 18)) AS d, INTERVAL '-1' MINUTE AS i"
    )
    assert printed(lab, executor, text, capsys) == [
        {"at": "2026-07-01T10:00:00Z", "d": "0.000000000000000000", "i": "INTERVAL '-0 00:01:00' DAY TO SECOND"}
    ]


def test_a_script_ends_at_its_first_failure_or_goes_on(
    lab: Any, executor: Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    import click

    from headwater.cli.shell.errors import CliError

    script = Script("SELECT 1 AS a;\nSELECT nope;\nSELECT 2 AS b", "s.sql")
    with pytest.raises(CliError, match=r"s\.sql:2:8: there is no column 'nope'") as caught:
        run_script(executor, script, goes_on=False)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().out == '{"a": 1}\n'
    with pytest.raises(click.exceptions.Exit) as ended:
        run_script(executor, script, goes_on=True)
    assert ended.value.exit_code == 2
    shown = capsys.readouterr()
    assert shown.out == '{"a": 1}\n{"b": 2}\n'
    assert shown.err == "headwater: s.sql:2:8: there is no column 'nope'\n"


MARKED = "@clicks WATERMARK timestamp DELAY OF INTERVAL 1 MINUTE"


@pytest.fixture
def follow(lab: Any) -> Callable[[str, str], StatementRun]:
    def start(text: str, start: str) -> StatementRun:
        source = start_of(parse_from(start), lab.admin.offsets)
        relations = lab.with_known(Known(), ArrivingFrames(lab.spark, lab.servers, source, 4))
        return Follower(lab.spark, relations, {"p": 0}, keyed=True).start(lab.statement(text))

    return start


def test_a_followed_topic_begins_at_its_position_and_goes_on(lab: Any, follow: Any) -> None:
    lab.create("@clicks", 2)
    lab.produce("@clicks", [(None, str(n).encode()) for n in range(10)])
    run = follow("SELECT value, offset FROM @clicks WHERE partition = :p", "-3")
    chunks = run.chunks()
    assert next(chunks) == ResultColumns(["value", "offset"])
    rows: list[Any] = []
    while len(rows) < 3:
        rows += next(chunks)
    assert rows == [("7", 7), ("8", 8), ("9", 9)]
    lab.produce("@clicks", [(None, b"later")])
    assert next(chunks) == [("later", 10)]
    run.cancel()
    assert run.wait(WAIT_S)
    wait_for(lambda: not lab.spark.streams.active)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT count(*) FROM @clicks", "without a watermark no group is ever final"),
        ("SELECT DISTINCT value FROM @clicks", "DISTINCT remembers every row"),
        ("SELECT DISTINCT value FROM @clicks WATERMARK timestamp DELAY OF INTERVAL 1 MINUTE", "DISTINCT remembers"),
        ("SELECT * FROM @clicks a JOIN @clicks b ON a.key = b.key", "a join of topics keeps the rows of both"),
        (
            f"SELECT * FROM {MARKED} a JOIN {MARKED} b ON a.key = b.key AND a.timestamp > b.timestamp",
            "a join of topics",
        ),
        (f"SELECT * FROM {MARKED} a JOIN {MARKED} b ON a.key = b.key AND a.timestamp <> b.timestamp", "bounds them on"),
        ("INSERT INTO t SELECT * FROM @clicks", "only a query can be followed"),
        ("SELECT 1 AS a, 2 AS a FROM @clicks", "named a: rename"),
        ("SELECT * FROM @clicks ORDER BY offset", "ORDER BY needs the last row"),
        ("SELECT * FROM @clicks LIMIT 5", "LIMIT ends a result"),
        ("SELECT *, rank() OVER (ORDER BY offset) FROM @clicks", "OVER compares"),
        ("SELECT 1", "reads no topic"),
    ],
)
def test_a_statement_without_bound_is_refused_with_the_reason(lab: Any, follow: Any, text: str, reason: str) -> None:
    if "@clicks" in text and not any(name == lab.name("@clicks") for name in lab.admin.topic_names()):
        lab.create("@clicks")
    run = follow(text, "latest")
    with pytest.raises(StatementError, match=reason):
        list(run.chunks())


def test_windows_and_joins_within_a_time_are_followed(lab: Any, follow: Any) -> None:
    lab.create("@clicks")
    marked = MARKED
    within = "a.timestamp BETWEEN b.timestamp AND b.timestamp + INTERVAL 1 HOUR"
    for text in (
        f"SELECT window(timestamp, '1 minute').start, count(*) FROM {marked} GROUP BY window(timestamp, '1 minute')",
        f"SELECT a.value FROM {marked} AS a JOIN {marked} AS b ON a.key = b.key AND {within}",
        f"SELECT a.value FROM {marked} AS a JOIN {marked} AS b ON a.key = b.key AND a.timestamp = b.timestamp",
        f"SELECT DISTINCT value, timestamp FROM {marked}",
    ):
        run = follow(text, "earliest")
        assert isinstance(next(run.chunks()), ResultColumns)
        wait_for(lambda: bool(lab.spark.streams.active))
        run.cancel()
        assert run.wait(WAIT_S)
