"""The status topic on a broker, as runs write it and the REST API reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.api.pipeline_status import PipelineStatus
from headwater.api.topic_admin import TopicAdmin
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.monitoring.stage_state import State
from headwater.pipelines.monitoring.status import STATUS_TOPIC
from headwater.pipelines.monitoring.status_topic import StatusTopic
from headwater.pipelines.monitoring.watching import RunWatch

pytestmark = pytest.mark.slow
WAIT_S = 60


def until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_runs_write_is_what_the_api_reads_while_they_run_and_afterwards(start_broker: Any, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    client = WriteOptions.parse({"kafka.bootstrap.servers": broker.address}).client
    status = PipelineStatus(TopicAdmin(broker.address))
    assert status.stages() == {}
    info: Any = SimpleNamespace(stages=("clean", "delays"), continuous=True, started_ms=1, versions={})
    watch = RunWatch("flights", [StatusTopic(client)])
    watch.begin(info)
    until(lambda: len(status.stages()) == 2)
    assert {one.state for one in status.stages().values()} == {"starting"}
    watch.set_state("clean", State.RESTARTING, "no broker")
    until(lambda: status.stages()["flights", "clean"].state == "restarting")
    assert status.stages()["flights", "clean"].error == "no broker"
    watch.set_state("clean", State.FAILED, "no broker")
    watch.end()
    until(lambda: [one.state for one in status.stages().values()] == ["failed", "stopped"])

    # The topic is compacted, and one that is deleted is no longer told.
    configs = TopicAdmin(broker.address).configs_of([STATUS_TOPIC])[STATUS_TOPIC]
    assert {config.name: config.value for config in configs}["cleanup.policy"] == "compact"
    TopicAdmin(broker.address).delete_topics([STATUS_TOPIC])
    until(lambda: status.stages() == {})
    status.close()


def test_a_run_goes_on_and_tells_once_when_its_status_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    client = WriteOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1"}).client
    info: Any = SimpleNamespace(stages=("clean",), continuous=True, started_ms=1, versions={})
    watch = RunWatch("flights", [StatusTopic(client)])
    watch.begin(info)
    until(lambda: "cannot be written" in caplog.text)
    watch.set_state("clean", State.RUNNING)
    watch.end()
    assert caplog.text.count("the status of the stages cannot be written") == 1
    assert watch.state("clean").state is State.STOPPED
