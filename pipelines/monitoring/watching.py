"""Notification of a run's listeners: metrics, the status topic, lineage, a terminal.

The runner's threads write; listeners are called one at a time, with a copy, and must neither block nor raise: a
listener that needs the network uses its own thread.
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
    """Data of a run before its stages start."""

    loaded: Loaded
    plan: Plan
    analysis: Analysis
    stages: tuple[str, ...]
    continuous: bool
    bootstrap_servers: str
    started_ms: int
    versions: Mapping[str, str] = field(default_factory=dict)


class RunListener(Protocol):
    """Receives the events of a run's stages."""

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Called before the stages start."""

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Called when a stage changes its state or, with `progress`, completes a micro-batch."""

    def ended(self) -> None:
        """Called at the end of the run. May block for a few seconds to send pending data."""


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
        """Register a run's stages and notify the listeners."""
        for stage in info.stages:
            self.add(stage)
        self._tell(lambda listener: listener.began(info, self))
        for state in self.states():
            self._tell(lambda listener, state=state: listener.changed(state, None))  # type: ignore[misc]

    def add(self, stage: str) -> StageTotals:
        """Register a stage before its start; returns its totals, which the run updates."""
        with self._lock:
            state = StageState(self._pipeline, stage, since_ms=self._clock_ms(), totals=StageTotals(stage))
            return self._states.setdefault(stage, state).totals

    def end(self) -> None:
        """Mark the run as ended: stages that have not ended become stopped."""
        for state in self.states():
            if not state.is_over:
                self.set_state(state.stage, State.STOPPED)
        self._tell(lambda listener: listener.ended())

    def states(self) -> list[StageState]:
        """Return copies of all stages' states."""
        with self._lock:
            return copy.deepcopy(list(self._states.values()))

    def state(self, stage: str) -> StageState:
        """Return a copy of a stage's state."""
        with self._lock:
            return copy.deepcopy(self._states[stage])

    def set_state(self, stage: str, to: State, error: str | None = None) -> None:
        """Set a stage's state; `error` is its failure, '' after a recovery."""
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
        """Add a completed micro-batch; returns a copy of the stage's totals."""
        with self._lock:
            state = self._states[stage]
            state.add_progress(progress)
            state.stall = stall
            told = copy.deepcopy(state)
        self._tell(lambda listener: listener.changed(told, progress))
        return told.totals

    def add_outcome(self, outcome: Outcome) -> None:
        """Add a micro-batch's outcome; its progress follows later."""
        with self._lock:
            totals = self._states[outcome.stage].totals
            totals.add_outcome(
                outcome.written, outcome.undecodable, outcome.unmet, outcome.dead_letters, outcome.late_records
            )

    def set_lag(self, stage: str, lag: Mapping[str, TopicLag]) -> None:
        """Set a stage's sampled lag."""
        with self._lock:
            self._states[stage].lag.update(lag)

    def _tell(self, call: Callable[[RunListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                # A listener's failure must not end the run.
                logger.exception("%s failed", type(listener).__name__)
