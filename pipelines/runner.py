"""Runs a pipeline: one streaming query a stage, available-now in topological order or all at once and for ever.

Files, under the state folder: `<pipeline>/lock` (held while a run lives), `<pipeline>/<stage>/checkpoint/` (Spark's
own), `<pipeline>/spark.log`. A run that stops or dies goes on from there.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.analysis import Analysis, analyse
from pipelines.batch_writing import OnStep, Outcome, no_step
from pipelines.errors import PipelineBusy, PipelineError, PipelineFailed, nearest
from pipelines.graph import topological_order
from pipelines.plan import Plan, TopicPlan, checkpoint_folder, make_plan
from pipelines.progress import StageProgress, StageTotals, from_spark
from pipelines.session import open_session
from pipelines.spark_errors import first_line
from pipelines.spec import Loaded, Stage
from pipelines.stage_query import StageQuery, StopRequested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.2  # how soon a stop or a finished stage is seen
STOP_SECONDS_MAX = 60.0  # a batch may end within this after a stop; then it is cut, and runs again next time

EnsureTopics = Callable[[Sequence[TopicPlan]], None]
OnProgress = Callable[[StageProgress, StageTotals], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. `stages` limits the run to some stages; empty means all."""

    bootstrap_servers: str
    state: str
    available_now: bool = True
    stages: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did; `stopped` says that it was asked to stop before its end."""

    totals: Mapping[str, StageTotals]
    stopped: bool


def _quiet(progress: StageProgress, totals: StageTotals) -> None:  # noqa: ARG001 - the default callback
    return


class Runner:
    """Runs one pipeline once. `run` blocks; `stop` may be called from a signal handler or another thread."""

    def __init__(
        self,
        loaded: Loaded,
        options: RunOptions,
        ensure_topics: EnsureTopics,
        on_progress: OnProgress = _quiet,
        on_step: OnStep = no_step,
    ) -> None:
        self.plan: Plan = make_plan(loaded)
        self._loaded = loaded
        self._options = options
        self._ensure_topics = ensure_topics
        self._on_progress = on_progress
        self._on_step = on_step
        self._stop = threading.Event()
        self._totals: dict[str, StageTotals] = {}
        self._seen: dict[str, tuple[str, int, str]] = {}
        self._folder = os.path.join(options.state, loaded.pipeline.pipeline)

    @property
    def log_path(self) -> str:
        """Where Spark logs."""
        return os.path.join(self._folder, "spark.log")

    def stop(self) -> None:
        """Ask the run to stop: each stage ends its present batch and begins no other."""
        self._stop.set()

    def run(self, on_session: Callable[[SparkSession], None] | None = None) -> RunResult:
        """Run to the end of what is available, or until `stop`.

        `on_session` is called once Spark is up (it replaces signal handlers). Raises PipelineError (the user's
        mistake), PipelineBusy (another run has the state), PipelineFailed (a stage failed), SessionError (Spark did not
        start).
        """
        stages = self._chosen()
        self._loaded.require_secrets()
        with _lock(self._folder):
            self._ensure_topics([t for t in self.plan.topics if t.partitions is not None])
            own = {name: text.reveal() for name, text in self._loaded.pipeline.spark.items()}
            conf = {**own, **self._options.spark_conf}
            spark = open_session(f"headwater {self._loaded.pipeline.pipeline}", self.log_path, conf)
            if on_session is not None:
                on_session(spark)
            self._totals = {stage.name: StageTotals(stage.name) for stage in stages}
            if self._stop.is_set():
                return RunResult(dict(self._totals), True)
            with self._told():
                analysis = analyse(spark, self._loaded, self._options.bootstrap_servers)
                if self._options.available_now:
                    self._available_now(spark, analysis, stages)
                else:
                    self._continuous(spark, analysis, stages)
        return RunResult(dict(self._totals), self._stop.is_set())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Spark raises outside of a stage's query, in one line."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JError, PySparkException) as error:
            said = self._loaded.redacted(first_line(error))
            raise PipelineFailed(f"Spark failed: {said} (details: {self.log_path})") from error

    def _chosen(self) -> list[Stage]:
        order = topological_order(self._loaded.pipeline)
        known = [stage.name for stage in order]
        wrong = [name for name in self._options.stages if name not in known]
        if wrong:
            problem = self._loaded.problem(("stages",), f"there is no stage '{wrong[0]}'", nearest(wrong[0], known))
            raise PipelineError([problem])
        return [stage for stage in order if not self._options.stages or stage.name in self._options.stages]

    def _query(self, spark: SparkSession, analysis: Analysis, stage: Stage) -> StageQuery:
        checkpoint = os.path.join(self._options.state, checkpoint_folder(self._loaded.pipeline.pipeline, stage.name))
        return StageQuery(
            spark,
            self._loaded,
            stage,
            analysis,
            self._options.bootstrap_servers,
            os.path.abspath(checkpoint),
            self._stop,
            self._outcome,
            self._on_step,
        )

    def _outcome(self, outcome: Outcome) -> None:
        totals = self._totals[outcome.stage]
        totals.add_outcome(outcome.written, outcome.undecodable, outcome.unmet, outcome.dead_letters)

    def _available_now(self, spark: SparkSession, analysis: Analysis, stages: Sequence[Stage]) -> None:
        for stage in stages:
            # Each stage ends before the next begins: a stage fixes where it will stop when it starts.
            if self._stop.is_set():
                return
            self._watch([self._query(spark, analysis, stage)], available_now=True)

    def _continuous(self, spark: SparkSession, analysis: Analysis, stages: Sequence[Stage]) -> None:
        self._watch([self._query(spark, analysis, stage) for stage in stages], available_now=False)

    def _watch(self, queries: Sequence[StageQuery], *, available_now: bool) -> None:
        """Start queries and wait for all of them; one that fails stops the others."""
        started: list[tuple[StageQuery, StreamingQuery]] = []
        try:
            for one in queries:
                query = one.start(available_now=available_now)
                started.append((one, query))
            while any(query.isActive for _, query in started):
                if self._stop.is_set() or any(_has_failed(one, query) for one, query in started):
                    self._stop_all(started)
                    break
                time.sleep(POLL_SECONDS)
                self._report(started)
            self._report(started)
            for one, query in started:
                self._raise_failure(one, query)
        finally:
            for _, query in started:
                if query.isActive:
                    query.stop()
            for one in queries:
                one.close()

    def _stop_all(self, started: Sequence[tuple[StageQuery, StreamingQuery]]) -> None:
        """Let running batches end (the next one will not begin), then end the queries."""
        was_asked = self._stop.is_set()
        self._stop.set()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for _, query in started:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                if query.status["message"].startswith(("Waiting for data", "Getting offsets")):
                    break  # idle: nothing has begun
                time.sleep(POLL_SECONDS)
            query.stop()
        if not was_asked:
            self._stop.clear()

    def _raise_failure(self, one: StageQuery, query: StreamingQuery) -> None:
        failure = query.exception()
        if isinstance(one.error, StopRequested) or (one.error is None and (failure is None or self._stop.is_set())):
            return
        if isinstance(one.error, PipelineFailed | PipelineError):
            raise one.error
        cause = one.error or failure
        assert cause is not None
        raise PipelineFailed(
            f"stage {one.stage.name}: {self._loaded.redacted(first_line(cause))}; what was written before is kept, and "
            f"the next run goes on from there (details: {self.log_path})"
        ) from cause

    def _report(self, started: Sequence[tuple[StageQuery, StreamingQuery]]) -> None:
        for one, query in started:
            name = one.stage.name
            seen = self._seen.get(name, ("", -1, ""))
            last = query.lastProgress
            if last is None or (str(last["runId"]), str(last["timestamp"])) == (seen[0], seen[2]):
                continue  # nothing new: the whole list is not fetched again five times a second
            for raw in query.recentProgress:
                progress = from_spark(name, raw)
                place = (str(raw["runId"]), progress.batch_id, str(raw["timestamp"]))
                if place[0] == seen[0] and place[2] <= seen[2]:
                    continue
                self._seen[name] = seen = place
                if progress.rows or progress.late_rows:
                    self._totals[name].add_progress(progress)
                    self._on_progress(progress, self._totals[name])
                elif progress.watermark:
                    self._totals[name].watermark = progress.watermark


def _has_failed(one: StageQuery, query: StreamingQuery) -> bool:
    """Whether a stage has ended by a failure, its query's or that of an input in the background."""
    return not query.isActive and (query.exception() is not None or one.error is not None)


@contextmanager
def _lock(folder: str) -> Iterator[None]:
    """Hold the state folder. The kernel drops the lock with the process, however it ends."""
    path = os.path.join(folder, "lock")
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PipelineBusy(
            f"the state folder {folder} cannot be used: {error.strerror}; give another with --state"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise PipelineBusy(
                f"the state folder {folder} belongs to a run that is still alive (process {holder}); "
                "wait for it, stop it, or give another folder with --state"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
