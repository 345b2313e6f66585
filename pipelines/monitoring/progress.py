"""A stage's progress: Spark's StreamingQueryProgress and Headwater's own counts as plain values. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.datasource.lag import source_lag
from headwater.pipelines.datasource.offsets import Offsets, from_source_offset

__all__ = ["EVENT_TIME", "InputProgress", "StageProgress", "StageTotals", "from_spark", "moment_ms"]

# Name, with the input's position, of the observation of an input's latest event time in a micro-batch.
EVENT_TIME: Final = "headwater_event_time_"


@dataclass(frozen=True, slots=True)
class InputProgress:
    """One input's part of a micro-batch.

    Attributes:
        ends: The next offset of each partition of a topic.
        lag: Unread offsets of a topic by partition, at the time of the micro-batch.
        latest_event_ms: The latest event time among its rows, None without a watermark or without event times.
    """

    rows: int = 0
    ends: Offsets = field(default_factory=dict)
    lag: Offsets = field(default_factory=dict)
    latest_event_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One micro-batch. The watermark, ISO 8601 in UTC and '' before the first, dropped the `late_rows`.

    `inputs` are in the stage's order; empty where Spark does not distinguish them.
    """

    stage: str
    batch_id: int
    rows: int
    rows_per_second: float
    duration_ms: int
    watermark: str
    late_rows: int
    timestamp: str = ""
    state_rows: int = 0
    state_bytes: int = 0
    inputs: tuple[InputProgress, ...] = ()

    @property
    def lag(self) -> int:
        """Unread offsets of all topics at the time of the micro-batch."""
        return sum(sum(each.lag.values()) for each in self.inputs)


@dataclass(slots=True)
class StageTotals:
    """Sums over the micro-batches of one run. Records that are reprocessed after a crash count in each such run."""

    stage: str
    batches: int = 0
    rows: int = 0
    written: int = 0
    undecodable: int = 0
    late_rows: int = 0
    watermark: str = ""
    unmet: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    late_records: int = 0

    def add_progress(self, progress: StageProgress) -> None:
        """Add one micro-batch's progress."""
        self.batches += 1
        self.rows += progress.rows
        self.late_rows += progress.late_rows
        self.watermark = progress.watermark or self.watermark

    def add_outcome(
        self, written: int, undecodable: int, unmet: Mapping[str, int], dead_letters: int, late_records: int = 0
    ) -> None:
        """Add one micro-batch's outcome."""
        self.written += written
        self.undecodable += undecodable
        self.dead_letters += dead_letters
        self.late_records += late_records
        for name, rows in unmet.items():
            self.unmet[name] = self.unmet.get(name, 0) + rows


def from_spark(stage: str, progress: Mapping[str, Any], inputs: int = 0) -> StageProgress:
    """Convert a StreamingQueryProgress from its JSON object; `inputs` is the stage's number of inputs.

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
        # Spark reports 1970 until the first row.
        watermark="" if watermark.startswith("1970-01-01T00:00:00") else watermark,
        late_rows=_sum(operators, "numRowsDroppedByWatermark"),
        timestamp=str(progress.get("timestamp") or ""),
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        inputs=_inputs(progress, inputs),
    )


def moment_ms(moment: str) -> int | None:
    """Convert Spark's ISO 8601 timestamp to milliseconds since 1970; None for ''.

    >>> moment_ms("1970-01-01T00:00:01.500Z"), moment_ms("")
    (1500, None)
    """
    return round(dt.datetime.fromisoformat(moment).timestamp() * 1000) if moment else None


def _sum(operators: Any, name: str) -> int:
    return sum(int(operator.get(name) or 0) for operator in operators)


def _inputs(progress: Mapping[str, Any], count: int) -> tuple[InputProgress, ...]:
    sources = progress.get("sources") or []
    observed = progress.get("observedMetrics") or {}
    # Spark lists each source once: two inputs that share a source cannot be distinguished.
    told = sources if len(sources) == count else [{}] * count
    return tuple(_input(source, observed.get(f"{EVENT_TIME}{position}")) for position, source in enumerate(told))


def _input(source: Mapping[str, Any], observed: Any) -> InputProgress:
    end: Any = source.get("endOffset")
    lag = source_lag(source) if _is_of_topics(end) and _is_of_topics(source.get("latestOffset")) else None
    latest = next(iter(observed.values()), None) if isinstance(observed, Mapping) else None
    return InputProgress(
        rows=int(source.get("numInputRows") or 0),
        ends=from_source_offset(end) if _is_of_topics(end) else {},
        lag=dict(lag.partitions) if lag is not None else {},
        latest_event_ms=None if latest is None else int(latest),
    )


def _is_of_topics(offset: Any) -> bool:
    """Return whether an offset has the form of topics' offsets; other sources use other forms."""
    return (
        isinstance(offset, Mapping)
        and bool(offset)
        and all(
            isinstance(partitions, Mapping)
            and all(str(number).isdigit() and isinstance(value, int) for number, value in partitions.items())
            for partitions in offset.values()
        )
    )
