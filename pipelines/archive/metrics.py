"""Metrics of an archiver for Prometheus. docs/reference/archives.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

__all__ = ["TopicCounts", "families"]

PREFIX: Final = "headwater_archive_"


@dataclass(slots=True)
class TopicCounts:
    """What one archive has done since its driver began, and where it is.

    Attributes:
        waiting_s: How long the oldest records that the table lacks have waited, as far as this driver has seen; None
            while it knows nothing of them.
        behind: Offsets that the table lacks; None until a round of this driver has told.
        held_bytes: About how many bytes of the log the archive's group has not passed; 0 while that is not known.
        committed_s: Time of the last commit, in seconds since 1970; 0 without one.
        is_failing: Whether the last round has failed; `error` is why.
        since_s: When that began, or the last success after it, in seconds since 1970.
        is_own: Whether this driver has the archive's lock, as far as is known.
        table_version: The table's; -1 before a round has looked at it.
        is_ended: Whether the archive is declared no more; `since_s` is when that was seen.
    """

    topic: str
    table: str = ""
    waiting_s: float | None = None
    behind: int | None = None
    held_bytes: int = 0
    rows: int = 0
    errors: int = 0
    files: int = 0
    commits: int = 0
    failures: int = 0
    committed_s: float = 0.0
    is_failing: bool = False
    since_s: float = 0.0
    error: str = ""
    is_own: bool = False
    table_version: int = -1
    is_ended: bool = False

    def ended_well(self, now_s: float) -> None:
        """A round has ended well, or the lock was taken."""
        if self.is_failing or not self.since_s:
            self.since_s = now_s
        self.is_failing, self.is_own, self.error = False, True, ""

    def failed(self, error: str, now_s: float, *, is_own: bool) -> None:
        """A round has failed, or the lock was not taken."""
        if not self.is_failing or not self.since_s:
            self.since_s = now_s
        self.is_failing, self.is_own, self.error = True, is_own, error
        self.failures += 1


def families(counts: Sequence[TopicCounts]) -> Iterator[Metric]:
    """The metrics, in a fixed order. What is not known is no sample: 0 would say that all is well."""
    gauges: list[tuple[str, str, Callable[[TopicCounts], float | None]]] = [
        (
            "freshness_seconds",
            "Age of the oldest records that the table lacks, since they were seen",
            lambda each: each.waiting_s,
        ),
        ("offsets_behind", "Offsets that the table lacks", lambda each: each.behind),
        ("held_bytes", "About how many bytes of the log the group has not passed", lambda each: each.held_bytes),
        ("last_commit_timestamp_seconds", "Time of the last commit", lambda each: each.committed_s),
        ("failing", "Whether the last round has failed", lambda each: float(each.is_failing)),
    ]
    counters: list[tuple[str, str, Callable[[TopicCounts], float]]] = [
        ("rows", "Rows added", lambda each: each.rows),
        ("error_rows", "Rows added whose values cannot be decoded", lambda each: each.errors),
        ("files", "Files added", lambda each: each.files),
        ("commits", "Commits", lambda each: each.commits),
        ("failures", "Rounds that failed", lambda each: each.failures),
    ]
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=["topic"])
        for each in counts:
            number = value(each)
            if number is not None:
                gauge.add_metric([each.topic], number)
        yield gauge
    for name, text, count in counters:
        counter = CounterMetricFamily(PREFIX + name, text, labels=["topic"])
        for each in counts:
            counter.add_metric([each.topic], count(each))
        yield counter
