"""`/headwater/v1/pipelines` over a table of statuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headwater.api.pipeline_status import PipelineStatus, StatusTable
from headwater.pipelines.monitoring.status import HEARTBEAT_MS, Lag, StageStatus, record_key

NOW_MS = 1_767_225_600_000


def status(stage: str, state: str = "running", pipeline: str = "flights", **more: Any) -> StageStatus:
    told = {"since_ms": NOW_MS - 60_000, "time_ms": NOW_MS - 1_000, "started_ms": NOW_MS - 90_000, **more}
    return StageStatus(pipeline=pipeline, stage=stage, state=state, host="h", process=7, **told)


def record(table: StatusTable, one: StageStatus) -> None:
    table.apply(record_key(one.pipeline, one.stage), one.encode())


class GivenStatus(PipelineStatus):
    """Statuses that need no broker."""

    def __init__(self, admin: Any, *given: StageStatus) -> None:
        super().__init__(admin, clock_ms=lambda: NOW_MS)
        self._given = StatusTable()
        for one in given:
            record(self._given, one)

    def stages(self) -> dict[tuple[str, str], StageStatus]:
        return self._given.stages()


@pytest.fixture
def told(client: Any) -> Any:
    lag = {"flights": Lag(12, 3.5)}
    client.app.state.pipelines = GivenStatus(
        client.admin,
        status("clean", batch=3, batch_rows=10, lag=lag, watermark="2026-01-01T00:00:00.000Z"),
        status("delays", "idle"),
        status("a", "restarting", "other", error="no broker"),
    )
    return client


def test_without_a_run_there_is_no_pipeline(client: Any) -> None:
    answer = client.call("GET", "/headwater/v1/pipelines")
    assert (answer.status_code, answer.json()["data"]) == (200, [])


def test_pipelines_are_listed_with_their_stages_and_the_worst_of_their_states(told: Any) -> None:
    body = told.call("GET", "/headwater/v1/pipelines").json()
    assert body["kind"] == "HeadwaterPipelineList"
    assert [(one["name"], one["state"], one["lag_records"]) for one in body["data"]] == [
        ("flights", "running", 12),
        ("other", "restarting", 0),
    ]
    assert [stage["name"] for stage in body["data"][0]["stages"]] == ["clean", "delays"]


def test_a_pipeline_and_a_stage_are_described_at_their_own_urls(told: Any) -> None:
    one = told.call("GET", "/headwater/v1/pipelines/flights").json()
    assert one["self_url"] == "http://headwater:8082/headwater/v1/pipelines/flights"
    stage = told.call("GET", one["stages"][0]["self_url"].removeprefix("http://headwater:8082")).json()
    assert stage == one["stages"][0]
    assert stage["last_batch"]["number"] == 3
    assert stage["lag"] == {"flights": {"records": 12, "seconds": 3.5}}
    assert stage["watermark"] == "2026-01-01T00:00:00Z"
    assert (stage["error"], stage["stall"]) == (None, None)


@pytest.mark.parametrize("path", ["none", "flights/stages/none", "none/stages/clean"])
def test_what_was_never_run_is_404_with_a_message(told: Any, path: str) -> None:
    answer = told.call("GET", f"/headwater/v1/pipelines/{path}")
    assert (answer.status_code, answer.json()["error_code"]) == (404, 40404)


def test_a_stage_that_has_not_been_heard_of_is_lost_unless_it_said_that_it_is_over(client: Any) -> None:
    long_ago = NOW_MS - 4 * HEARTBEAT_MS
    given = [status("gone", time_ms=long_ago), status("over", "stopped", time_ms=long_ago)]
    client.app.state.pipelines = GivenStatus(client.admin, *given)
    stages = client.call("GET", "/headwater/v1/pipelines/flights").json()["stages"]
    assert [(stage["name"], stage["state"]) for stage in stages] == [("gone", "lost"), ("over", "stopped")]


def test_the_table_keeps_the_last_status_of_each_stage_and_forgets_tombstones() -> None:
    table = StatusTable()
    record(table, status("a", "starting"))
    record(table, status("a", "idle"))
    record(table, status("b"))
    table.apply(record_key("flights", "b"), None)
    assert [(key, one.state) for key, one in table.stages().items()] == [(("flights", "a"), "idle")]


def test_what_is_no_status_is_passed_over() -> None:
    table = StatusTable()
    for key, value in (
        (None, b"{}"),
        (b"flights/a", b"no json"),
        (b"flights/a", b'{"version": 2}'),
        (b"flights/a", b'{"version": 1, "pipeline": "flights"}'),
        (b"flights/other", status("a").encode()),
    ):
        table.apply(key, value)
    assert table.stages() == {}


def test_the_table_is_bounded_and_keeps_those_heard_of_last() -> None:
    table = StatusTable(stages_max=2)
    for stage in ("a", "b", "c"):
        record(table, status(stage))
    record(table, dataclasses.replace(status("b"), rows=5))
    record(table, status("d"))
    assert [stage for _, stage in table.stages()] == ["b", "d"]
