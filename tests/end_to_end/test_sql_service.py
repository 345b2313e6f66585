"""`headwater up --sql`: queries over REST, what is refused, how they end, and the JVM that comes and goes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from impala import dbapi as hive

from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

READY = re.compile(r"Headwater is ready: kafka (\S+), http http://(\S+), metrics [^,\s]+((?:, \w+ \S+)*)\n")
UP = ("up", "--data", "data", "--kafka-port", "0", "--http-port", "0", "--sql")
WAIT_S = 300.0
#: Of queries: the first waits for a JVM, others for each other, on a busy machine.
PATIENT_MS = 280_000
#: Until the tasks of queries that were sent take the cores.
BEGUN_S = 3.0
#: Runs for longer than any test: two tasks that never come to an end.
ENDLESS = "SELECT count(*) FROM (SELECT explode(sequence(1, 100000)) FROM range(1000000000)) WHERE rand() < 2"

#: Runs for half a minute alone, in many short tasks: Spark shares its cores when tasks end.
LONG = "SELECT count(*) FROM (SELECT explode(sequence(1, 400)) FROM range(0, 100000000, 1, 20000)) WHERE rand() < 2"

REMOTE = """
import sys
from pyspark.sql import SparkSession
print(SparkSession.builder.remote(sys.argv[1]).getOrCreate().table("topics.flights").count())
"""


@dataclass
class Node:
    """A node with a topic `flights` of ten records."""

    process: subprocess.Popen[str]
    address: str
    others: dict[str, str]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=WAIT_S)

    def send(self, statement: str, accept: str = "*/*", **more: Any) -> http.client.HTTPConnection:
        connection = self.connect()
        headers = {"content-type": "application/json", "accept": accept}
        connection.request(
            "POST", "/headwater/v1/sql", json.dumps({"statement": statement, "timeout_ms": PATIENT_MS, **more}), headers
        )
        return connection

    def ask(self, statement: str, accept: str = "*/*", **more: Any) -> tuple[int, bytes]:
        with contextlib.closing(self.send(statement, accept, **more)) as connection:
            answer = connection.getresponse()
            return answer.status, answer.read()

    def rows(self, statement: str, **more: Any) -> list[Any]:
        status, body = self.ask(statement, **more)
        assert status == 200, body
        columns, *rows, end = [json.loads(line) for line in body.splitlines()]
        assert set(columns) == {"query_id", "columns"}
        assert end["end"]["rows"] == len(rows)
        return rows

    def refusal(self, statement: str, **more: Any) -> tuple[int, str]:
        status, body = self.ask(statement, **more)
        return status, json.loads(body)["message"]

    def running(self) -> list[dict[str, Any]]:
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", "/headwater/v1/sql")
            found = json.loads(connection.getresponse().read())["data"]
            assert isinstance(found, list)
            return found

    def cancel(self, query_id: str) -> int:
        with contextlib.closing(self.connect()) as connection:
            connection.request("DELETE", f"/headwater/v1/sql/{query_id}")
            status = connection.getresponse().status
            assert isinstance(status, int)
            return status

    def await_free(self) -> None:
        """Wait until the service has ended earlier queries, which the API does not wait for."""
        with ThreadPoolExecutor(3) as pool:
            until(lambda: [each[0] for each in pool.map(self.ask, ["SELECT 1"] * 3)] == [200] * 3)

    def processes(self, *words: bytes) -> list[int]:
        """Processes of the node whose command line has these words."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                line = (folder / "cmdline").read_bytes().split(b"\0")
                if int(fields[3]) == self.process.pid and fields[0] != "Z" and all(word in line for word in words):
                    found.append(int(folder.name))
        return found

    def jvms(self) -> list[int]:
        return self.processes(b"org.apache.spark.deploy.SparkSubmit")


@contextlib.contextmanager
def started(folder: Path, *more: str, **environment: str) -> Iterator[Node]:
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headwater", *UP, *more],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None, (folder / "errors").read_text()
        admin = AdminClient({"bootstrap.servers": ready[1]})
        admin.create_topics([NewTopic("flights", 2)])["flights"].result(60)
        producer = Producer({"bootstrap.servers": ready[1]})
        for number in range(10):
            producer.produce("flights", f"flight {number}".encode(), partition=number % 2)
        assert producer.flush(60) == 0
        yield Node(process, ready[2], dict(each.split() for each in ready[3].split(", ") if each))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert (folder / "errors").read_text() == ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started(tmp_path_factory.mktemp("node"), HEADWATER_SQL_QUERIES_MAX="3") as made:
        assert made.jvms() == []  # before the first query
        yield made


def test_topics_are_queried(node: Node) -> None:
    assert node.rows("SELECT count(*), count(DISTINCT partition) FROM flights") == [[10, 2]]
    flights = "WITH f AS (SELECT value FROM flights WHERE partition = :p) SELECT max(value) FROM f"
    assert node.rows(flights, parameters={"p": 1}) == [["flight 9"]]
    assert node.rows(
        "SELECT a.value FROM log.flights a JOIN flights b USING (partition, offset) ORDER BY 1 LIMIT 1"
    ) == [["flight 0"]]
    both = "SELECT count(*) FROM topics.flights t JOIN IDENTIFIER('log.flights') l USING (partition, offset)"
    assert node.rows(both) == [[10]]
    assert node.rows("SELECT id, e FROM range(2) LATERAL VIEW explode(array('x')) AS e ORDER BY id") == [
        [0, "x"],
        [1, "x"],
    ]


def test_records_of_the_log_are_queried(node: Node) -> None:
    assert node.rows("SELECT value FROM log.flights WHERE offset >= 5") == []
    assert node.rows("SELECT count(*) FROM log.flights") == [[10]]


def test_rows_are_arrows_stream(node: Node) -> None:
    media_type = "application/vnd.apache.arrow.stream"
    status, body = node.ask("SELECT partition, count(*) AS n FROM flights GROUP BY partition ORDER BY 1", media_type)
    assert status == 200
    table = pa.ipc.open_stream(body).read_all()
    assert table.to_pydict() == {"partition": [0, 1], "n": [5, 5]}


def test_limits_end_an_answer(node: Node) -> None:
    status, body = node.ask("SELECT * FROM range(1000000000000)", row_limit=3)
    lines = [json.loads(line) for line in body.splitlines()]
    assert (status, lines[1:4], lines[-1]["end"]["truncated"]) == (200, [[0], [1], [2]], "rows")
    assert node.refusal(ENDLESS, timeout_ms=1_000) == (408, "the query ran for longer than 1000 ms")
    until(lambda: node.running() == [])


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT TRANSFORM(value) USING 'cat' FROM flights", "ScriptTransformation"),
        ("FROM flights MAP value USING 'cat' AS v", "ScriptTransformation"),
        ("SELECT * FROM text.`/etc/hostname`", "no relation of the catalog"),
        ("SELECT * FROM delta.`/tmp`", "no relation of the catalog"),
        ("SELECT * FROM IDENTIFIER('text.`/etc/hostname`')", "no relation of the catalog"),
        ("SELECT * FROM flights WHERE EXISTS (SELECT * FROM text.`/etc/hostname`)", "no relation of the catalog"),
        ("SELECT * FROM flights, LATERAL (SELECT * FROM text.`/etc/hostname`)", "no relation of the catalog"),
        ("SELECT * FROM read_files('/etc/hostname')", "read_files"),
        ("SELECT * FROM flights WITH (includeHeaders = true)", "options"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME')", "reflect"),
        ("SELECT java_method('java.lang.System', 'getenv', 'HOME')", "java_method"),
        ("SELECT try_reflect('java.lang.System', 'getenv', 'HOME')", "try_reflect"),
        ("SELECT system.builtin.reflect('java.lang.System', 'getenv', 'HOME')", "reflect"),
        ("SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')", "Identifier"),
        ("SELECT * FROM VALUES (reflect('java.lang.System', 'getenv', 'HOME'))", "reflect"),
        ("SELECT * FROM range(length(reflect('java.lang.System', 'getenv', 'HOME')))", "reflect"),
        ("SELECT transform(array(1), x -> reflect('java.lang.System', 'getenv', 'HOME'))", "reflect"),
        ("SELECT sum(1) OVER w FROM flights WINDOW w AS (ORDER BY reflect('a', 'b'))", "reflect"),
        ("WITH a AS (SELECT reflect('java.lang.System', 'getenv', 'HOME')) SELECT * FROM a", "reflect"),
        ("SELECT 1 ORDER BY (SELECT reflect('java.lang.System', 'getenv', 'HOME'))", "reflect"),
        ("SELECT 1 LIMIT length(reflect('java.lang.System', 'getenv', 'HOME'))", "reflect"),
        ("SELECT * FROM flights |> WHERE reflect('a', 'b') = 'c'", "reflect"),
        ("SELECT 1 AS x |> SET x = (SELECT a FROM text.`/etc/hostname`)", "no relation of the catalog"),
        ("SELECT 1 AS x |> SET x = reflect('a', 'b')", "reflect"),
        ("SELECT 1 AS x |> SET x = (SELECT col1 FROM VALUES (xpath_string('<a/>', 'a')))", "xpath_string"),
        ("SELECT * EXCEPT (x) FROM (SELECT 1 AS x, from_xml('<a/>', 'a int'))", "from_xml"),
        ("SELECT xpath_string('<a/>', 'a')", "xpath_string"),
        ("INSERT INTO flights SELECT 1", "InsertIntoStatement"),
        ("WITH a AS (SELECT 1) INSERT INTO flights SELECT * FROM a", "InsertIntoStatement"),
        ("FROM flights INSERT INTO a SELECT *", "InsertIntoStatement"),
        ("CREATE TABLE a AS SELECT 1", "CreateTableAsSelect"),
        ("CREATE TEMPORARY VIEW a AS SELECT 1", "CreateView"),
        ("CREATE FUNCTION f AS 'x'", "CreateFunction"),
        ("SET spark.sql.ansi.enabled = false", "SetCommand"),
        ("ADD JAR a.jar", "AddJarsCommand"),
        ("CACHE TABLE flights", "CacheTable"),
        ("DELETE FROM lake.a", "Delete"),
        ("EXPLAIN SELECT 1", "ExplainCommand"),
        ("EXECUTE IMMEDIATE 'SET a = b'", "ExecuteImmediate"),
        ("SELECT " + "(" * 15_000 + "1" + ")" * 15_000, "nested"),
        ("BEGIN SELECT 1; END", "there are 2"),
        ("SELECT 1; SELECT 2", "there are 2"),
    ],
)
def test_a_statement_that_is_more_than_a_query_is_refused(node: Node, statement: str, reason: str) -> None:
    status, message = node.refusal(statement)
    assert status == (400 if reason == "there are 2" else 403)
    assert reason in message
    assert "/root" not in message
    assert str(Path.home()) not in message


def test_the_environment_and_settings_are_not_put_into_a_text(node: Node) -> None:
    assert node.rows("SELECT '${env:HOME}', '${system:user.home}'") == [["${env:HOME}", "${system:user.home}"]]
    assert node.rows("SELECT '${spark.sql.catalogImplementation}'") == [["${spark.sql.catalogImplementation}"]]
    assert node.refusal("SELECT * FROM te${x}xt.`/etc/hostname`")[0] == 400


def test_mistakes_are_told_with_their_place(node: Node) -> None:
    status, message = node.refusal("SELECT valeu\nFROM flights")
    assert (status, message.partition(";")[0]) == (400, "line 1, column 8: there is no column 'valeu'")
    assert node.refusal("SELECT * FROM flight")[1].endswith("did you mean 'flights'?")
    status, message = node.refusal("SELECT (1 FROM flights")
    assert (status, "PARSE_SYNTAX_ERROR" in message) == (400, True), message
    assert node.refusal("SELECT struct(1 AS a, 2 AS a)") == (
        400,
        "several columns or fields are named a: rename them with AS",
    )
    status, message = node.refusal("SELECT 1 / (offset - offset) FROM flights")
    assert (status, "DIVIDE_BY_ZERO" in message) == (500, True)


def test_a_query_ends_when_its_client_goes_away(node: Node) -> None:
    connection = node.send(ENDLESS)
    until(lambda: len(node.running()) == 1)
    connection.close()
    until(lambda: node.running() == [])
    node.await_free()


def test_a_query_is_cancelled_by_its_id(node: Node) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(node.refusal, ENDLESS)
        until(lambda: len(node.running()) == 1)
        [query] = node.running()
        assert query["statement"] == ENDLESS
        assert node.cancel(query["query_id"]) == 204
        assert answer.result() == (409, "the query was cancelled")
    assert node.cancel(query["query_id"]) == 404


def test_long_queries_of_a_session_leave_room_for_others(node: Node) -> None:
    node.await_free()
    with ThreadPoolExecutor(2) as pool:
        long = [pool.submit(node.refusal, LONG, session="long") for _ in range(2)]
        until(lambda: len(node.running()) == 2)
        time.sleep(BEGUN_S)
        assert node.rows("SELECT count(*) FROM range(0, 1000, 1, 8)", session="short") == [[1000]]
        assert [each.done() for each in long] == [False, False]
        for query in node.running():
            node.cancel(query["query_id"])
        assert [each.result()[0] for each in long] == [409, 409]


def test_too_many_queries_are_refused(node: Node) -> None:
    node.await_free()
    with ThreadPoolExecutor(3) as pool:
        long = [pool.submit(node.refusal, ENDLESS, session=session) for session in ("a", "a", "")]
        until(lambda: len(node.running()) == 3)
        with contextlib.closing(node.send("SELECT 1")) as connection:
            answer = connection.getresponse()
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        for query in node.running():
            node.cancel(query["query_id"])
        assert [each.result()[0] for each in long] == [409] * 3
    node.await_free()


def test_large_rows_end_at_the_limit_of_bytes(node: Node) -> None:
    status, body = node.ask("SELECT repeat('x', 100000) FROM range(1000000)", row_limit=1_000_000)
    *_, end = body.splitlines()
    assert (status, json.loads(end)["end"]["truncated"]) == (200, "bytes")
    assert 31 << 20 < len(body) < 33 << 20


def test_a_client_that_does_not_read_holds_up_only_itself(node: Node) -> None:
    big = "SELECT repeat('x', 10000) FROM range(10000)"
    connection = node.send(big)
    answer = connection.getresponse()
    assert answer.read(10) != b""
    assert node.rows("SELECT count(*) FROM flights") == [[10]]
    assert [each["statement"] for each in node.running()] == [big]
    answer.close()
    connection.close()
    until(lambda: node.running() == [])


def test_the_jvm_begins_with_a_query_or_a_client_and_ends_when_there_was_none_for_a_while(tmp_path: Path) -> None:
    with started(tmp_path, "--jdbc", "0", "--connect", "127.0.0.1:0", HEADWATER_SQL_IDLE_MS="1000") as node:
        assert node.jvms() == []
        port = int(node.others["jdbc"].rpartition(":")[2])
        with (
            contextlib.closing(hive.connect("127.0.0.1", port, auth_mechanism="PLAIN", user="anyone")) as connection,
            contextlib.closing(connection.cursor()) as cursor,
        ):
            for statement in ("SELECT count(*) FROM topics.flights", "SELECT count(*) FROM log.flights"):
                cursor.execute(statement)
                assert cursor.fetchall() == [(10,)]
                assert node.rows(statement) == [[10]]
            time.sleep(3)  # longer than the service is idle
            cursor.execute("SELECT count(*) FROM topics.flights")
            assert cursor.fetchall() == [(10,)]
        until(lambda: node.jvms() == [], patience_s=WAIT_S)
        shown = subprocess.run(
            [sys.executable, "-c", REMOTE, f"sc://{node.others['connect']}"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        assert shown.stdout == "10\n"
        until(lambda: node.jvms() == [], patience_s=WAIT_S)
        assert node.rows("SELECT count(*) FROM flights") == [[10]]
        assert len(node.processes(b"sql-service")) == 1


def test_a_service_that_dies_is_started_again(tmp_path: Path) -> None:
    with started(tmp_path, "--jdbc", "0") as node, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(node.refusal, ENDLESS)
        until(lambda: len(node.running()) == 1)
        [service] = node.processes(b"sql-service")
        os.kill(service, signal.SIGKILL)
        status, message = answer.result()
        assert (status, "the SQL service cannot be reached" in message) == (503, True)
        until(lambda: node.ask("SELECT 1")[0] == 200, patience_s=WAIT_S)
        host, _, port = node.others["jdbc"].rpartition(":")
        with contextlib.closing(hive.connect(host, int(port), auth_mechanism="PLAIN", user="anyone")):
            until(lambda: len(node.jvms()) == 1)  # that of the service before may be about to end
            [service], [jvm] = node.processes(b"sql-service"), node.jvms()
            os.kill(jvm, signal.SIGKILL)
            until(lambda: node.processes(b"sql-service") not in ([], [service]), patience_s=WAIT_S)
        until(lambda: node.ask("SELECT 1")[0] == 200, patience_s=WAIT_S)
        (tmp_path / "errors").write_text("")  # it tells of the restarts
