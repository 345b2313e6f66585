"""What an idle pipeline costs: CPU of its driver, Spark and Python workers included, and of the broker."""

from __future__ import annotations

import re
import time
from pathlib import Path

from confluent_kafka import Producer

from tests.bench.peers import headwater_processes
from tests.bench.peers.headwater_processes import HEADWATER, environment
from tests.bench.processes import Child, Failed, cores_used_percent, free_port, metrics_of
from tests.bench.report import Table, listing

STAGES = 3
RECORDS = 1_000
START_S = 600
#: After the last batch: what a JVM compiles and collects then is not what an idle one costs.
SETTLE_S = 20
MEASURE_S = 60
QUICK_S = 10

# As pipelines are: a topic republished by key, windows over it, a table.
PIPELINE = """\
pipeline: idle
topics:
  events: {partitions: 6, value: string}
  by_key: {partitions: 6, value: json}
  counts: {partitions: 6, value: json}
stages:
  - {name: republish, from: {topic: events, as: e}, sql: "SELECT value AS k, _timestamp AS at FROM e",
     to: {topic: by_key, key: k}}
  - name: windows
    from: {topic: by_key, as: b, watermark: {column: at, delay: 1 minute}}
    sql: SELECT window(at, '1 minute') AS minute, k, count(*) AS n FROM b GROUP BY 1, 2
    to: {topic: counts, key: k}
  - {name: archive, from: {topic: by_key}, to: {delta: lake/events}}
"""

_STATE = re.compile(r'^headwater_pipeline_stage_state\{.*state="idle"\} 1\.0$', re.MULTILINE)
_ROWS = re.compile(r"^headwater_pipeline_rows_total\{.*\} ([\d.]+)$", re.MULTILINE)


def measure(folder: Path, quick: bool) -> tuple[list[Table], dict[str, list[float]]]:
    """Percent of one core, over a minute in which no record comes."""
    folder = folder / "idle"
    broker, port = headwater_processes.start_broker(folder / "broker")
    try:
        path = folder / "idle.yaml"
        path.write_text(PIPELINE)
        metrics_port = free_port()
        servers = f"127.0.0.1:{port}"
        command = [*HEADWATER, "pipeline", "run", str(path), "--continuous", "-b", servers]
        command += ["--state", str(folder / "state"), "--metrics-port", str(metrics_port)]
        driver = Child("the pipeline", command, folder / "driver.log", environment())
        try:
            _await(driver, metrics_port, has_rows=False)
            _produce(servers)
            _await(driver, metrics_port, has_rows=True)
            seconds = QUICK_S if quick else MEASURE_S
            figures = _figures(driver, broker, seconds)
        finally:
            driver.stop()
    finally:
        broker.stop()
    title = f"{STAGES} idle stages in one continuous run, percent of one core over {seconds} s"
    return [listing(title, figures)], figures


def _figures(driver: Child, broker: Child, seconds: float) -> dict[str, list[float]]:
    time.sleep(SETTLE_S)
    used = cores_used_percent({"driver": driver.pid, "broker": broker.pid}, seconds)
    return {"driver, Spark and Python workers included": [used["driver"]], "broker": [used["broker"]]}


def _produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce("events", key=str(number), value=str(number % 20))
    if producer.flush(60):
        raise Failed("the records could not be produced")


def _await(driver: Child, port: int, *, has_rows: bool) -> None:
    """Return when every stage waits for data."""
    deadline = time.monotonic() + START_S
    text = ""
    while True:
        driver.check_running()
        text = metrics_of(port) or text
        rows = [float(count) for count in _ROWS.findall(text)]
        if len(_STATE.findall(text)) == STAGES and (not has_rows or min(rows) >= RECORDS):
            return
        if time.monotonic() > deadline:
            raise Failed(f"the stages are not idle after {START_S} s:\n{text}\n{driver.tail()}")
        time.sleep(1)
