"""Which stages are started when, and what becomes of failures, with queries that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.engine.supervision import Supervisor
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.monitoring.stage_state import State
from headwater.pipelines.monitoring.watching import RunWatch

NAMES = ("clean", "totals")
LOST = "Spark's Java process has ended"


class Query:
    """A stage's query and Spark's in one: as much of both as the supervisor asks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_busy = False
        self.isActive = True
        self.failure: BaseException | None = None
        self.error: BaseException | None = None
        self.closed = 0
        self.status = {"message": "Initializing sources", "isTriggerActive": False}
        self._jsq = self

    def start(self, *, available_now: bool) -> Query:
        return self

    def fail(self, error: BaseException) -> None:
        self.failure, self.isActive = error, False

    def end(self) -> None:
        self.isActive = False

    def exception(self) -> BaseException | None:
        return self.failure

    def lastProgress(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False

    def close(self) -> None:
        self.closed += 1


class Turns(threading.Event):
    """The run's stop event, whose waits are the turns of the supervisor's loop: each runs the test's next step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Iterator[None] = iter(())

    def wait(self, timeout: float | None = None) -> bool:
        next(self.steps)
        return self.is_set()


class Run:
    """A supervisor of two stages without a Spark."""

    def __init__(self, loaded: Loaded, *, continuous: bool) -> None:
        self.queries: list[Query] = []
        self.events: list[str] = []
        self.lost = False
        self.stop = Turns()
        self.watch = RunWatch("orders")
        for name in NAMES:
            self.watch.add(name)
        self.supervisor = Supervisor(
            loaded,
            loaded.pipeline.stages,
            self._make,
            self.watch,
            self.stop,
            "spark.log",
            self._require_session,
            continuous=continuous,
            fail_fast=False,
            multiple_watermark_policy="min",
            on_progress=lambda *_: None,
            on_event=self.events.append,
        )

    def _make(self, stage: Any) -> Any:
        self.queries.append(Query(stage.name))
        return self.queries[-1]

    def _require_session(self, _wait_s: float) -> None:
        if self.lost:
            raise PipelineFailed(LOST)

    def play(self, steps: Callable[[], Iterator[None]]) -> None:
        """Runs; `steps` yields where the supervisor shall take a turn."""
        self.stop.steps = steps()
        self.supervisor.run()

    def names(self) -> list[str]:
        return [query.name for query in self.queries]

    def states(self) -> list[State]:
        return [self.watch.state(name).state for name in NAMES]


@pytest.fixture
def start(load: Callable[[str], Loaded], correct: str) -> Callable[..., Run]:
    text = correct.replace("  - name: ", "  - restart: {attempts: 1, backoff: 1 millisecond}\n    name: ")

    def make(*, continuous: bool = True) -> Run:
        return Run(load(text), continuous=continuous)

    return make


def until(condition: Callable[[], bool]) -> Iterator[None]:
    """Turns until it holds; a pause before a restart takes real time."""
    turns = 0
    while not condition():
        turns += 1
        assert turns < 1_000_000
        yield


@pytest.mark.parametrize("is_up", ["is_busy", "waiting"])
def test_a_stage_starts_when_the_one_before_has_come_up(start: Callable[..., Run], is_up: str) -> None:
    run = start()

    def steps() -> Iterator[None]:
        for _ in range(5):
            assert run.names() == ["clean"]
            yield
        if is_up == "is_busy":
            run.queries[0].is_busy = True
        else:
            run.queries[0].status["message"] = "Waiting for data to arrive"
        yield
        assert run.names() == ["clean", "totals"]
        run.stop.set()
        yield

    run.play(steps)
    assert [query.closed for query in run.queries] == [1, 1]


def test_a_stage_that_has_ended_holds_nobody_up(start: Callable[..., Run]) -> None:
    run = start()

    def steps() -> Iterator[None]:
        run.queries[0].end()
        yield
        run.queries[1].end()
        yield

    run.play(steps)
    assert run.states() == [State.STOPPED, State.STOPPED]


@pytest.mark.parametrize("continuous", [True, False])
def test_a_transient_failure_is_tried_again(start: Callable[..., Run], continuous: bool) -> None:
    run = start(continuous=continuous)

    def steps() -> Iterator[None]:
        run.queries[0].fail(ConnectionError("away"))
        yield from until(lambda: run.names().count("clean") == 2)
        for query in run.queries:
            query.end()
        yield from until(lambda: run.states()[0] is State.STOPPED)
        run.queries[-1].end()
        yield

    run.play(steps)
    assert any("clean: failed, and is tried again in" in event for event in run.events)


def test_a_stage_given_up_ends_a_run_that_is_not_continuous(start: Callable[..., Run]) -> None:
    run = start(continuous=False)

    def steps() -> Iterator[None]:
        run.queries[0].fail(ValueError("a mistake"))
        yield

    with pytest.raises(PipelineFailed, match="a mistake"):
        run.play(steps)
    assert run.states()[0] is State.FAILED


@pytest.mark.parametrize("broken", [False, True])
def test_a_session_that_is_lost_ends_the_run_and_is_named(start: Callable[..., Run], broken: bool) -> None:
    run = start()

    def steps() -> Iterator[None]:
        if broken:  # the call into the JVM fails before its process is gone
            run.queries[0].fail(ConnectionRefusedError("refused"))
        run.lost = True
        yield

    with pytest.raises(PipelineFailed, match=LOST):
        run.play(steps)
    assert run.events == []
