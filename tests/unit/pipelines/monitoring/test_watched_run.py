"""What a run tells: progress, states, status records, metrics, lineage; no listener can disturb it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headwater.cli.pipeline.run_display import told_beside
from headwater.pipelines.definition import Loaded
from headwater.pipelines.monitoring.lag_sampler import topic_lags
from headwater.pipelines.monitoring.lineage_emitter import LineageEmitter, appending, posting
from headwater.pipelines.monitoring.metrics import families
from headwater.pipelines.monitoring.openlineage import event, stage_lineage
from headwater.pipelines.monitoring.outcome import Outcome
from headwater.pipelines.monitoring.progress import EVENT_TIME, StageTotals, from_spark
from headwater.pipelines.monitoring.stage_state import StageState, State, TopicLag
from headwater.pipelines.monitoring.status import HEARTBEAT_MS, INTERVAL_MS, STATES, decode, is_due
from headwater.pipelines.monitoring.status_topic import stage_status
from headwater.pipelines.monitoring.watching import RunWatch
from headwater.pipelines.sources.known_columns import KnownColumns

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "monitoring_pipelines.md"

PROGRESS = {
    "batchId": 4,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "numInputRows": 30,
    "processedRowsPerSecond": 10.0,
    "batchDuration": 3000,
    "eventTime": {"watermark": "2025-12-31T23:00:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 5, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2},
        {"numRowsTotal": 6, "memoryUsedBytes": 200},
    ],
    "sources": [
        {"numInputRows": 20, "endOffset": {"t": {"0": 7, "1": 3}}, "latestOffset": {"t": {"0": 9, "1": 3}}},
        {"numInputRows": 10, "endOffset": {"reservoirId": "x", "index": 1}, "latestOffset": None},
    ],
    "observedMetrics": {f"{EVENT_TIME}0": {"latest": 1_000}, f"{EVENT_TIME}1": {"latest": None}},
}


def state(**more: Any) -> StageState:
    found = StageState("flights", "clean", State.RUNNING, totals=StageTotals("clean"), **more)
    found.add_progress(from_spark("clean", PROGRESS, 2))
    found.totals.add_outcome(28, 1, {"departed": 2}, 3)
    return found


def test_progress_tells_inputs_state_and_lag() -> None:
    progress = from_spark("clean", PROGRESS, 2)
    assert (progress.late_rows, progress.state_rows, progress.state_bytes, progress.lag) == (2, 11, 300, 2)
    first, second = progress.inputs
    assert (first.rows, first.ends, first.lag) == (20, {("t", 0): 7, ("t", 1): 3}, {("t", 0): 2, ("t", 1): 0})
    assert (first.latest_event_ms, second.latest_event_ms, second.ends) == (1_000, None, {})


def test_sources_that_two_inputs_share_are_not_told_apart() -> None:
    progress = from_spark("clean", PROGRESS, 3)
    assert [each.rows for each in progress.inputs] == [0, 0, 0]
    assert progress.inputs[0].latest_event_ms == 1_000


def test_the_lag_of_a_topic_is_known_from_progress_until_it_is_looked_up() -> None:
    found = state()
    assert found.lag == {"t": TopicLag(2, None)}
    found.lag = {"t": TopicLag(5, 3.0)}
    caught_up = {**PROGRESS, "sources": [{"endOffset": {"t": {"0": 9}}, "latestOffset": {"t": {"0": 9}}}]}
    found.add_progress(from_spark("clean", caught_up, 1))
    assert found.lag == {"t": TopicLag(0, 0.0)}


def test_the_lag_of_a_partition_of_which_nothing_is_committed_counts_from_its_beginning() -> None:
    assert topic_lags({("t", 0): 4}, {("t", 0): 4, ("t", 1): 6}, {}, 0) == {"t": TopicLag(6, None)}


class Recorder:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def began(self, info: Any, watch: RunWatch) -> None:
        self.heard.append(("", "began"))

    def changed(self, state: StageState, progress: Any) -> None:
        self.heard.append((state.stage, state.state.value if progress is None else "progress"))

    def ended(self) -> None:
        self.heard.append(("", "ended"))


class Broken(Recorder):
    def changed(self, state: StageState, progress: Any) -> None:
        raise RuntimeError("a listener's fault")


def test_listeners_hear_each_change_once_and_a_broken_one_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    watch = RunWatch("flights", [Broken(), recorder], clock_ms=lambda: 5)
    watch.begin(SimpleNamespace(stages=("clean", "delays")))  # type: ignore[arg-type]
    watch.set_state("clean", State.RUNNING)
    watch.set_state("clean", State.RUNNING)
    watch.add_progress("clean", from_spark("clean", PROGRESS, 2), "")
    watch.add_outcome(Outcome("clean", 28, 1, {"departed": 2}, 3))
    watch.set_state("clean", State.RESTARTING, "no broker")
    watch.set_state("delays", State.FAILED, "wrong")
    watch.end()
    assert recorder.heard == [
        ("", "began"), ("clean", "starting"), ("delays", "starting"), ("clean", "running"), ("clean", "progress"),
        ("clean", "restarting"), ("delays", "failed"), ("clean", "stopped"), ("", "ended"),
    ]  # fmt: skip
    clean, delays = watch.states()
    assert (clean.restarts, clean.error, clean.totals.written, delays.state) == (1, "no broker", 28, State.FAILED)
    assert "a listener's fault" in caplog.text


INFO: Any = SimpleNamespace(continuous=True, started_ms=1, versions={"spark": "4"})


def test_a_status_says_all_and_is_read_back() -> None:
    found = state(error="x", stall="the watermark stands")
    status = stage_status(found, INFO, 99, {"headwater": "1"})
    assert decode(status.encode()) == status
    assert (status.state, status.batch, status.rows, status.unmet) == ("running", 4, 30, {"departed": 2})
    assert status.versions == {"headwater": "1", "spark": "4"}


def test_a_field_of_a_later_release_is_passed_over() -> None:
    status = stage_status(state(), INFO, 99, {})
    assert decode(json.dumps(json.loads(status.encode()) | {"colour": "red"}).encode()) == status


def test_the_states_of_a_record_are_those_of_a_stage() -> None:
    assert set(STATES) == {each.value for each in State}
    with pytest.raises(ValueError, match="not a state of a stage: 'dancing'"):
        decode(stage_status(state(), INFO, 99, {}).encode().replace(b'"running"', b'"dancing"'))


def test_every_field_of_a_status_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name in json.loads(stage_status(state(), INFO, 99, {}).encode()):
        assert f"`{name}`" in page, name
    for each in State:
        assert f"`{each.value}`" in page, each


def test_a_status_is_written_once_a_second_at_most_and_every_heartbeat_at_least() -> None:
    def due(after_ms: int, *, state_changed: bool = False, changed: bool = True) -> bool:
        return is_due(after_ms, 0, state_changed=state_changed, something_changed=changed)

    assert not due(INTERVAL_MS - 1)
    assert due(INTERVAL_MS)
    assert due(1, state_changed=True)
    assert not due(HEARTBEAT_MS - 1, changed=False)
    assert due(HEARTBEAT_MS, changed=False)
    assert is_due(0, None, state_changed=False, something_changed=False)


def test_every_metric_is_on_the_page_and_every_one_on_the_page_is_told() -> None:
    found = state()
    found.lag = {"t": TopicLag(2, 1.5)}
    told = set()
    for family in families([found], 1_767_225_600.0):
        assert family.samples, family.name
        told.add(family.name + ("_total" if family.type == "counter" else ""))
    documented = set(re.findall(r"`(headwater_pipeline_\w+)`", PAGE.read_text()))
    assert documented == told


def test_a_stage_without_a_batch_has_metrics_without_a_watermark() -> None:
    found = {family.name: family.samples for family in families([StageState("p", "s")], 0.0)}
    assert found["headwater_pipeline_watermark_delay_seconds"] == []
    assert [s.labels["state"] for s in found["headwater_pipeline_stage_state"] if s.value] == ["starting"]


def test_the_terminal_tells_rows_rate_lag_and_watermark() -> None:
    found = state(restarts=2)
    found.lag = {"t": TopicLag(1200, 4.0)}
    assert told_beside(found) == "30 rows, 10/s, lag 1,200 (4 s), watermark 2025-12-31T23:00:00.000Z, 2 restarts"


# -- lineage ---------------------------------------------------------------------------------------------------------


def test_an_event_has_what_the_specification_requires(load: Callable[..., Loaded], correct: str) -> None:
    loaded = load(correct)
    clean = loaded.pipeline.stages[0]
    columns = {("topic", "orders"): [("amount", "double")]}
    lineage = stage_lineage(loaded, clean, "b1:9092,b2:9092", columns, is_streaming=True)
    made = event(lineage, "FAIL", "3b452093-782c-4ef2-9c0c-aafe2aa6f34d", 0, error="no broker", rows_written=7)
    assert {"eventTime", "producer", "schemaURL", "run", "job", "eventType"} <= made.keys()
    assert (made["job"]["namespace"], made["job"]["name"]) == ("headwater://orders", "clean")
    assert [(each["namespace"], each["name"]) for each in made["inputs"]] == [("kafka://b1:9092", "orders")]
    assert [(each["namespace"], each["name"]) for each in made["outputs"]] == [
        ("kafka://b1:9092", "orders_clean"), ("file", "/flows/lake/orders"), ("kafka://b1:9092", "orders.dead_letters")
    ]  # fmt: skip
    facets = [
        *made["run"]["facets"].values(), *made["job"]["facets"].values(),
        *(facet for each in made["inputs"] + made["outputs"] for facet in each["facets"].values()),
        *made["outputs"][0]["outputFacets"].values(),
    ]  # fmt: skip
    assert len(facets) == 4
    for facet in facets:
        assert {"_producer", "_schemaURL"} <= facet.keys()
    assert made["inputs"][0]["facets"]["schema"]["fields"] == [{"name": "amount", "type": "double"}]
    assert made["run"]["facets"]["errorMessage"]["message"] == "no broker"


@pytest.mark.parametrize(
    ("sinks", "counted"),
    [
        ("[{topic: b}, {delta: c}]", [7, None, None]),
        ("[{topic: b, when: value > 'x'}, {delta: c}]", [None, 7, None]),
        ("[{python: {file: f.py, function: f}}, {topic: b, when: value > 'x'}]", [None, None]),
        ("{python: {file: f.py, function: f}}", [None]),
    ],
)
def test_rows_are_counted_for_an_output_that_receives_all_of_them(
    load: Callable[..., Loaded], sinks: str, counted: list[int | None]
) -> None:
    loaded = load(
        f"pipeline: p\ntopics: {{a: {{value: string}}}}\nstages:\n  - {{name: s, from: {{topic: a}}, to: {sinks}}}"
    )
    lineage = stage_lineage(loaded, loaded.pipeline.stages[0], "b:9092", {}, is_streaming=True)
    outputs = event(lineage, "COMPLETE", "3b452093", 0, rows_written=7)["outputs"]
    facets = [each.get("outputFacets") for each in outputs]
    assert [facet and facet["outputStatistics"]["rowCount"] for facet in facets] == counted


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, str | None, Any]]] = []
    answer = 201

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.answer)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Receiver.got, Receiver.answer = [], 201
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_of(emitter: LineageEmitter, loaded: Loaded) -> None:
    """A run of the first stage, from its start to its failure."""
    analysis = SimpleNamespace(columns=KnownColumns({}))
    info: Any = SimpleNamespace(
        stages=("clean",), loaded=loaded, continuous=True, bootstrap_servers="b:1", analysis=analysis
    )
    watch = RunWatch("orders", [emitter])
    watch.add("clean")
    watch.begin(info)
    watch.add_progress("clean", from_spark("clean", PROGRESS, 1), "")
    watch.set_state("clean", State.FAILED, "no broker")
    watch.end()


def test_events_are_posted_with_the_key_and_failures_say_why(
    receiver: str, load: Callable[..., Loaded], correct: str
) -> None:
    run_of(LineageEmitter(posting(receiver, "secret"), running_interval_s=0.0), load(correct))
    assert [(path, key) for path, key, _ in Receiver.got] == [("/api/v1/lineage", "Bearer secret")] * 3
    assert [body["eventType"] for *_, body in Receiver.got] == ["START", "RUNNING", "FAIL"]
    assert Receiver.got[2][2]["run"]["facets"]["errorMessage"]["message"] == "no broker"
    assert "secret" not in json.dumps([body for *_, body in Receiver.got])


def test_a_receiver_that_refuses_is_told_once_and_disturbs_nobody(
    receiver: str, load: Callable[..., Loaded], correct: str, caplog: pytest.LogCaptureFixture
) -> None:
    Receiver.answer = 503
    run_of(LineageEmitter(posting(receiver), running_interval_s=0.0), load(correct))
    assert len(Receiver.got) == 3
    assert caplog.text.count("lineage is not delivered") == 1


def test_events_are_appended_to_a_file(tmp_path: Path, load: Callable[..., Loaded], correct: str) -> None:
    path = tmp_path / "lineage.jsonl"
    path.write_text("{}\n")
    run_of(LineageEmitter(appending(str(path))), load(correct))
    assert [json.loads(line).get("eventType") for line in path.read_text().splitlines()] == [None, "START", "FAIL"]


@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "kafka://b:1"])
def test_a_url_that_is_none_of_a_receiver_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a receiver"):
        posting(url)
