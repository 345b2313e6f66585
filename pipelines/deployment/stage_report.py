"""The report of `headwater pipeline status`: a stage's checkpoint, group offsets and log end offsets. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headwater.pipelines.deployment.checkpoint_progress import CheckpointProgress, TopicOffsets

__all__ = ["StageReport", "lag_of", "report"]


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage. Times are ISO 8601 in UTC; None if unknown.

    `batch` is the last completed micro-batch; `planned` is a micro-batch that is running or will be repeated. `offsets`
    are the next offsets by topic and partition, from `known_by` (checkpoint or group); `lag` is the number of unread
    records by topic.
    """

    stage: str
    epoch: int
    batch: int | None
    planned: int | None
    done_at: str | None
    watermark: str | None
    offsets: dict[str, dict[int, int]]
    known_by: str | None
    lag: dict[str, int] | None
    starts_at: dict[str, dict[int, int]] | None
    error: str | None
    error_at: str | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def behind(self) -> int | None:
        """The total lag of all topics."""
        return None if self.lag is None else sum(self.lag.values())


def report(
    stage: str,
    epoch: int,
    progress: CheckpointProgress,
    group: TopicOffsets | None,
    ends: TopicOffsets | None,
    starts_at: TopicOffsets | None,
    error: Mapping[str, Any] | None,
) -> StageReport:
    """Assemble the report. `group` are the offsets of the stage's consumer group, `ends` the log end offsets."""
    by_checkpoint = progress.topics()
    found = by_checkpoint or {topic: dict(parts) for topic, parts in (group or {}).items()}
    known_by = "checkpoint" if by_checkpoint else "group" if found else None
    planned = progress.planned if progress.planned != progress.done else None
    return StageReport(
        stage=stage,
        epoch=epoch,
        batch=progress.done,
        planned=planned,
        done_at=_iso(progress.done_at),
        watermark=_iso(progress.watermark_ms / 1000) if progress.watermark_ms else None,
        offsets=found,
        known_by=known_by,
        lag=None if ends is None or known_by is None else lag_of(found, ends),
        starts_at=None if starts_at is None or by_checkpoint else {t: dict(parts) for t, parts in starts_at.items()},
        error=None if error is None else str(error.get("error", "")),
        error_at=None if error is None else _iso(float(error.get("at", 0))),
    )


def lag_of(offsets: TopicOffsets, ends: TopicOffsets) -> dict[str, int]:
    """Unread records by topic; partitions added since count from their beginning.

    >>> lag_of({"a": {0: 5}}, {"a": {0: 9, 1: 2}, "b": {0: 1}})
    {'a': 6}
    """
    return {
        topic: sum(max(0, end - parts.get(partition, 0)) for partition, end in ends.get(topic, {}).items())
        for topic, parts in offsets.items()
    }


def _iso(seconds: float | None) -> str | None:
    return None if not seconds else dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")
