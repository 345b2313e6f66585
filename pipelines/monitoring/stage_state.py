"""The state of a running stage: the single source for metrics, status, terminal and lineage. Pure.

The runner writes it while holding the lock of its `RunWatch`; readers get a copy.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.monitoring.progress import StageProgress, StageTotals

__all__ = ["DURATION_BOUNDS_S", "Durations", "StageState", "State", "TopicLag"]

# Micro-batches take from a tenth of a second, with few records, to many minutes after an outage.
DURATION_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class State(enum.Enum):
    """The current state of a stage."""

    STARTING = "starting"
    RUNNING = "running"
    #: The query waits for data.
    IDLE = "idle"
    #: The stage failed with a transient failure, and restarts after a pause.
    RESTARTING = "restarting"
    #: The stage was given up; the run continues without it, or has ended.
    FAILED = "failed"
    #: The run has ended, or the stage has read all available data.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A stage's lag behind a topic: unread records, and the age of the oldest (None: unknown)."""

    records: int
    seconds: float | None


@dataclass(slots=True)
class Durations:
    """A histogram of the durations of micro-batches.

    >>> durations = Durations()
    >>> durations.observe(0.2)
    >>> durations.observe(1000.0)
    >>> sum(durations.counts), durations.counts[1], durations.counts[-1]
    (2, 1, 1)
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one micro-batch."""
        self.counts[bisect.bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class StageState:
    """One stage of a run.

    Attributes:
        since_ms: Time of the last state change.
        error: The last failure; '' while the stage runs normally.
        stall: The reason why its watermark does not advance, '' while it does (see
            `headwater.pipelines.monitoring.watermark_stall`).
        lag: The last sampled lag by topic; empty before the first sample.
        positions: The next offset of each partition read.
    """

    pipeline: str
    stage: str
    state: State = State.STARTING
    since_ms: int = 0
    totals: StageTotals = field(default_factory=lambda: StageTotals(""))
    last: StageProgress | None = None
    durations: Durations = field(default_factory=Durations)
    restarts: int = 0
    error: str = ""
    stall: str = ""
    lag: dict[str, TopicLag] = field(default_factory=dict)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the stage has ended for this run."""
        return self.state in (State.FAILED, State.STOPPED)

    def add_progress(self, progress: StageProgress) -> None:
        """Add a micro-batch's progress."""
        self.last = progress
        if progress.rows or progress.late_rows:
            self.totals.add_progress(progress)
            self.durations.observe(progress.duration_ms / 1000)
        elif progress.watermark:
            self.totals.watermark = progress.watermark
        for each in progress.inputs:
            for key, offset in each.ends.items():
                self.positions[key] = offset
            for topic in {topic for topic, _ in each.lag}:
                records = sum(offsets for (name, _), offsets in each.lag.items() if name == topic)
                known = self.lag.get(topic)
                self.lag[topic] = TopicLag(records, (known.seconds if known and records else None if records else 0.0))
