"""What a stage has done: Spark's StreamingQueryProgress and our own counts as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One micro-batch. `late_rows` were dropped by the watermark, which is ISO 8601 in UTC, '' before the first."""

    stage: str
    batch_id: int
    rows: int
    rows_per_second: float
    duration_ms: int
    watermark: str
    late_rows: int


@dataclass(slots=True)
class StageTotals:
    """Sums over the micro-batches of one run. Records that a crash made run twice count in each run that saw them."""

    stage: str
    batches: int = 0
    rows: int = 0
    written: int = 0
    undecodable: int = 0
    late_rows: int = 0
    watermark: str = ""
    unmet: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0

    def add_progress(self, progress: StageProgress) -> None:
        """Count one micro-batch of Spark's."""
        self.batches += 1
        self.rows += progress.rows
        self.late_rows += progress.late_rows
        self.watermark = progress.watermark or self.watermark

    def add_outcome(self, written: int, undecodable: int, unmet: Mapping[str, int], dead_letters: int) -> None:
        """Count what became of one micro-batch's rows."""
        self.written += written
        self.undecodable += undecodable
        self.dead_letters += dead_letters
        for name, rows in unmet.items():
            self.unmet[name] = self.unmet.get(name, 0) + rows


def from_spark(stage: str, progress: Mapping[str, Any]) -> StageProgress:
    """A StreamingQueryProgress as its JSON object.

    >>> from_spark(
    ...     "clean", {"batchId": 3, "numInputRows": 10, "processedRowsPerSecond": 5.0, "batchDuration": 2000}
    ... ).rows
    10
    """
    operators = progress.get("stateOperators") or []
    watermark = (progress.get("eventTime") or {}).get("watermark", "")
    return StageProgress(
        stage=stage,
        batch_id=int(progress["batchId"]),
        rows=int(progress.get("numInputRows") or 0),
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        duration_ms=int(progress.get("batchDuration") or 0),
        # Spark says 1970 as long as it has seen no row.
        watermark="" if watermark.startswith("1970-01-01T00:00:00") else watermark,
        late_rows=sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
    )
