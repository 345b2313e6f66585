"""What is known of a stage while it runs: the one place that metrics, status, terminal and lineage read. Pure.

The runner writes it, with the lock of its `RunWatch` held; whoever reads it takes a copy.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.monitoring.progress import StageProgress, StageTotals

__all__ = ["DURATION_BOUNDS_S", "Durations", "StageState", "State", "TopicLag"]

# Micro-batches take from a tenth of a second, when little is to be done, to many minutes after an outage.
DURATION_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class State(enum.Enum):
    """What a stage does at the moment."""

    STARTING = "starting"
    RUNNING = "running"
    #: Its query waits for data.
    IDLE = "idle"
    #: Its failure is transient, and it is tried again after a pause.
    RESTARTING = "restarting"
    #: It was given up; the run goes on without it, or has ended.
    FAILED = "failed"
    #: The run has ended, or its stage had nothing left to do.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far a stage is behind a topic: records not read, and the age of the oldest of them (None: not known)."""

    records: int
    seconds: float | None


@dataclass(slots=True)
class Durations:
    """A histogram of how long micro-batches took.

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
        since_ms: When it came into its state.
        error: Why it failed the last time; '' while all is well.
        stall: Why its watermark stands still, '' while it moves (see `headwater.pipelines.monitoring.watermark_stall`).
        lag: By topic, as it was looked up last; empty before.
        positions: The next offset of each partition that was read.
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
        """Whether nothing more is to come of it in this run."""
        return self.state in (State.FAILED, State.STOPPED)

    def add_progress(self, progress: StageProgress) -> None:
        """Take note of a micro-batch."""
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
