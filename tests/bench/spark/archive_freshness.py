"""One archiver of many topics: how old records are when they are committed, its memory, and what it costs when idle."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.peers import headwater_processes
from tests.bench.peers.headwater_processes import HEADWATER, environment
from tests.bench.processes import (
    Child,
    Failed,
    children,
    cores_used_percent,
    cpu_seconds_by_process,
    free_port,
    metrics_of,
    peak_resident_mib,
    proportional_mib,
)
from tests.bench.report import Table, listing

PARTITIONS: Final = 6
#: Of a busy topic; a quiet one gets a record each QUIET_S.
RECORDS_A_SECOND: Final = 1_000
QUIET_S: Final = 60
FIRST_RECORDS: Final = 100
DRIVER_MEMORY: Final = "3g"
START_S: Final = 900
#: After the last commit: what a JVM compiles and collects then is not what an idle one costs.
SETTLE_S: Final = 30
TICK_S: Final = 0.1
#: A commit of 1,000 records a second and its neighbours: what is behind at the end must be archived by then.
DRAIN_S: Final = 600

SCHEMA: Final = """{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["id", "at", "text"],
  "properties": {"id": {"type": "integer"}, "at": {"type": "integer"}, "text": {"type": "string"}}
}
"""

_BEHIND = re.compile(r"^headwater_archive_offsets_behind\{.*\} ([\d.e+]+)$", re.MULTILINE)
_ROWS = re.compile(r"^headwater_archive_rows_total\{.*\} ([\d.e+]+)$", re.MULTILINE)
_FAILURES = re.compile(r"^headwater_archive_failures_total\{.*\} ([\d.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Size:
    """How many topics there are, how many of them are busy, and the seconds of both measurements."""

    topics: int
    busy: int
    idle_s: float
    busy_s: float
    freshness: str = "60 seconds"


#: A table has its tenth version after five minutes: Delta writes a checkpoint then, of all busy tables within seconds.
USUAL: Final = Size(topics=100, busy=10, idle_s=60, busy_s=660)
QUICK: Final = Size(topics=12, busy=3, idle_s=10, busy_s=70)


def measure(folder: Path, size: Size) -> tuple[list[Table], dict[str, list[float]]]:
    """Percent of a core while nothing is written; then the age of each record when its commit was written."""
    topics = [f"events-{number:03}" for number in range(size.topics)]
    broker, port = headwater_processes.start_broker(folder / "broker")
    servers = f"127.0.0.1:{port}"
    try:
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            made.result(60)
        _produce_first(servers, topics)
        schema = folder / "event.json"
        schema.write_text(SCHEMA)
        declared = {topic: {"value": "json", "schema": str(schema)} for topic in topics}
        archive = {"root": str(folder / "lake"), "freshness": size.freshness, "topics": dict.fromkeys(topics)}
        path = folder / "archive.yaml"
        path.write_text(json.dumps({"topics": declared, "archive": archive}))
        metrics_port = free_port()
        command = [*HEADWATER, "archive", "run", str(path), "-b", servers, "--metrics-port", str(metrics_port)]
        command += ["--conf", f"spark.driver.memory={DRIVER_MEMORY}", "--conf", "spark.master=local[2]"]
        began_s = time.monotonic()
        driver = Child("the archiver", command, folder / "driver.log", environment())
        try:
            _await(driver, metrics_port, rows=size.topics * FIRST_RECORDS, limit_s=START_S)
            figures = {f"from the start until {size.topics} new tables are there, s": [time.monotonic() - began_s]}
            time.sleep(SETTLE_S)
            used = cores_used_percent({"driver": driver.pid, "broker": broker.pid}, size.idle_s)
            figures["idle: driver, Spark and Python workers included, % of a core"] = [used["driver"]]
            figures["idle: broker, % of a core"] = [used["broker"]]
            figures |= _busy(driver, servers, metrics_port, topics, size, folder / "lake")
        finally:
            driver.stop()
    finally:
        broker.stop()
    title = (
        f"{size.topics} archived topics of {PARTITIONS} partitions, freshness {size.freshness}, one driver of "
        f"{DRIVER_MEMORY}, local[2]; idle for {size.idle_s:.0f} s; then for {size.busy_s:.0f} s {size.busy} busy ones "
        f"with {RECORDS_A_SECOND:,} records/s each, the others with a record each {QUIET_S} s"
    )
    return [listing(title, figures)], figures


def _busy(
    driver: Child, servers: str, metrics_port: int, topics: Sequence[str], size: Size, lake: Path
) -> dict[str, list[float]]:
    """The ages of what is committed, and the memory, while some topics are busy."""
    memory = _Memory(driver)
    before_mib = memory.sample()
    memory.start()
    try:
        began_ms = time.time() * 1000
        produced = _produce(servers, topics[: size.busy], topics[size.busy :], size.busy_s, driver)
        failures = _await(driver, metrics_port, rows=size.topics * FIRST_RECORDS + produced, limit_s=DRAIN_S)
    finally:
        memory.stop()
    busy, commits = _ages_s([lake / topic for topic in topics[: size.busy]], began_ms)
    quiet, _ = _ages_s([lake / topic for topic in topics[size.busy :]], began_ms)
    if len(busy) + len(quiet) != produced:
        raise Failed(f"{len(busy) + len(quiet):,} rows are in the tables, and {produced:,} records were produced")
    return {
        "age of a busy topic's records at their commit, median, s": [float(np.median(busy))],
        "the same, worst, s": [float(busy.max())],
        "oldest record of a busy topic's commit, s": [float(age) for age in commits],
        "age of a quiet topic's records at their commit, median, s": [float(np.median(quiet))],
        "the same of quiet topics, worst, s": [float(quiet.max())],
        "records produced": [float(produced)],
        "rounds that failed": [failures],
        "driver's memory before, JVM and Python workers included, MiB": [before_mib],
        "the same, peak of each second, MiB": [memory.peak_mib],
        "the JVM's peak, MiB": [memory.jvm_peak_mib],
    }


class _Memory(threading.Thread):
    """The resident memory of a driver with its descendants, each second, from `start` to `stop`."""

    def __init__(self, driver: Child) -> None:
        super().__init__(name="memory", daemon=True)
        self.peak_mib = 0.0
        self.jvm_peak_mib = 0.0
        self._driver = driver
        self._ended = threading.Event()

    def sample(self) -> float:
        """MiB now; Python workers share most of their pages."""
        pid = self._driver.pid
        jvms = [each for each, command in children(pid).items() if command and Path(command[0]).name == "java"]
        self.jvm_peak_mib = max([self.jvm_peak_mib, *(peak_resident_mib(each) for each in jvms)])
        now_mib = sum(proportional_mib(each) for each in cpu_seconds_by_process(pid))
        self.peak_mib = max(self.peak_mib, now_mib)
        return now_mib

    def run(self) -> None:
        while not self._ended.wait(1):
            self.sample()

    def stop(self) -> None:
        """End, and wait for it."""
        self._ended.set()
        self.join()


def _produce_first(servers: str, topics: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for topic in topics:
        for number in range(FIRST_RECORDS):
            producer.produce(topic, _value(number), partition=number % PARTITIONS)
        producer.poll(0)
    if producer.flush(60):
        raise Failed("the records could not be produced")


def _produce(servers: str, busy: Sequence[str], quiet: Sequence[str], seconds: float, driver: Child) -> int:
    """Write at a steady rate; return how many records were acknowledged, which are all."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    began_s = time.monotonic()
    sent = quiet_sent = 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        driver.check_running()
        # A record of each busy topic in turn, as many as are due; those of the quiet ones evenly over their time.
        for number in range(sent, int(passed_s * RECORDS_A_SECOND)):
            value = _value(number)
            for topic in busy:
                producer.produce(topic, value, partition=number % PARTITIONS)
            sent = number + 1
            if number % 100 == 0:
                producer.poll(0)
        while quiet_sent < int(passed_s / QUIET_S * len(quiet)):
            producer.produce(quiet[quiet_sent % len(quiet)], _value(quiet_sent), partition=0)
            quiet_sent += 1
        producer.poll(0)
        time.sleep(TICK_S)
    if producer.flush(60):
        raise Failed("the records could not be produced")
    return sent * len(busy) + quiet_sent


def _value(number: int) -> bytes:
    return b'{"id": %d, "at": %d, "text": "%s"}' % (number, time.time_ns() // 1_000_000, b"x" * 150)


def _ages_s(tables: Sequence[Path], began_ms: float) -> tuple[Any, list[float]]:
    """(ages of the rows, the oldest of each commit): from a record's timestamp until its commit was in the table.

    Of records since `began_ms`. The commit's time is its file's; a compaction's rows are not new.
    """
    rows, oldest = [], []
    for table in tables:
        for commit in sorted((table / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            added = [each["add"] for each in actions if each.get("add", {}).get("dataChange")]
            found: list[Any] = [np.empty(0)]
            for each in added:
                column = pq.read_table(table / urllib.parse.unquote(each["path"]), columns=["_timestamp"])["_timestamp"]
                stamps_ms = column.cast(pa.timestamp("ms", "UTC")).to_numpy().astype(np.int64)
                found.append(commit.stat().st_mtime * 1000 - stamps_ms[stamps_ms >= began_ms])
            ages_s = np.concatenate(found) / 1000
            if len(ages_s):
                rows.append(ages_s)
                oldest.append(float(ages_s.max()))
    if not rows:
        raise Failed("no record was committed")
    return np.concatenate(rows), oldest


def _await(driver: Child, port: int, *, rows: int, limit_s: float) -> float:
    """Return the number of failed rounds when so many rows are in the tables, and they lack none."""
    deadline = time.monotonic() + limit_s
    text = ""
    while True:
        driver.check_running()
        text = metrics_of(port) or text
        added, behind = (sum(float(count) for count in each.findall(text)) for each in (_ROWS, _BEHIND))
        if added >= rows and not behind:
            return sum(float(count) for count in _FAILURES.findall(text))
        if time.monotonic() > deadline:
            raise Failed(f"{added:,.0f} of {rows:,} rows are archived after {limit_s} s:\n{driver.tail()}")
        time.sleep(1)
