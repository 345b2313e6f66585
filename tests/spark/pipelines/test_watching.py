"""A run is watched: restarts of one stage alone, offsets of consumer groups, status, metrics, lineage."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.pipelines.datasource.brokers import connection_options
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.engine import supervision
from headwater.pipelines.engine.runner import Runner
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.monitoring.lag_sampler import LagSampler
from headwater.pipelines.monitoring.lineage_emitter import LineageEmitter, appending
from headwater.pipelines.monitoring.metrics import MetricsEndpoint
from headwater.pipelines.monitoring.stage_state import State
from headwater.pipelines.monitoring.status import STATUS_TOPIC, decode
from headwater.pipelines.monitoring.status_topic import StatusTopic
from headwater.pipelines.monitoring.watermark_stall import StallWatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WAIT_S = 360
T0_MS = 1_767_225_600_000  # 2026-01-01
STRINGS = 'topics: {"@in": {value: string}}\n'


def committed(servers: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    """As any tool sees it."""
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    admin = AdminClient({"bootstrap.servers": servers})
    asked = [ConsumerGroupTopicPartitions(group, wanted)]
    future = admin.list_consumer_group_offsets(asked, request_timeout=30)[group]
    return [each.offset for each in future.result(30).topic_partitions]


def test_source_offsets_are_those_of_the_stages_consumer_group_whatever_it_writes(lab: Any) -> None:
    lab.produce("@in", [f"{n}" for n in range(7)], partitions=2)
    name = f"{lab.prefix.rstrip('.')}p"
    sinks = {
        "once": '{topic: "@out"}',
        "at_least_once": '{topic: "@out", guarantee: at_least_once}',
        "table": "{delta: lake/out}",
    }
    stages = (f'  - {{name: {stage}, from: {{topic: "@in"}}, to: {sink}}}\n' for stage, sink in sinks.items())
    lab.run(f"{STRINGS}pipeline: {name}\nstages:\n{''.join(stages)}")
    offsets = {stage: committed(lab.servers, f"{name}.{stage}", f"{lab.prefix}in", 2) for stage in sinks}
    assert {stage: sum(each) for stage, each in offsets.items()} == dict.fromkeys(sinks, 7)


COPY = """\
topics: {in: {partitions: 2, value: string}}
pipeline: watched
stages:
  - name: copy
    from: {topic: in}
    restart: {attempts: 50, backoff: 1 second}
    to: [{topic: out, key: value, value: value}]
"""


class Going:
    """A run in a thread of its own, and what becomes of it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.watch = runner._watch
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.runner.run()
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.failures.append(error)

    def until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_done():
            assert time.monotonic() < deadline, self.watch.states()
            assert self._thread.is_alive(), self.failures
            time.sleep(0.2)

    def rows(self, stage: str) -> int:
        return next((state.totals.rows for state in self.watch.states() if state.stage == stage), 0)

    def is_in(self, stage: str, wanted: State) -> bool:
        return any(state.stage == stage and state.state is wanted for state in self.watch.states())

    def stop(self) -> None:
        self.runner.stop()
        self._thread.join(120)


def test_a_stage_whose_broker_dies_is_restarted_and_goes_on_when_it_is_back(
    lab_on: Any, start_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The source waits for minutes before it gives up.
    hasty = {"kafka.default.api.timeout.ms": "2000", "fetchOffset.numRetries": "1"}
    monkeypatch.setattr(
        "headwater.pipelines.sources.topic.connection_options", lambda where: connection_options(where) | hasty
    )
    broker = start_broker(tmp_path / "data")
    port, servers = broker.port, broker.address
    lab = lab_on(servers)
    lab.produce("in", [f"{n}" for n in range(10)], partitions=2)
    events: list[str] = []
    client = WriteOptions.parse({"kafka.bootstrap.servers": servers}).client
    going = Going(
        lab.runner(
            COPY,
            available_now=False,
            on_event=events.append,
            listeners=[StatusTopic(client), LagSampler(client, 0.5)],
        )
    )
    try:
        going.until(lambda: going.rows("copy") == 10)
        broker.kill()
        going.until(lambda: going.is_in("copy", State.RESTARTING))
        start_broker(tmp_path / "data", port)
        lab.produce("in", [f"{n}" for n in range(10, 15)])
        going.until(lambda: going.rows("copy") >= 15 and going.watch.state("copy").error == "")
        going.until(lambda: going.watch.state("copy").lag["in"].records == 0)
    finally:
        going.stop()
    assert going.failures == []
    assert going.watch.state("copy").restarts >= 1
    assert any("copy: failed, and is tried again in" in line for line in events)
    assert sorted(int(seen.value or b"-1") for seen in lab.read("out")) == list(range(15))
    assert sum(committed(servers, "watched.copy", "in", 2)) == 15
    last = {seen.key: decode(seen.value or b"") for seen in lab.read(STATUS_TOPIC)}[b"watched/copy"]
    assert (last.state, last.rows, last.lag["in"].records) == ("stopped", 15, 0)


AWAY = """\
import os


def send(rows, batch_id):
    if os.path.exists(FLAG):
        raise ConnectionError("the service is away")
"""


def test_while_a_stage_is_restarted_the_others_go_on(lab: Any) -> None:
    flag = lab.folder / "away"
    lab.write("send.py", AWAY.replace("FLAG", repr(str(flag))))
    flag.touch()
    text = """\
pipeline: p
stages:
  - name: sends
    from: {rate: 5}
    restart: {attempts: 1000, backoff: 1 second}
    to: {python: {file: send.py, function: send}}
  - {name: ticks, from: {rate: 5}, to: {delta: lake/ticks}}
"""
    going = Going(lab.runner(text, available_now=False))
    try:
        going.until(lambda: going.watch.states() != [] and going.watch.state("sends").restarts >= 2)
        assert "the service is away" in going.watch.state("sends").error
        before = going.rows("ticks")
        going.until(lambda: going.rows("ticks") > before)
        flag.unlink()
        going.until(lambda: going.rows("sends") > 0 and going.watch.state("sends").error == "")
    finally:
        going.stop()
    assert going.failures == []
    assert going.watch.state("ticks").restarts == 0


def test_a_stage_that_fails_for_good_is_given_up_and_the_others_go_on(lab: Any) -> None:
    lab.produce("@in", ["1", "x"])
    text = (
        STRINGS
        + """\
pipeline: p
stages:
  - name: strict
    from: {topic: "@in", as: i}
    expect: [{name: numeric, that: "value = '1'", otherwise: fail}]
    to: {delta: lake/strict}
  - {name: copy, from: {topic: "@in"}, to: {delta: lake/copy}}
"""
    )
    events: list[str] = []
    going = Going(lab.runner(text, available_now=False, on_event=events.append))
    try:
        going.until(lambda: going.is_in("strict", State.FAILED) and going.rows("copy") == 2)
        lab.produce("@in", ["2"])
        going.until(lambda: going.rows("copy") == 3)
    finally:
        going.stop()
    (failure,) = going.failures
    assert isinstance(failure, PipelineFailed)
    assert "1 rows do not meet the expectation numeric" in str(failure)
    assert not [line for line in events if "tried again" in line and "expectation" in line]
    assert going.watch.state("copy").state is State.STOPPED
    assert len(lab.delta("lake/copy", "value")) == 3
    assert [line for line in events if line.startswith("strict: failed, and is given up; the other stages go on: ")]


def test_a_watermark_that_stands_still_is_explained_with_the_input_and_the_partition_that_are_behind(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(stage: Any, policy: str) -> StallWatch:
        watched = supervised(stage, policy)
        return StallWatch(watched._inputs, policy=policy, batches=2, wait_ms=0)

    supervised = supervision.stall_watch
    monkeypatch.setattr(supervision, "stall_watch", soon)
    # Not so long ago that retention takes the records before they are read.
    base_ms = (time.time_ns() // 3_600_000_000_000 - 48) * 3_600_000
    ahead_ms = base_ms + 2 * 3_600_000
    lab.produce("@quiet", ["q"], timestamp=base_ms)
    lab.produce("@in", ["new"], partitions=2, timestamp=ahead_ms, partition=0)
    text = """\
topics: {"@in": {value: string}, "@quiet": {value: string}}
pipeline: p
stages:
  - name: joined
    from:
      - {topic: "@in", as: a, watermark: {column: _timestamp, delay: 1 minute}}
      - {topic: "@quiet", as: b, watermark: {column: _timestamp, delay: 1 minute}}
    sql: >
      SELECT a.value AS x, b.value AS y FROM a JOIN b
      ON a.value = b.value AND a._timestamp BETWEEN b._timestamp AND b._timestamp + INTERVAL 1 HOUR
    to: {topic: "@joined"}
  - name: alone
    from: {topic: "@in", as: a, watermark: {column: _timestamp, delay: 1 minute}}
    steps: [{deduplicate: {by: value}}]
    to: {topic: "@alone", value: value}
"""
    events: dict[str, str] = {}

    def on_event(line: str) -> None:
        if line.startswith("warning: "):
            stage, _, said = line.removeprefix("warning: ").partition(": ")
            events[stage] = said

    going = Going(lab.runner(text, available_now=False, on_event=on_event))

    def is_told_or_read(records: int) -> bool:
        return len(events) == 2 or min(going.rows("joined") - 1, going.rows("alone")) >= records

    sent = 1
    try:
        while len(events) < 2:
            going.until(partial(is_told_or_read, sent))
            lab.produce("@in", [f"{sent}"], timestamp=base_ms, partition=1)
            sent += 1
    finally:
        going.stop()
    assert going.failures == []
    base, ahead = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000)) for ms in (base_ms, ahead_ms))
    assert "the watermark stands at " in events["joined"]
    assert f"input b is idle (its last event time is {base}" in events["joined"]
    slow, fast = f"{lab.prefix}in-1", f"{lab.prefix}in-0"
    assert f"no row of input a has a later _timestamp than {ahead}" in events["alone"]
    assert f"{slow} are of {base}, while {fast} has come to {ahead}" in events["alone"]
    assert going.watch.state("joined").stall


def test_metrics_status_and_lineage_of_a_run_with_a_watermark(lab: Any) -> None:
    lab.produce("@in", [f"{n}" for n in range(5)], timestamp=T0_MS)
    name = f"{lab.prefix.rstrip('.')}w"
    text = (
        STRINGS
        + f"""\
pipeline: {name}
stages:
  - name: counts
    from: {{topic: "@in", as: i, watermark: {{column: _timestamp, delay: 1 minute}}}}
    expect: [{{name: some, that: "n > 100", otherwise: drop}}]
    sql: SELECT window(_timestamp, '1 hour') AS hour, count(*) AS n FROM i GROUP BY 1
    mode: update
    to: [{{topic: "@out", value: n}}]
"""
    )
    events_file = lab.folder / "lineage.jsonl"
    client = WriteOptions.parse({"kafka.bootstrap.servers": lab.servers}).client
    endpoint = MetricsEndpoint()
    port = endpoint.open("127.0.0.1", 0)
    scraped: list[str] = []

    class Scrape:
        def began(self, info: Any, watch: Any) -> None: ...

        def changed(self, state: Any, progress: Any) -> None: ...

        def ended(self) -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                scraped.append(answer.read().decode())

    try:
        lineage = LineageEmitter(appending(str(events_file)))
        lab.run(text, listeners=[endpoint, StatusTopic(client), lineage, Scrape()])
    finally:
        endpoint.close()
    labels = f'pipeline="{name}",stage="counts"'
    assert f"headwater_pipeline_rows_total{{{labels}}} 5.0" in scraped[0]
    assert f"headwater_pipeline_watermark_timestamp_seconds{{{labels}}} 1.76722554e+09" in scraped[0]
    assert f'headwater_pipeline_unmet_expectations_total{{expectation="some",{labels}}} 1.0' in scraped[0]
    assert f"headwater_pipeline_state_rows{{{labels}}} 1.0" in scraped[0]
    assert f'headwater_pipeline_stage_state{{{labels},state="stopped"}} 1.0' in scraped[0]

    (status,) = [decode(seen.value or b"") for seen in lab.read(STATUS_TOPIC) if seen.key == f"{name}/counts".encode()][
        -1:
    ]
    assert (status.state, status.rows, status.unmet, status.watermark) == (
        "stopped", 5, {"some": 1}, "2025-12-31T23:59:00.000Z"
    )  # fmt: skip

    made = [json.loads(line) for line in events_file.read_text().splitlines()]
    assert [each["eventType"] for each in made] == ["START", "COMPLETE"]
    assert made[0]["run"]["runId"] == made[1]["run"]["runId"]
    (read,) = made[0]["inputs"]
    assert (read["namespace"], read["name"]) == (f"kafka://{lab.servers}", f"{lab.prefix}in")
    assert {"name": "value", "type": "string"} in read["facets"]["schema"]["fields"]
    assert made[0]["outputs"][0]["name"] == f"{lab.prefix}out"
