"""What a run tells whoever watches it: metrics, the status topic, lineage, a terminal.

The runner's threads write; listeners are called one at a time, with a copy, and must neither block nor raise: what
needs a network does it on a thread of its own.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headwater.pipelines.definition.plan import Plan
from headwater.pipelines.monitoring.outcome import Outcome
from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
from headwater.pipelines.monitoring.stage_state import StageState, State, TopicLag

if TYPE_CHECKING:
    from headwater.pipelines.analysis.analysis import Analysis
    from headwater.pipelines.definition import Loaded

__all__ = ["RunInfo", "RunListener", "RunWatch"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run when its stages are about to start."""

    loaded: Loaded
    plan: Plan
    analysis: Analysis
    stages: tuple[str, ...]
    continuous: bool
    bootstrap_servers: str
    started_ms: int
    versions: Mapping[str, str] = field(default_factory=dict)


class RunListener(Protocol):
    """Hears what becomes of a run's stages."""

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """The stages are about to start."""

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """A stage came into another state, or (with `progress`) has done a micro-batch."""

    def ended(self) -> None:
        """The run is over. May wait for a few seconds until what is left is sent."""


class RunWatch:
    """The states of a run's stages. Thread-safe."""

    def __init__(
        self,
        pipeline: str,
        listeners: Sequence[RunListener] = (),
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._pipeline = pipeline
        self._listeners = tuple(listeners)
        self._clock_ms = clock_ms
        self._lock = threading.RLock()
        self._states: dict[str, StageState] = {}

    def begin(self, info: RunInfo) -> None:
        """Take up the stages of a run and tell the listeners."""
        for stage in info.stages:
            self.add(stage)
        self._tell(lambda listener: listener.began(info, self))
        for state in self.states():
            self._tell(lambda listener, state=state: listener.changed(state, None))  # type: ignore[misc]

    def add(self, stage: str) -> StageTotals:
        """A stage that is to start; its counts, which change while it runs."""
        with self._lock:
            state = StageState(self._pipeline, stage, since_ms=self._clock_ms(), totals=StageTotals(stage))
            return self._states.setdefault(stage, state).totals

    def end(self) -> None:
        """The run is over, however it ended: what is not over is stopped."""
        for state in self.states():
            if not state.is_over:
                self.set_state(state.stage, State.STOPPED)
        self._tell(lambda listener: listener.ended())

    def states(self) -> list[StageState]:
        """Copies of all stages' states."""
        with self._lock:
            return copy.deepcopy(list(self._states.values()))

    def state(self, stage: str) -> StageState:
        """A copy of one."""
        with self._lock:
            return copy.deepcopy(self._states[stage])

    def set_state(self, stage: str, to: State, error: str | None = None) -> None:
        """A stage came into a state; `error` says why it failed, '' that all is well again."""
        with self._lock:
            state = self._states[stage]
            if state.state is to and (error is None or error == state.error):
                return
            if to is not state.state:
                state.since_ms = self._clock_ms()
            if to is State.RESTARTING:
                state.restarts += 1
            state.state = to
            state.error = state.error if error is None else error
            told = copy.deepcopy(state)
        self._tell(lambda listener: listener.changed(told, None))

    def add_progress(self, stage: str, progress: StageProgress, stall: str) -> StageTotals:
        """A stage has done a micro-batch; returns a copy of its counts."""
        with self._lock:
            state = self._states[stage]
            state.add_progress(progress)
            state.stall = stall
            told = copy.deepcopy(state)
        self._tell(lambda listener: listener.changed(told, progress))
        return told.totals

    def add_outcome(self, outcome: Outcome) -> None:
        """What became of a micro-batch's rows is known; its progress comes a moment later."""
        with self._lock:
            totals = self._states[outcome.stage].totals
            totals.add_outcome(outcome.written, outcome.undecodable, outcome.unmet, outcome.dead_letters)

    def set_lag(self, stage: str, lag: Mapping[str, TopicLag]) -> None:
        """How far a stage is behind its topics was looked up."""
        with self._lock:
            self._states[stage].lag.update(lag)

    def _tell(self, call: Callable[[RunListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                # Whoever watches must not end what is watched.
                logger.exception("%s failed", type(listener).__name__)
