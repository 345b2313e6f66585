"""Explains a watermark that does not advance although records arrive: input, partition and remedy. Pure.

Spark's watermark of an input is its latest event time minus the delay; the watermark of a stage with several inputs is
the lowest of theirs (or the highest, with spark.sql.streaming.multipleWatermarkPolicy=max). While the watermark does
not advance, windows stay open, the state of joins grows, and nothing is written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.monitoring.progress import StageProgress, moment_ms

__all__ = ["StallWatch", "WatchedInput", "partitions_behind", "partitions_late"]

# A watermark advances with almost every batch; hourly data, and a backlog after an outage, take longer.
BATCHES: Final = 10
WAIT_MS: Final = 5 * 60_000
# Producers' clocks differ; an event time further ahead than this is a producer's error.
FUTURE_MS: Final = 60 * 60_000
PARTITIONS_NAMED_MAX: Final = 3
# Partitions of one topic are never at exactly the same event time.
APART_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class WatchedInput:
    """An input with a watermark: its name, the event time column and the delay."""

    name: str
    column: str
    delay_ms: int


@dataclass(slots=True)
class _Seen:
    """Statistics of an input: overall, and since the watermark last advanced."""

    latest_ms: int | None = None
    rows: int = 0
    lag: dict[tuple[str, int], int] = field(default_factory=dict)
    partitions_ms: dict[tuple[str, int], int] = field(default_factory=dict)


class StallWatch:
    """Monitors one stage, batch by batch. `inputs` are the stage's inputs, None for an input without a watermark."""

    def __init__(
        self,
        inputs: Sequence[WatchedInput | None],
        *,
        policy: str = "min",
        batches: int = BATCHES,
        wait_ms: int = WAIT_MS,
    ) -> None:
        self._inputs = tuple(inputs)
        self._policy = policy
        self._batches_max = batches
        self._wait_ms = wait_ms
        self._seen = [_Seen() for _ in self._inputs]
        self._watermark = ""
        self._moved_ms: int | None = None
        self._batches = 0
        self._late_rows = 0
        self._rows = 0

    def observe(self, progress: StageProgress, now_ms: int) -> str:
        """Add a micro-batch; returns the reason why the watermark does not advance, '' while it does."""
        if all(each is None for each in self._inputs):
            return ""
        for seen, brought in zip(self._seen, progress.inputs, strict=False):
            seen.rows += brought.rows
            seen.lag = dict(brought.lag)
            if brought.latest_event_ms is not None:
                seen.latest_ms = max(brought.latest_event_ms, seen.latest_ms or brought.latest_event_ms)
        if progress.watermark != self._watermark or self._moved_ms is None:
            self._watermark, self._moved_ms = progress.watermark, now_ms
            self._batches = self._late_rows = self._rows = 0
            for seen in self._seen:
                seen.rows = 0
                seen.partitions_ms = {}
            return ""
        if progress.rows:
            self._batches += 1
            self._rows += progress.rows
            self._late_rows += progress.late_rows
        return self.explanation(now_ms)

    def learn(self, partitions_ms: Sequence[Mapping[tuple[str, int], int]]) -> None:
        """Add the latest event time of each partition, by input, from a read of the last records."""
        for seen, times in zip(self._seen, partitions_ms, strict=False):
            seen.partitions_ms = dict(times)

    def explanation(self, now_ms: int) -> str:
        """Return the known reason why the watermark does not advance; '' while it may still advance."""
        if self._moved_ms is None or self._batches < self._batches_max or now_ms - self._moved_ms < self._wait_ms:
            return ""
        return f"{self._standing(now_ms)}: {self._why(now_ms)}"

    def _standing(self, now_ms: int) -> str:
        assert self._moved_ms is not None
        minutes = (now_ms - self._moved_ms) // 60_000
        where = f"stands at {self._watermark}" if self._watermark else "has not begun"
        late = f", {self._late_rows:,} of them late and dropped" if self._late_rows else ""
        return f"the watermark {where} for {minutes} min, while {self._rows:,} rows came{late}"

    def _why(self, now_ms: int) -> str:
        watched = [(each, seen) for each, seen in zip(self._inputs, self._seen, strict=True) if each is not None]
        if self._policy == "min" and len(watched) > 1:
            # An input without any event time holds the watermark back most.
            each, seen = min(watched, key=lambda pair: _reach_ms(pair[0], pair[1]))
            others = [pair for pair in watched if pair[0] is not each]
            return _slowest(each, seen, others)
        each, seen = max(watched, key=lambda pair: _reach_ms(pair[0], pair[1]))
        told = _alone(each, seen, now_ms, moment_ms(self._watermark))
        if len(watched) > 1:
            told += "; with multipleWatermarkPolicy=max the watermark is that of the input that is furthest ahead"
        return told


def _reach_ms(each: WatchedInput, seen: _Seen) -> int:
    """Return the watermark that an input permits; the lowest value if the input has had no event time."""
    return -1 if seen.latest_ms is None else seen.latest_ms - each.delay_ms


def _slowest(each: WatchedInput, seen: _Seen, others: Sequence[tuple[WatchedInput, _Seen]]) -> str:
    """Explain a stall with several inputs: the input that holds the watermark back."""
    ahead = max((seen.latest_ms for _, seen in others if seen.latest_ms is not None), default=None)
    beside = f", those of the others reach {_shown(ahead)}" if ahead is not None else ""
    if not seen.rows:
        latest = (
            "it has brought none yet" if seen.latest_ms is None else f"its last event time is {_shown(seen.latest_ms)}"
        )
        unread = partitions_behind(seen.lag)
        if unread:
            return f"input {each.name} has records that are not read ({unread}), and brings no rows{beside}"
        return (
            f"input {each.name} is idle ({latest}{beside}), and the watermark is the lowest of all inputs; let its "
            "producers write now and then, or set spark.sql.streaming.multipleWatermarkPolicy to max under `spark` "
            "(rows of the slower input are then dropped as late)"
        )
    if seen.latest_ms is None:
        return _without_time(each, seen)
    return (
        f"the event times of input {each.name} are behind: its latest {each.column} is {_shown(seen.latest_ms)}{beside}"
        f"{_unread(seen)}; it has to catch up"
    )


def _alone(each: WatchedInput, seen: _Seen, now_ms: int, watermark_ms: int | None) -> str:
    """Explain a stall by the single input that determines the watermark."""
    # Event times of earlier runs are only in Spark's watermark.
    latest_ms = max(
        (
            ms
            for ms in (seen.latest_ms, None if watermark_ms is None else watermark_ms + each.delay_ms)
            if ms is not None
        ),
        default=None,
    )
    if latest_ms is None or (seen.latest_ms is None and not watermark_ms):
        return _without_time(each, seen)
    if latest_ms > now_ms + FUTURE_MS:
        return (
            f"input {each.name} has brought a {each.column} in the future, {_shown(latest_ms)}; every row before it, "
            "less the delay, counts as late; keep such rows out before the watermark is taken, by a stage of their own "
            "with an expectation, and give this stage another name to let it start anew"
        )
    return (
        f"no row of input {each.name} has a later {each.column} than {_shown(latest_ms)}{_unread(seen)}; its producers "
        "send old records, or those with newer ones are in partitions that are not read yet"
    )


def _without_time(each: WatchedInput, seen: _Seen) -> str:
    return (
        f"no row of input {each.name} has a value in {each.column}, its event time{_unread(seen)}; look at what its "
        "producers write, or at the schema"
    )


def _unread(seen: _Seen) -> str:
    told = "; ".join(part for part in (partitions_late(seen.partitions_ms), partitions_behind(seen.lag)) if part)
    return f" ({told})" if told else ""


def partitions_behind(lag: Mapping[tuple[str, int], int]) -> str:
    """Return the partitions with the most unread records, '' without any.

    >>> partitions_behind({("t", 0): 0, ("t", 1): 1200, ("t", 2): 5})
    '1,200 records of t-1 are not read, 5 records of t-2 are not read'
    """
    behind = sorted(((offsets, key) for key, offsets in lag.items() if offsets), reverse=True)[:PARTITIONS_NAMED_MAX]
    return ", ".join(f"{offsets:,} records of {topic}-{number} are not read" for offsets, (topic, number) in behind)


def partitions_late(latest_ms: Mapping[tuple[str, int], int]) -> str:
    """Return the partitions whose last records are older than the others', '' if all are about equal.

    >>> partitions_late({("t", 0): 7_200_000, ("t", 1): 7_199_000, ("t", 2): 0})
    'the last records of t-2 are of 1970-01-01T00:00:00Z, while t-0 has come to 1970-01-01T02:00:00Z'
    >>> partitions_late({("t", 0): 7_200_000, ("t", 1): 7_199_000})
    ''
    """
    if not latest_ms:
        return ""
    (topic, ahead), most_ms = max(latest_ms.items(), key=lambda item: item[1])
    late = sorted((ms, key) for key, ms in latest_ms.items() if most_ms - ms >= APART_MS)[:PARTITIONS_NAMED_MAX]
    if not late:
        return ""
    named = ", ".join(f"{name}-{number} are of {_shown(ms)}" for ms, (name, number) in late)
    return f"the last records of {named}, while {topic}-{ahead} has come to {_shown(most_ms)}"


def _shown(moment: int | None) -> str:
    if moment is None:
        return "unknown"
    return dt.datetime.fromtimestamp(moment / 1000, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
