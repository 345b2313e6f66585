"""Writes the status of a run's stages to the topic `__headwater_status`.

See `headwater.pipelines.monitoring.status` for the record.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from headwater.pipelines.monitoring.status import Lag, StageStatus
from headwater.pipelines.monitoring.status_writer import StatusWriter

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClientConfig
    from headwater.pipelines.monitoring.progress import StageProgress
    from headwater.pipelines.monitoring.stage_state import StageState
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["StatusTopic", "stage_status"]


class StatusTopic:
    """A listener that writes each stage's status: at each state change, otherwise at most once a second."""

    def __init__(self, client: ClientConfig, versions: dict[str, str] | None = None) -> None:
        self._versions = versions or {}
        self._info: RunInfo | None = None
        self._watch: RunWatch | None = None
        self._writer = StatusWriter(client, self._statuses, "the stages")

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Start writing."""
        self._info, self._watch = info, watch
        self._writer.start()

    def changed(self, state: StageState, progress: StageProgress | None) -> None:  # noqa: ARG002 - a listener's
        """Write a state change at once; other changes wait for the next interval."""
        if progress is None:
            self._writer.wake()

    def ended(self) -> None:
        """Write the stages' final status, if the broker accepts it within a few seconds."""
        self._writer.end()

    def _statuses(self, now_ms: int) -> list[StageStatus]:
        assert self._info is not None
        assert self._watch is not None
        return [stage_status(state, self._info, now_ms, self._versions) for state in self._watch.states()]


def stage_status(state: StageState, info: RunInfo, now_ms: int, versions: dict[str, str]) -> StageStatus:
    """Return the status record of a stage's state."""
    totals, last = state.totals, state.last
    return StageStatus(
        pipeline=state.pipeline,
        stage=state.stage,
        state=state.state.value,
        since_ms=state.since_ms,
        time_ms=now_ms,
        started_ms=info.started_ms,
        host=socket.gethostname(),
        process=os.getpid(),
        mode="continuous" if info.continuous else "once",
        batch=None if last is None else last.batch_id,
        batch_rows=0 if last is None else last.rows,
        batch_ms=0 if last is None else last.duration_ms,
        rows_per_second=0.0 if last is None else round(last.rows_per_second, 1),
        rows=totals.rows,
        written=totals.written,
        dead_letters=totals.dead_letters,
        undecodable=totals.undecodable,
        late_rows=totals.late_rows,
        late_records=totals.late_records,
        unmet=dict(totals.unmet),
        state_rows=0 if last is None else last.state_rows,
        state_bytes=0 if last is None else last.state_bytes,
        watermark=totals.watermark,
        stall=state.stall,
        lag={
            topic: Lag(lag.records, None if lag.seconds is None else round(lag.seconds, 1))
            for topic, lag in state.lag.items()
        },
        restarts=state.restarts,
        error=state.error,
        versions={**versions, **info.versions},
    )
