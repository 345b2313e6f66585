"""Metrics of a run for Prometheus: `GET /metrics` on a separate port. docs/how-to/monitoring_pipelines.md lists them.

A scrape reads a copy of the stages' states and sends no requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from headwater.pipelines.monitoring.progress import StageProgress, moment_ms
from headwater.pipelines.monitoring.prometheus_endpoint import PrometheusEndpoint
from headwater.pipelines.monitoring.stage_state import DURATION_BOUNDS_S, Durations, StageState, State

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["PREFIX", "MetricsEndpoint", "families"]

PREFIX: Final = "headwater_pipeline_"
_STAGE: Final = ["pipeline", "stage"]


class MetricsEndpoint(PrometheusEndpoint):
    """A listener that serves a run's metrics. Call `open`, which binds the port, before the run begins."""

    def __init__(self) -> None:
        super().__init__(lambda: families(self._states(), time.time()))
        self._watch: RunWatch | None = None

    def began(self, info: RunInfo, watch: RunWatch) -> None:  # noqa: ARG002 - a listener's
        """Serve the states of this run from now on."""
        self._watch = watch

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Does nothing: a scrape reads the states."""

    def ended(self) -> None:
        """Does nothing: the caller of `open` calls `close`."""

    def _states(self) -> Sequence[StageState]:
        return () if self._watch is None else self._watch.states()


def families(states: Sequence[StageState], now_s: float) -> Iterator[Metric]:
    """Yield all metric families of a run's stages."""
    yield from _counters(states)
    yield from _durations(states)
    yield from _present(states)
    yield from _watermarks(states, now_s)
    yield from _lag(states)


def _counters(states: Sequence[StageState]) -> Iterator[Metric]:
    rows = _counter("rows", "Rows that were read.")
    written = _counter("written_rows", "Rows that were written, each counted once.")
    batches = _counter("batches", "Micro-batches with rows.")
    late = _counter("late_rows", "Rows that were dropped because they were behind the watermark.")
    kept = _counter("late_records", "Records of late rows that were written to the topic for them.")
    letters = _counter("dead_letters", "Records and rows that became dead letters.")
    undecodable = _counter("undecodable_records", "Records that could not be decoded.")
    restarts = _counter("restarts", "Restarts after failures.")
    unmet = _counter(
        "unmet_expectations", "Rows that did not meet an expectation, even if they were written.", "expectation"
    )
    for state in states:
        labels, totals = [state.pipeline, state.stage], state.totals
        for family, value in (
            (rows, totals.rows),
            (written, totals.written),
            (batches, totals.batches),
            (late, totals.late_rows),
            (kept, totals.late_records),
            (letters, totals.dead_letters),
            (undecodable, totals.undecodable),
            (restarts, state.restarts),
        ):
            family.add_metric(labels, value)
        for name, count in sorted(totals.unmet.items()):
            unmet.add_metric([*labels, name], count)
    yield from (rows, written, batches, late, kept, letters, undecodable, restarts, unmet)


def _durations(states: Sequence[StageState]) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        PREFIX + "batch_duration_seconds", "How long micro-batches with rows took.", labels=_STAGE
    )
    for state in states:
        family.add_metric([state.pipeline, state.stage], buckets_of(state.durations), state.durations.sum_s)
    yield family


def _present(states: Sequence[StageState]) -> Iterator[Metric]:
    stage_state = _gauge("stage_state", "1 for the state that the stage is in, 0 for the others.", "state")
    last_batch = _gauge("last_batch", "Number of the last micro-batch in the stage's checkpoint.")
    rate = _gauge("rows_per_second", "Rows a second in the last micro-batch with rows.")
    rows = _gauge("state_rows", "Rows that Spark keeps for the stage.")
    size = _gauge("state_bytes", "Memory that these rows take.")
    for state in states:
        labels = [state.pipeline, state.stage]
        for each in State:
            stage_state.add_metric([*labels, each.value], float(each is state.state))
        if state.last is not None:
            last_batch.add_metric(labels, state.last.batch_id)
            rate.add_metric(labels, state.last.rows_per_second)
            rows.add_metric(labels, state.last.state_rows)
            size.add_metric(labels, state.last.state_bytes)
    yield from (stage_state, last_batch, rate, rows, size)


def _watermarks(states: Sequence[StageState], now_s: float) -> Iterator[Metric]:
    at = _gauge("watermark_timestamp_seconds", "The watermark, in seconds since 1970; none before the first.")
    delay = _gauge("watermark_delay_seconds", "How far the watermark is behind the clock.")
    stalled = _gauge("watermark_stalled", "1 while the watermark stands still though rows come.")
    for state in states:
        labels = [state.pipeline, state.stage]
        watermark_ms = moment_ms(state.totals.watermark)
        if watermark_ms is not None:
            at.add_metric(labels, watermark_ms / 1000)
            delay.add_metric(labels, now_s - watermark_ms / 1000)
            stalled.add_metric(labels, float(bool(state.stall)))
    yield from (at, delay, stalled)


def _lag(states: Sequence[StageState]) -> Iterator[Metric]:
    records = _gauge("lag_records", "Records of a topic that are not read yet.", "topic")
    seconds = _gauge("lag_seconds", "Age of the oldest record of a topic that is not read yet, 0 without one.", "topic")
    for state in states:
        for topic, lag in sorted(state.lag.items()):
            labels = [state.pipeline, state.stage, topic]
            records.add_metric(labels, lag.records)
            if lag.seconds is not None:
                seconds.add_metric(labels, lag.seconds)
    yield from (records, seconds)


def buckets_of(durations: Durations) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound, in Prometheus's form.

    >>> durations = Durations()
    >>> durations.observe(0.2)
    >>> buckets_of(durations)[:3], buckets_of(durations)[-1]
    ([('0.1', 0), ('0.25', 1), ('0.5', 1)], ('+Inf', 1))
    """
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, DURATION_BOUNDS_S), "+Inf"], durations.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, documentation, labels=[*_STAGE, *labels])


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, documentation, labels=[*_STAGE, *labels])
