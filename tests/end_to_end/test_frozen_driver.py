"""A pipeline whose checkpoints two machines see: one driver freezes before its commit, and another takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import BrokerProcess
from tests.end_to_end.delta_log import delta_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RECORDS = 20
#: Runs a pipeline as the command line does, and freezes at a step of its first batch. While another driver has the
#: pipeline, it says so once, and tries again.
DRIVER = """
import os, signal, sys, time
from headwater.api.topic_admin import TopicAdmin
from headwater.cli.pipeline.topic_creation import topics_creator
from headwater.pipelines.engine.runner import Runner, RunOptions
from headwater.pipelines.errors import PipelineBusy
from headwater.pipelines.spark.session import close_session
from headwater.pipelines.validation.pipeline_file import load

file, servers, state, checkpoints, frozen_at = sys.argv[1:]

def on_step(stage, batch, step):
    if step == frozen_at:
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

admin = TopicAdmin(servers)
existing = frozenset(topic.name for topic in admin.list_topics())
options = RunOptions(servers, state, spark_master="local[1]", checkpoints=checkpoints)
runner = Runner(load(file, {}, existing), options, topics_creator(admin), on_step=on_step)
is_told = False
give_up_s = time.monotonic() + 120
try:
    while True:
        try:
            runner.run()
            break
        except PipelineBusy as error:
            if not is_told:
                print(f"{type(error).__name__}: {error}", flush=True)
            is_told = True
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.5)
    print("done", flush=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
finally:
    close_session()
"""
PIPELINE = """\
pipeline: p
topics: {IN: {value: string}}
stages:
  - name: copy
    from: {topic: IN, as: i}
    sql: SELECT value, _topic, _partition, _offset FROM i
    restart: {attempts: 0}
    to: [{topic: OUT, key: value}, {delta: TABLE}]
"""


def test_a_frozen_driver_adds_nothing_when_it_wakes_up(headwater_broker: BrokerProcess, tmp_path: Path) -> None:
    servers = headwater_broker.address
    source, target = f"in-{uuid.uuid4().hex[:8]}", f"out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    [created] = admin.create_topics([NewTopic(source, 1)]).values()
    created.result(60)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce(source, str(number))
    assert producer.flush(60) == 0
    table = tmp_path / "table"
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.replace("IN", source).replace("OUT", target).replace("TABLE", str(table)))

    first = driver(file, servers, tmp_path / "one", tmp_path / "shared", "computed")
    second = None
    try:
        assert said(first) == "frozen"
        second = driver(file, servers, tmp_path / "two", tmp_path / "shared", "")
        line = said(second)
        assert line.startswith("PipelineBusy: the checkpoints "), line
        assert f"is held by run of p (machine {os.uname().nodename}, process {first.pid}, since " in line
        # It has the pipeline when the frozen one's session has ended.
        assert said(second) == "done"
        first.send_signal(signal.SIGCONT)
        line = said(first)
        assert line.startswith("PipelineFailed: "), line
        assert "\n" not in line
    finally:
        first.send_signal(signal.SIGCONT)
        ended(first)
        if second is not None:
            ended(second)
    assert consumed(servers, target) == Counter(str(number) for number in range(RECORDS))
    assert sorted(row["value"] for row in delta_rows(table)) == sorted(str(number) for number in range(RECORDS))


def driver(file: Path, servers: str, state: Path, checkpoints: Path, frozen_at: str) -> subprocess.Popen[str]:
    arguments = [str(file), servers, str(state), f"file://{checkpoints}", frozen_at]
    return subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    process.wait(120)
    if process.stdout is not None:
        process.stdout.close()


def consumed(servers: str, topic: str) -> Counter[str]:
    """The keys that a read_committed consumer sees, to the end of the topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "isolation.level": "read_committed",
                         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Counter[str] = Counter()
    while (message := consumer.poll(60)) is not None and message.error() is None:
        key = message.key()
        assert key is not None
        found[key.decode()] += 1
    consumer.close()
    return found
