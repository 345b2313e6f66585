"""Pipelines and their stages, as the status topic describes them."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, TypeAdapter

from headwater.api.schemas.resource import ListMetadata

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.status import StageStatus

StageState = Literal["starting", "running", "idle", "restarting", "failed", "stopped", "lost"]
_STATE: TypeAdapter[StageState] = TypeAdapter(StageState)


class TopicLagData(BaseModel):
    """Lag of a stage behind a topic; `seconds` is null while unknown."""

    records: int
    seconds: float | None


class LastBatchData(BaseModel):
    """The last micro-batch."""

    number: int
    rows: int
    duration_ms: int
    rows_per_second: float


class StageData(BaseModel):
    """A stage. `lost`: the process ended without reporting a final state. Counts are those of the current run."""

    name: str
    self_url: str
    state: StageState
    since: dt.datetime
    told_at: dt.datetime
    started_at: dt.datetime
    mode: str
    last_batch: LastBatchData | None
    rows: int
    written: int
    dead_letters: int
    undecodable: int
    late_rows: int
    late_records: int
    unmet: dict[str, int]
    state_rows: int
    state_bytes: int
    watermark: dt.datetime | None
    stall: str | None
    lag: dict[str, TopicLagData]
    restarts: int
    error: str | None
    host: str
    process: int
    versions: dict[str, str]

    @classmethod
    def of(cls, status: StageStatus, root: str, now_ms: int) -> StageData:
        """Build the body of a stage; `root` is the URL of its pipeline."""
        batch = None
        if status.batch is not None:
            batch = LastBatchData(
                number=status.batch,
                rows=status.batch_rows,
                duration_ms=status.batch_ms,
                rows_per_second=status.rows_per_second,
            )
        return cls(
            name=status.stage,
            self_url=f"{root}/stages/{status.stage}",
            state=_STATE.validate_python("lost" if status.is_lost(now_ms) else status.state),
            since=_moment(status.since_ms),
            told_at=_moment(status.time_ms),
            started_at=_moment(status.started_ms),
            mode=status.mode,
            last_batch=batch,
            rows=status.rows,
            written=status.written,
            dead_letters=status.dead_letters,
            undecodable=status.undecodable,
            late_rows=status.late_rows,
            late_records=status.late_records,
            unmet=status.unmet,
            state_rows=status.state_rows,
            state_bytes=status.state_bytes,
            watermark=dt.datetime.fromisoformat(status.watermark) if status.watermark else None,
            stall=status.stall or None,
            lag={topic: TopicLagData(**dataclasses.asdict(lag)) for topic, lag in status.lag.items()},
            restarts=status.restarts,
            error=status.error or None,
            host=status.host,
            process=status.process,
            versions=status.versions,
        )


class PipelineData(BaseModel):
    """A pipeline with its stages. Its state is the worst state of a stage."""

    kind: str = "HeadwaterPipeline"
    name: str
    self_url: str
    state: StageState
    lag_records: int
    stages: list[StageData]

    @classmethod
    def of(cls, name: str, stages: Sequence[StageStatus], root: str, now_ms: int) -> PipelineData:
        """Build the body of a pipeline; `root` is the URL of the list."""
        url = f"{root}/{name}"
        built = [StageData.of(status, url, now_ms) for status in stages]
        found = {stage.state for stage in built}
        state = next(state for state in _WORST_FIRST if state in found)
        lag = sum(lag.records for stage in built for lag in stage.lag.values())
        return cls(name=name, self_url=url, state=state, lag_records=lag, stages=built)


class PipelineListData(BaseModel):
    """All pipelines whose status the topic retains."""

    kind: str = "HeadwaterPipelineList"
    metadata: ListMetadata
    data: list[PipelineData]


_WORST_FIRST: tuple[StageState, ...] = ("failed", "lost", "restarting", "starting", "running", "idle", "stopped")


def _moment(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
