"""Foreign clients read all names: beeline, a Python Hive client, a JDBC program, a remote PySpark session."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from impala.dbapi import connect

from headwater.pipelines.sql.statement_errors import StatementError
from tests.jars import SPARK_JARS, java_program
from tests.spark.foreign_clients.conftest import Service, await_true

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "JdbcClient.java"
LIMIT_S = 300
REMOTE = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for text in sys.argv[2:]:
    print(spark.sql(text).first()[0])
print(spark.table(sys.argv[2].split()[-1]).where("_offset >= 10").count())
"""


def run(command: Sequence[str]) -> list[str]:
    """The lines that a program prints; it must end well."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


@contextlib.contextmanager
def cursor(service: Service) -> Iterator[Any]:
    connection: Any = connect("127.0.0.1", service.thrift.port, auth_mechanism="PLAIN", user="anyone")
    found: Any = connection.cursor()
    try:
        yield found
    finally:
        found.close()
        connection.close()


def rows(at: Any, text: str) -> list[tuple[Any, ...]]:
    at.execute(text)
    return [tuple(row) for row in at.fetchall()]


def counts(service: Service) -> list[str]:
    names = [f"{schema}.{service.flights}" for schema in ("topics", "log", "lake")]
    return [f"SELECT count(*) FROM {name}" for name in (*names, f"topics.`{service.prefix}plain.topic`")]


COUNTED = ["30", "30", "20", "3"]


def test_beeline_reads_all_names(service: Service) -> None:
    given = [each for text in counts(service) for each in ("-e", text)]
    beeline = java_program([f"{SPARK_JARS}/*"], "org.apache.hive.beeline.BeeLine")
    quiet = ("--silent=true", "--outputformat=csv2")  # else its prompt stands before rows
    shown = run([*beeline, "-u", service.jdbc_url, "-n", "anyone", *quiet, *given])
    assert [line for line in shown if line.isdigit()] == COUNTED


def test_a_jdbc_program_reads_all_names_and_finds_them_in_the_metadata(service: Service) -> None:
    # Janino, which Spark has, compiles the program: a JRE is enough.
    program = java_program([f"{SPARK_JARS}/*"], "org.codehaus.janino.SimpleCompiler", str(PROGRAM), PROGRAM.stem)
    shown = run([*program, service.jdbc_url, *counts(service)])
    assert shown[:4] == COUNTED
    flights = service.flights.lower()
    assert {f"topics.{flights}", f"log.{flights}", f"lake.{flights}"} <= {each.lower() for each in shown[4:]}


def test_a_python_hive_client_reads_all_names(service: Service) -> None:
    with cursor(service) as hive:
        assert [str(rows(hive, text)[0][0]) for text in counts(service)] == COUNTED
        columns = [row[0] for row in rows(hive, f"DESCRIBE log.{service.flights}")]
        assert columns[:5] == ["key", "value", "topic", "partition", "offset"]
        joined = f"SELECT count(*) FROM topics.{service.flights} t JOIN lake.{service.flights} l"
        assert rows(hive, f"{joined} ON t._partition = l._partition AND t._offset = l._offset") == [(20,)]


def test_a_remote_pyspark_session_reads_all_names(service: Service) -> None:
    shown = run([sys.executable, "-c", REMOTE, service.connect_url, *counts(service)])
    assert shown == [*COUNTED, "10"]


def test_views_move_on_with_the_archive_and_a_reader_never_sees_another_count(service: Service) -> None:
    seen: list[int] = []
    ended = threading.Event()

    def read() -> None:
        with cursor(service) as hive:
            while not ended.is_set():
                seen.append(rows(hive, f"SELECT count(*) FROM topics.{service.flights}")[0][0])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        service.archive()
        with cursor(service) as hive:
            await_true(lambda: rows(hive, f"SELECT count(*) FROM lake.{service.flights}") == [(30,)])
            read_before = len(seen)
            await_true(lambda: len(seen) > read_before)
    finally:
        ended.set()
        reader.join()
    assert set(seen) == {30}
    service.produce(service.flights, 1)
    with cursor(service) as hive:
        assert rows(hive, f"SELECT count(*) FROM topics.{service.flights}") == [(31,)]


def test_topics_come_and_go_and_one_that_cannot_be_read_stops_no_other(service: Service) -> None:
    service.topics.broken = f"{service.prefix}bad"
    service.create("bad")
    service.produce(service.create("new"), 2)
    with cursor(service) as hive:

        def names(schema: str) -> set[str]:
            found = {str(row[1]) for row in rows(hive, f"SHOW TABLES IN {schema}")}
            return {each.removeprefix(service.prefix.lower()) for each in found}

        await_true(lambda: "new" in names("topics") and "new" in names("log"))
        assert rows(hive, f"SELECT count(*) FROM log.{service.prefix}new") == [(2,)]
        assert "bad" not in names("topics")
        service.admin.delete_topics([f"{service.prefix}new"])
        await_true(lambda: not {"new"} & (names("topics") | names("log")))
    assert f"the views of {service.prefix}bad cannot be made: broken for this test" in service.reports


def test_the_same_statement_sees_later_records(service: Service) -> None:
    plain = service.create("later")
    service.produce(plain, 1)
    service.views.look()
    with cursor(service) as hive:
        for name in (f"topics.{plain}", f"log.{plain}", f"topics.{service.flights}"):
            [(before,)] = rows(hive, f"SELECT count(*) FROM {name}")
            service.produce(plain, 2)
            service.produce(service.flights, 2)
            assert rows(hive, f"SELECT count(*) FROM {name}") == [(before + 2,)]


def test_a_topic_that_gets_a_partition_shows_its_records(service: Service) -> None:
    grown = service.create("grown")
    service.produce(grown, 1)
    service.views.look()
    service.admin.create_partitions(grown, 2)
    service.produce(grown, 1, partition=1)
    with cursor(service) as hive:
        await_true(lambda: rows(hive, f"SELECT count(*) FROM topics.{grown}") == [(2,)])


def test_a_table_by_key_shows_the_last_record_of_each_key(service: Service) -> None:
    with cursor(service) as hive:
        name = f"topics.{service.keyed}"
        await_true(lambda: rows(hive, f"SELECT value FROM {name}") == [("2",)])
        service.archive()
        service.produce(service.keyed, 4)
        await_true(lambda: rows(hive, f"SELECT value FROM {name}") == [("3",)])


def test_a_statement_of_the_service_leaves_clients_their_views(service: Service) -> None:
    names = [f"topics.{service.flights}", f"log.{service.flights}", f"topics.`{service.prefix}plain.topic`"]
    with cursor(service) as hive:
        before = [rows(hive, f"SELECT count(*) FROM {name}") for name in names]
        for name in names:
            joined = f"SELECT count(*) FROM {name} a CROSS JOIN (SELECT count(*) FROM {name} WHERE false) b"
            assert [[(row[0],)] for row in service.own_rows(joined)] == [before[names.index(name)]]
        assert [rows(hive, f"SELECT count(*) FROM {name}") for name in names] == before
        service.produce(service.flights, 1)
        assert rows(hive, f"SELECT count(*) FROM {names[0]}") == [(before[0][0][0] + 1,)]
        assert rows(hive, f"SELECT count(*) FROM {names[1]}") == [(before[1][0][0] + 1,)]


def test_what_a_client_creates_is_not_read_over_rest(service: Service, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    with cursor(service) as hive:
        hive.execute(f"CREATE GLOBAL TEMPORARY VIEW evil AS SELECT * FROM text.`{secret}`")
        hive.execute(f"CREATE TABLE lake.evil USING text LOCATION '{secret}'")
        hive.execute(f"CREATE VIEW log.evil AS SELECT * FROM text.`{secret}`")
        try:
            for name, reason in (("topics", "no topic of the statement"), ("log", "no topic"), ("lake", "none of the")):
                assert rows(hive, f"SELECT * FROM {name}.evil") == [("hidden",)]
                refusal = service.refusal(f"SELECT * FROM {name}.evil")
                assert refusal is not None and reason in refusal
            kept = service.refusal(f"SELECT * FROM IDENTIFIER('topics.{service.flights}')")
            assert kept is not None and "written as names" in kept
            assert service.refusal(f"SELECT * FROM topics.{service.flights} JOIN lake.{service.flights}") is None
            assert service.refusal(f"SELECT * FROM log.{service.flights}") is None
        finally:
            for statement in ("DROP VIEW topics.evil", "DROP TABLE lake.evil", "DROP VIEW log.evil"):
                hive.execute(statement)


def test_what_a_client_drops_is_made_again(service: Service) -> None:
    with cursor(service) as hive:
        hive.execute("DROP SCHEMA log CASCADE")
        hive.execute(f"DROP VIEW topics.{service.flights}")
        assert service.own_rows(f"SELECT count(*) > 0 FROM log.{service.flights}") == [(True,)]
        service.archive()  # a commit, or another record, is a reason to replace views
        service.produce(service.flights, 1)
        service.archive()
        service.produce(service.create("after"), 1)
        await_true(lambda: service.is_readable(f"log.{service.flights}", f"topics.{service.flights}"))
        await_true(lambda: service.is_readable(f"log.{service.prefix}after"))


def test_a_statement_over_rest_does_not_read_the_kept_view_where_it_cannot_fix_its_own(service: Service) -> None:
    with pytest.raises(StatementError, match="cannot be read as one"):
        service.own_rows(f"SELECT count(*) FROM topics.{service.flights}", broken=True)


def test_stopped_servers_close_their_ports_and_start_again(service: Service, working_folder: Path) -> None:
    for server in (service.thrift, service.connect):
        port = server.port
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        assert server.start()
    with cursor(service) as hive:
        assert rows(hive, "SELECT 1") == [(1,)]
    assert {each.name for each in working_folder.iterdir()} <= {".hypothesis"}  # of this test run
