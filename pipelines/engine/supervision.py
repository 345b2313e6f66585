"""Keeps the queries of a run's stages going: starts them, watches, restarts one alone, stops all.

What is done about a failure is decided by `restarts` and `passing_failures`; why a watermark stands still is said by
`watermark_stall`. This is the shell around them. One thread runs it.
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

POLL_SECONDS: Final = 0.2  # how soon a stop or a finished stage is seen
STOP_SECONDS_MAX: Final = 60.0  # a batch may end within this after a stop; then it is cut, and runs again next time
# Looking costs calls into the JVM: a stage that goes on for ever is looked at less often than one that ends.
LOOK_SECONDS: Final = 0.6
# Stages start one after the other: each starts Python workers, to which Spark gives ten seconds, and six stages that
# started at once on a busy machine never came up. A stage that takes longer than this holds the next one up no more.
START_SECONDS_MAX: Final = 120.0
# A stage that has had no batch for so long, and has none under way, waits for data.
IDLE_SECONDS: Final = 2.0

OnProgress = Callable[[StageProgress, StageTotals], None]
OnEvent = Callable[[str], None]


@dataclass(slots=True)
class _Kept:
    """One stage: its query of now, and what became of those before. `failure` is set when it was given up."""

    stage: Stage
    policy: StageRestarts
    stalls: StallWatch
    one: StageQuery | None = None
    query: StreamingQuery | None = None
    # Whether it is still to be started for the first time.
    is_pending: bool = True
    # When its query was started, until it has planned a micro-batch or waits for data.
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
        """Whether something is still to be expected of it."""
        return self.is_pending or self.query is not None or self.again_s is not None


class Supervisor:
    """Runs stages side by side until all have ended, or `stop` is set.

    A stage whose failure is transient is started again as its policy says. With `continuous`, one that is given
    up leaves the others alone, unless `fail_fast`; without it the first that is given up ends all. At most one stage is
    coming up at a time.
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

        Raises PipelineError (Spark refuses a stage: those behind it have not begun, or it was restarted in vain),
        PipelineFailed with every stage that was given up, or what `require_session` raises.
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
        """Start the first stage whose turn it is, unless another is still coming up."""
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
                raise  # the user's mistake: nobody wants the other stages without this one
            self._failed(kept, error)
        except Exception as error:  # noqa: BLE001 - each stage's failure is its own
            self._failed(kept, error)

    def _look_at(self, kept: _Kept) -> None:
        query, one = kept.query, kept.one
        if query is None or one is None:
            return
        is_active = query.isActive  # asked first: what it tells below is then complete
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
        # Between its start and its first batch only Spark knows.
        return str(query.status["message"]).startswith(("Waiting for", "Getting offsets"))

    def _failure_of(self, one: StageQuery, query: StreamingQuery) -> BaseException | None:
        """Why a query that is not active any more has ended; None if it had come to its end, or was stopped."""
        failure = query.exception()
        if isinstance(one.error, StopRequested) or (one.error is None and (failure is None or self._stop.is_set())):
            return None
        return one.error or failure

    def _failed(self, kept: _Kept, cause: BaseException) -> None:
        """A stage's query has ended by a failure: it is started again later, or given up."""
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
        """A failure in one line, without the stage's name that our own messages begin with."""
        if isinstance(cause, PipelineError):
            return "; ".join(str(problem) for problem in cause.problems)
        said = str(cause) if isinstance(cause, PipelineFailed) else first_line(cause)
        return self._loaded.redacted(said).removeprefix(f"stage {name}: ")

    def _report(self, kept: _Kept, query: StreamingQuery) -> None:
        """Tell the micro-batches that are new since the last look."""
        last = jvm.last_progress(query)
        if last is None:
            return
        kept.coming_up_s = None
        place = (str(last.runId().toString()), str(last.timestamp()))
        if place == kept.seen:
            return  # nothing new: the whole list is not fetched again and again
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
        """Say why a watermark stands still, once it is known which partitions are behind: a small job beside the query.

        On a thread of its own: reading must not hold up the look at other stages.
        """
        from pyspark import InheritableThread

        one, name = kept.one, kept.stage.name

        def look() -> None:
            try:
                if one is not None:
                    kept.stalls.learn(one.event_times(ends))
            except Exception as error:  # noqa: BLE001 - it is said without the partitions, then
                logger.info("stage %s: the event times of its partitions are not known: %s", name, error)
            said = kept.stalls.explanation(time.time_ns() // 1_000_000)
            if said:
                self._on_event(f"warning: {name}: {said}")

        InheritableThread(target=look, name=f"stall-{name}", daemon=True).start()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close(self, kept: _Kept) -> None:
        """End what is left of a stage's query. Never raises: something else may be on its way up."""
        query, one = kept.query, kept.one
        kept.query = kept.one = kept.coming_up_s = None
        with _tolerated(kept.stage.name):
            if query is not None and query.isActive:
                query.stop()
        with _tolerated(kept.stage.name):
            if one is not None:
                one.close()

    def _stop_all(self) -> None:
        """Let running batches end (the next one will not begin), then end the queries."""
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
    """Whether an error may be the first sign that the JVM is gone: Py4J tells that in three ways."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    return isinstance(error, ConnectionError | Py4JNetworkError) or type(error) is Py4JError


@contextmanager
def _tolerated(stage: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - when the JVM is gone, every call into it fails
        logger.info("stage %s: not closed: %s", stage, first_line(error))


def restart_policy(stage: Stage, *, continuous: bool) -> StageRestarts:
    """What the stage says of restarts, else the defaults."""
    restart = stage.restart
    if restart is None:
        return StageRestarts() if continuous else StageRestarts(ATTEMPTS_ONCE)
    return StageRestarts(restart.attempts, interval_ms(restart.within), interval_ms(restart.backoff))


def stall_watch(stage: Stage, policy: str) -> StallWatch:
    """Watches the watermarks that the stage's inputs have."""
    inputs = [
        WatchedInput(source.name, source.watermark.column, interval_ms(source.watermark.delay))
        if source.watermark is not None
        else None
        for source in stage.inputs
    ]
    return StallWatch(inputs, policy=policy)
