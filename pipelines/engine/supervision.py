"""Supervises the queries of a run's stages: starts and monitors them, restarts a single one, stops all.

`restarts` and `transient_failures` decide on a failure; `watermark_stall` explains why a watermark does not advance.
This module is the shell around them. One thread runs it.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater.pipelines.definition import Loaded, Stage, interval_ms
from headwater.pipelines.engine.restarts import ATTEMPTS_ONCE, StageGivenUp, StageRestarts, decide
from headwater.pipelines.engine.stage_query import StageQuery, StopRequested
from headwater.pipelines.engine.transient_failures import causes, is_transient
from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.monitoring.progress import StageProgress, StageTotals, from_spark
from headwater.pipelines.monitoring.stage_state import State
from headwater.pipelines.monitoring.watching import RunWatch
from headwater.pipelines.monitoring.watermark_stall import StallWatch, WatchedInput
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import JVM_LOST_SECONDS_MAX
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["OnEvent", "OnProgress", "Supervisor"]

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2  # delay until a stop or a finished stage is detected
STOP_SECONDS_MAX: Final = 60.0  # for a batch to end after a stop; then it is cut, and runs again next time
# Each poll costs calls into the JVM: continuous stages are polled less often than available-now stages.
LOOK_SECONDS: Final = 0.6
# Stages start in sequence: each starts Python workers, for which Spark waits ten seconds, and six stages started at
# once on a busy machine never came up. A stage that takes longer than this no longer delays the next one.
START_SECONDS_MAX: Final = 120.0
# A stage without a batch for this long, and with none running, waits for data.
IDLE_SECONDS: Final = 2.0

OnProgress = Callable[[StageProgress, StageTotals], None]
OnEvent = Callable[[str], None]


@dataclass(slots=True)
class _Kept:
    """One stage: its current query and its earlier failures. `failure` is set once the stage is given up."""

    stage: Stage
    policy: StageRestarts
    stalls: StallWatch
    one: StageQuery | None = None
    query: StreamingQuery | None = None
    # Whether the first start is still pending.
    is_pending: bool = True
    # Start time of its query, until the query has planned a micro-batch or waits for data.
    coming_up_s: float | None = None
    restarts_ms: list[int] = field(default_factory=list)
    again_s: float | None = None
    active_s: float = 0.0
    seen: tuple[str, str] = ("", "")
    stall: str = ""
    failure: PipelineError | PipelineFailed | None = None
    cause: BaseException | None = None

    @property
    def is_going(self) -> bool:
        """Whether the stage has neither ended nor been given up."""
        return self.is_pending or self.query is not None or self.again_s is not None


class Supervisor:
    """Runs stages side by side until all have ended, or `stop` is set.

    A stage with a transient failure is restarted by its policy. With `continuous`, the other stages continue after one
    is given up, unless `fail_fast`; otherwise the first given-up stage ends the run. At most one stage starts at a
    time.
    """

    def __init__(
        self,
        loaded: Loaded,
        stages: Sequence[Stage],
        make_query: Callable[[Stage], StageQuery],
        watch: RunWatch,
        stop: threading.Event,
        log_path: str,
        require_session: Callable[[float], None],
        *,
        continuous: bool,
        fail_fast: bool,
        multiple_watermark_policy: str,
        on_progress: OnProgress,
        on_event: OnEvent,
    ) -> None:
        self._loaded = loaded
        self._make_query = make_query
        self._watch = watch
        self._stop = stop
        self._log_path = log_path
        self._require_session = require_session
        self._continuous = continuous
        self._fail_fast = fail_fast or not continuous
        self._on_progress = on_progress
        self._on_event = on_event
        self._kept = [
            _Kept(stage, restart_policy(stage, continuous=continuous), stall_watch(stage, multiple_watermark_policy))
            for stage in stages
        ]

    def run(self) -> None:
        """Run the stages.

        Raises PipelineError (Spark refuses a stage, before later stages have begun or after a restart), PipelineFailed
        with every given-up stage, or the error of `require_session`.
        """
        looked_s = 0.0
        try:
            self._start_next()
            while any(kept.is_going for kept in self._kept):
                if self._stop.is_set() or (self._fail_fast and any(kept.failure for kept in self._kept)):
                    self._stop_all()
                    break
                self._stop.wait(POLL_SECONDS)
                self._require_session(0.0)
                is_starting = any(kept.is_pending or kept.coming_up_s is not None for kept in self._kept)
                if is_starting or not self._continuous or time.monotonic() - looked_s >= LOOK_SECONDS:
                    looked_s = time.monotonic()
                    for kept in self._kept:
                        self._look_at(kept)
                    self._start_next()
            self._raise_failures()
        finally:
            for kept in self._kept:
                self._close(kept)

    # -- one stage ---------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        """Start the first stage that is due, unless another is still starting."""
        now_s = time.monotonic()
        for kept in self._kept:
            if kept.coming_up_s is not None and now_s - kept.coming_up_s < START_SECONDS_MAX:
                return
        for kept in self._kept:
            if kept.is_pending or (kept.again_s is not None and now_s >= kept.again_s):
                self._start(kept, is_first=kept.is_pending)
                return

    def _start(self, kept: _Kept, *, is_first: bool) -> None:
        kept.is_pending = False
        kept.again_s = None
        kept.active_s = kept.coming_up_s = time.monotonic()
        self._watch.set_state(kept.stage.name, State.STARTING)
        try:
            kept.one = self._make_query(kept.stage)
            kept.query = kept.one.start(available_now=not self._continuous)
        except PipelineError as error:
            if is_first:
                raise  # a problem of the file: the other stages must not run without this one
            self._failed(kept, error)
        except Exception as error:  # noqa: BLE001 - a failure concerns one stage
            self._failed(kept, error)

    def _look_at(self, kept: _Kept) -> None:
        query, one = kept.query, kept.one
        if query is None or one is None:
            return
        is_active = query.isActive  # read first: the progress read below is then complete
        self._report(kept, query)
        if not is_active:
            failure = self._failure_of(one, query)
            if failure is None:
                self._close(kept)
                self._watch.set_state(kept.stage.name, State.STOPPED)
            else:
                self._failed(kept, failure)
            return
        now_s = time.monotonic()
        if one.is_busy:
            kept.active_s = now_s
            kept.coming_up_s = None
        elif kept.coming_up_s is not None and self._waits_for_data(kept, query):
            kept.coming_up_s = None
        if now_s - kept.active_s < IDLE_SECONDS:
            if one.is_busy:
                self._watch.set_state(kept.stage.name, State.RUNNING, "")
        elif not one.is_busy and self._waits_for_data(kept, query):
            self._watch.set_state(kept.stage.name, State.IDLE, "")

    def _waits_for_data(self, kept: _Kept, query: StreamingQuery) -> bool:
        state = self._watch.state(kept.stage.name).state
        if state is State.RUNNING or state is State.IDLE:
            return True
        # Between start and first batch only Spark knows.
        return str(query.status["message"]).startswith(("Waiting for", "Getting offsets"))

    def _failure_of(self, one: StageQuery, query: StreamingQuery) -> BaseException | None:
        """Return the failure of a query that is no longer active; None if the query completed, or was stopped."""
        failure = query.exception()
        if isinstance(one.error, StopRequested) or (one.error is None and (failure is None or self._stop.is_set())):
            return None
        return one.error or failure

    def _failed(self, kept: _Kept, cause: BaseException) -> None:
        """Handle a query's failure: schedule a restart of the stage, or give the stage up."""
        self._close(kept)
        name = kept.stage.name
        if any(_is_of_a_lost_jvm(each) for each in causes(cause)):
            self._require_session(JVM_LOST_SECONDS_MAX)
        said = self._said(name, cause)
        now_ms = time.monotonic_ns() // 1_000_000
        if is_transient(cause) and kept.policy.attempts and not self._stop.is_set():
            decision = decide(kept.policy, kept.restarts_ms, now_ms, random.random())
            if not isinstance(decision, StageGivenUp):
                kept.restarts_ms = [at for at in kept.restarts_ms if now_ms - at <= kept.policy.within_ms] + [now_ms]
                kept.again_s = time.monotonic() + decision.after_ms / 1000
                self._watch.set_state(name, State.RESTARTING, said)
                self._on_event(
                    f"{name}: failed, and is tried again in {decision.after_ms / 1000:.1f} s ({decision.attempt} of "
                    f"{kept.policy.attempts}): {said}"
                )
                return
            said = f"{said}; given up after {decision.attempts} restarts"
        kept.cause = cause
        if isinstance(cause, PipelineError):
            kept.failure = cause
        elif isinstance(cause, PipelineFailed):
            kept.failure = PipelineFailed(said if said.startswith("stage ") else f"stage {name}: {said}")
        else:
            kept.failure = PipelineFailed(
                f"stage {name}: {said}; what was written before is kept, and the next run goes on from there "
                f"(details: {self._log_path})"
            )
        self._watch.set_state(name, State.FAILED, said)
        if self._continuous and not self._fail_fast and any(other.is_going for other in self._kept):
            self._on_event(f"{name}: failed, and is given up; the other stages go on: {said}")

    def _said(self, name: str, cause: BaseException) -> str:
        """Return a failure in one line, without the stage's name with which Headwater's own messages begin."""
        if isinstance(cause, PipelineError):
            return "; ".join(str(problem) for problem in cause.problems)
        said = str(cause) if isinstance(cause, PipelineFailed) else first_line(cause)
        return self._loaded.redacted(said).removeprefix(f"stage {name}: ")

    def _report(self, kept: _Kept, query: StreamingQuery) -> None:
        """Report the micro-batches since the last poll."""
        last = jvm.last_progress(query)
        if last is None:
            return
        kept.coming_up_s = None
        place = (str(last.runId().toString()), str(last.timestamp()))
        if place == kept.seen:
            return  # nothing new: fetching the whole list each time would be wasteful
        fresh = []
        updates = jvm.recent_progress(query)
        for position in range(len(updates) - 1, -1, -1):
            raw = json.loads(updates[position].json())
            if str(raw["runId"]) == kept.seen[0] and str(raw["timestamp"]) <= kept.seen[1]:
                break
            fresh.append(raw)
        kept.seen = place
        for raw in reversed(fresh):
            self._progressed(kept, from_spark(kept.stage.name, raw, len(kept.stage.inputs)))

    def _progressed(self, kept: _Kept, progress: StageProgress) -> None:
        name = kept.stage.name
        stall = kept.stalls.observe(progress, time.time_ns() // 1_000_000)
        if stall and not kept.stall:
            self._look_closer(kept, [each.ends for each in progress.inputs])
        kept.stall = stall
        kept.active_s = time.monotonic()
        totals = self._watch.add_progress(name, progress, stall)
        if progress.rows or progress.late_rows:
            self._watch.set_state(name, State.RUNNING, "")
            self._on_progress(progress, totals)

    def _look_closer(self, kept: _Kept, ends: Sequence[Mapping[tuple[str, int], int]]) -> None:
        """Explain a stalled watermark by the partitions that are behind, which a separate small job determines.

        Runs on its own thread: reading must not delay the supervision of other stages.
        """
        from pyspark import InheritableThread

        one, name = kept.one, kept.stage.name

        def look() -> None:
            try:
                if one is not None:
                    kept.stalls.learn(one.event_times(ends))
            except Exception as error:  # noqa: BLE001 - the explanation then lacks the partitions
                logger.info("stage %s: the event times of its partitions are not known: %s", name, error)
            said = kept.stalls.explanation(time.time_ns() // 1_000_000)
            if said:
                self._on_event(f"warning: {name}: {said}")

        InheritableThread(target=look, name=f"stall-{name}", daemon=True).start()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close(self, kept: _Kept) -> None:
        """End a stage's query and release its resources. Never raises: another exception may be propagating."""
        query, one = kept.query, kept.one
        kept.query = kept.one = kept.coming_up_s = None
        with _tolerated(kept.stage.name):
            if query is not None and query.isActive:
                query.stop()
        with _tolerated(kept.stage.name):
            if one is not None:
                one.close()

    def _stop_all(self) -> None:
        """Let running batches end (no other begins), then end the queries."""
        self._stop.set()
        deadline_s = time.monotonic() + STOP_SECONDS_MAX
        for kept in self._kept:
            kept.again_s = None
            kept.is_pending = False
            query, one = kept.query, kept.one
            if query is None or one is None:
                continue
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
                if not one.is_busy and query.status["message"].startswith(("Waiting for data", "Getting offsets")):
                    break  # idle: nothing has begun
                time.sleep(POLL_SECONDS)
            query.stop()
            self._look_at(kept)

    def _raise_failures(self) -> None:
        given_up = [kept for kept in self._kept if kept.failure is not None]
        if not given_up:
            return
        first = given_up[0]
        assert first.failure is not None
        if len(given_up) == 1 or isinstance(first.failure, PipelineError):
            raise first.failure from first.cause
        raise PipelineFailed("; ".join(str(kept.failure) for kept in given_up)) from first.cause


def _is_of_a_lost_jvm(error: BaseException) -> bool:
    """Return whether an error may be the first sign of a lost JVM, which Py4J reports in three ways."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    return isinstance(error, ConnectionError | Py4JNetworkError) or type(error) is Py4JError


@contextmanager
def _tolerated(stage: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - without the JVM, every call into it fails
        logger.info("stage %s: not closed: %s", stage, first_line(error))


def restart_policy(stage: Stage, *, continuous: bool) -> StageRestarts:
    """Return the stage's restart policy, else the default."""
    restart = stage.restart
    if restart is None:
        return StageRestarts() if continuous else StageRestarts(ATTEMPTS_ONCE)
    return StageRestarts(restart.attempts, interval_ms(restart.within), interval_ms(restart.backoff))


def stall_watch(stage: Stage, policy: str) -> StallWatch:
    """Create a watch of the watermarks of the stage's inputs."""
    inputs = [
        WatchedInput(source.name, source.watermark.column, interval_ms(source.watermark.delay))
        if source.watermark is not None
        else None
        for source in stage.inputs
    ]
    return StallWatch(inputs, policy=policy)
