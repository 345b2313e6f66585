"""Runs statements over the unified table, the topic and the Delta table in turn, as the SQL shell does.

    python -m tests.bench.spark.unified_client BOOTSTRAP FOLDER --copies N --tail-copies N --rounds N

Makes the topic, whose records have timestamps of 50 hours, and its archive; then the tail behind it, of another hour.
Prints the figures as JSON in its last line.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.api.topic_admin import TopicAdmin
from headwater.cli.demo import flights
from headwater.cli.demo.files import conf_file
from headwater.cli.sql.execution import Executor, ResultColumns
from headwater.cli.sql.outputs import output_of
from headwater.cli.sql.spark_session import catalog_conf
from headwater.pipelines.datasource.writing import TIMESTAMP_COLUMN
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import close_session, open_session
from headwater.pipelines.sql.relations import Known, Relations, session_conf
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.sql_text.scanner import statements
from headwater.pipelines.unified.session_archives import SessionArchives
from headwater.pipelines.unified.unified_frames import UnifiedFrames
from tests.bench.spark.archives_client import by_archive, declared_archive
from tests.bench.spark.flights_client import PARTITIONS, records

TOPIC: Final = "flights"
CONF: Final = {"spark.master": "local[2]", "spark.driver.memory": "3g"}
#: Copies of the flights that are produced in one write: its encoded records are on the disk a second time meanwhile.
COPIES_A_WRITE: Final = 30
HISTORY_BEGIN: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HISTORY_HOURS: Final = 50
HOUR_MS: Final = 3_600_000
#: `monotonically_increasing_id` has the task's number in the bits above.
ROW_OF_TASK: Final = "(monotonically_increasing_id() & 8589934591)"
#: A statement over an empty tail takes a moment, one over the topic alone a minute.
COST_ROUNDS: Final = 3
#: Without it a filter on time has no upper bound in the log. `log.NAME` knows of no declaration.
DISORDER: Final = "1 minute"

_MIDDLE: Final = HISTORY_BEGIN + dt.timedelta(hours=HISTORY_HOURS // 2)
_IN_HOUR: Final = (
    f"{{time}} >= TIMESTAMP'{_MIDDLE:%Y-%m-%d %H:%M:%S}Z' "
    f"AND {{time}} < TIMESTAMP'{_MIDDLE + dt.timedelta(hours=1):%Y-%m-%d %H:%M:%S}Z'"
)
COUNT: Final = "SELECT count(*) FROM {name}"
HOUR: Final = f"SELECT count(*) FROM {{name}} WHERE {_IN_HOUR}"
DELAYS: Final = f"SELECT carrier, count(*), sum(dep_delay) FROM {{name}} WHERE {_IN_HOUR} GROUP BY carrier ORDER BY 1"


@dataclass(frozen=True, slots=True)
class Session:
    """How one session's statements read the topic."""

    executor: Executor
    relations: Relations

    @classmethod
    def of(cls, spark: Any, relations: Relations) -> Session:
        return cls(Executor(spark, relations, output_of("table")), relations)

    def rows(self, statement: str, **names: str) -> tuple[list[Any], float]:
        """(rows, seconds) of one statement, from its start to its last row."""
        began_s = time.perf_counter()
        run = self.executor.start(statements(statement.format(**names))[0])
        rows = [row for chunk in run.chunks() if not isinstance(chunk, ResultColumns) for row in chunk]
        taken_s = time.perf_counter() - began_s
        self.relations.end()  # of two sessions in one of Spark's, each would take the other's view for the user's
        return rows, taken_s


def produce(spark: Any, bootstrap: str, source: Any, copies: int, begin_ms: int, span_ms: int) -> None:
    """Write each flight `copies` times; the records of a partition have timestamps evenly over the span, in order."""
    key = f"crc32(coalesce(tailnum, '')) % {PARTITIONS}"
    sizes = {
        row.part: row.n * copies
        for row in source.selectExpr(f"{key} AS part").groupBy("part").count().toDF("part", "n").collect()
    }
    done = 0
    while done < copies:
        number = min(COPIES_A_WRITE, copies - done)
        frames = [
            records(source, partition, number).selectExpr(
                "*",
                f"{begin_ms} + (({sizes[partition] // copies * done} + {ROW_OF_TASK}) * {span_ms}) "
                f"div {sizes[partition]} AS {TIMESTAMP_COLUMN}",
            )
            for partition in range(PARTITIONS)
        ]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionAll(other)
        writer = frame.write.format("headwater").mode("append").option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", TOPIC).option("kafka.compression.type", "lz4").save()
        done += number


@dataclass(frozen=True, slots=True)
class Read:
    """A relation in a session: its name, and that of its column with the record's timestamp."""

    session: Session
    name: str
    time: str = "_timestamp"

    def rows(self, statement: str) -> tuple[list[Any], float]:
        """See `Session.rows`."""
        return self.session.rows(statement, name=self.name, time=self.time)


def timed(pairs: Mapping[str, tuple[str, Read, Read]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each statement over both relations, the unified one first in `pairs`, in turn.

    The first round warms JVM and workers, and is not counted. Both must have the same rows.
    """
    taken: dict[str, dict[str, list[float]]] = {name: {"unified": [], "other": []} for name in pairs}
    for number in range(rounds + 1):
        for figure, (statement, unified, other) in pairs.items():
            found = {}
            for way, read in [("other", other), ("unified", unified)][:: 1 if number % 2 else -1]:
                found[way], seconds = read.rows(statement)
                if number:
                    taken[figure][way].append(seconds)
            assert found["unified"] == found["other"], f"{figure}: {found}"
            assert found["unified"] and found["unified"][0][-1], f"{figure}: no rows"
    return taken


def sessions(spark: Any, bootstrap: str, schema: str, table: Path, **more: str) -> tuple[Session, Session]:
    """A session that knows the archive, and one that knows the topic's columns only; `more` declares the topic."""
    names = TopicNames(TopicAdmin(bootstrap).topic_names)
    specs, loaded = declared_archive(TOPIC, schema, table, **more)
    archives = SessionArchives(specs, loaded)
    unified = Relations(spark, bootstrap, names, archives.known(Known()), archives.frames(spark, bootstrap))
    columns, _ = UnifiedFrames(spark, bootstrap, {TOPIC: specs[0]}, loaded).columns(specs[0])
    present = Relations(spark, bootstrap, names, Known(columns=columns))
    return Session.of(spark, unified), Session.of(spark, present)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("folder", type=Path)
    for name in ("--copies", "--tail-copies", "--rounds"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    bootstrap, folder = given.bootstrap, given.folder
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})  # a name of its own: it must live until it is answered
    admin.create_topics([topic])[TOPIC].result(30)

    conf = {**CONF, **session_conf(), **catalog_conf("", str(folder))}
    spark: Any = open_session("unified", str(folder / "spark.log"), conf)
    jvm.find_python_sources(spark)
    import pyarrow.parquet as pq

    pq.write_table(flights.flights_table(flights.data_folder()), folder / "flights.parquet")
    source = spark.read.parquet(str(folder / "flights.parquet")).coalesce(1)
    made: dict[str, list[float]] = {}
    schema = str(Path(conf_file("pipelines", "flights.yaml")).parent / "schemas" / "flight.json")
    begin_ms = int(HISTORY_BEGIN.timestamp() * 1000)
    span_ms = HISTORY_HOURS * HOUR_MS

    def produced(copies: int, start_ms: int, length_ms: int) -> None:
        began_s = time.perf_counter()
        produce(spark, bootstrap, source, copies, start_ms, length_ms)
        made[f"{copies * flights.FLIGHTS:,} flights produced, s"] = [time.perf_counter() - began_s]

    produced(given.copies, begin_ms, span_ms)
    began_s = time.perf_counter()
    by_archive(spark, bootstrap, TOPIC, schema, folder / TOPIC)
    made["archived, s"] = [time.perf_counter() - began_s]

    unified, present = sessions(spark, bootstrap, schema, folder / TOPIC)
    ours, lake = Read(unified, TOPIC), Read(unified, f"lake.{TOPIC}")
    without = {
        "count(*), ms": (COUNT, ours, lake),
        "an hour in the middle, count(*), ms": (HOUR, ours, lake),
        "the same hour, delays by carrier, ms": (DELAYS, ours, lake),
    }
    cost = timed(without, COST_ROUNDS * given.rounds)

    produced(given.tail_copies, begin_ms + span_ms, HOUR_MS)
    alone, decoded = Read(present, f"log.{TOPIC}", "timestamp"), Read(present, TOPIC)
    ordered, ordered_present = sessions(spark, bootstrap, schema, folder / TOPIC, timestamp_disorder=DISORDER)
    ours_ordered, decoded_ordered = Read(ordered, TOPIC), Read(ordered_present, TOPIC)
    with_tail = {
        "count(*), s": (COUNT, ours, alone),
        "an hour in the middle, count(*), s": (HOUR, ours, alone),
        "the same hour, decoded: delays by carrier, s": (DELAYS, ours, decoded),
        "an hour with `timestamp_disorder`, count(*), s": (HOUR, ours_ordered, alone),
        "the same hour, decoded, both with it, s": (DELAYS, ours_ordered, decoded_ordered),
    }
    seconds = timed(with_tail, given.rounds)
    rows, _ = ours.rows(COUNT)
    close_session()
    total = (given.copies + given.tail_copies) * flights.FLIGHTS
    assert rows[0][0] == total, f"{rows[0][0]} rows of {total}"
    in_ms = {
        name: {way: [1000 * value for value in values] for way, values in each.items()} for name, each in cost.items()
    }
    print(json.dumps({"tail, s": seconds, "no tail, ms": in_ms, "made": {"s": made}}))


if __name__ == "__main__":
    main()
