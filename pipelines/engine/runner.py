"""Runs a pipeline: one streaming query per stage, available-now in topological order, or continuously and side by side.

Files, under the state folder: `<pipeline>/lock` (held during a run), `<pipeline>/<stage>/checkpoint/` (Spark's own),
`<pipeline>/spark.log`. The next run resumes from the checkpoints.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.analysis import Analysis, analyse
from headwater.pipelines.datasource.brokers import Brokers, brokers
from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.definition.graph import topological_order
from headwater.pipelines.definition.plan import Plan, TopicPlan, make_plan
from headwater.pipelines.deployment.cluster_ids import ids_of
from headwater.pipelines.deployment.deployment import Deployment
from headwater.pipelines.deployment.run_lock import hold
from headwater.pipelines.deployment.shared_lock import hold_shared
from headwater.pipelines.deployment.stage_record import topics_read_by
from headwater.pipelines.deployment.state_folder import StateFolder
from headwater.pipelines.deployment.state_place import known_place, require_supported, settle
from headwater.pipelines.engine.batch_writing import OnStep, no_step
from headwater.pipelines.engine.stage_query import StageQuery
from headwater.pipelines.engine.supervision import OnEvent, OnProgress, Supervisor
from headwater.pipelines.errors import PipelineError, PipelineFailed, nearest
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.locks.broker_lock import BrokerLock, LockLostError, LockUnavailableError
from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
from headwater.pipelines.monitoring.watching import RunInfo, RunListener, RunWatch
from headwater.pipelines.sinks.refused_targets import refused_targets
from headwater.pipelines.spark.cluster_check import ClusterError, check_cluster
from headwater.pipelines.spark.session import JVM_LOST_SECONDS_MAX, LOCAL_MASTER, lost_jvm, open_session
from headwater.pipelines.spark.shipping import is_cluster
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EnsureTopics = Callable[[Sequence[TopicPlan]], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run. `stages` limits the run to some stages; empty means all.

    `state` is a folder of this machine: the lock, the logs, and the checkpoints unless they are at the URL
    `checkpoints`; with `move`, a state that is elsewhere is taken along. Stages in `reset` get a new checkpoint first.
    With `fail_fast`, a given-up stage ends a continuous run; otherwise the other stages continue. `command_config` is
    the path of a file with connection properties. `spark_master` applies where neither the pipeline nor `spark_conf`
    sets `spark.master`.
    """

    bootstrap_servers: str
    state: str
    available_now: bool = True
    stages: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    spark_master: str = LOCAL_MASTER
    fail_fast: bool = False
    reset: tuple[str, ...] = ()
    command_config: str = ""
    checkpoints: str = ""
    move: bool = False

    @property
    def brokers(self) -> Brokers:
        """The brokers, with the file of connection properties."""
        return brokers(self.bootstrap_servers, self.command_config)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run; `stopped` means that a stop was requested before its end."""

    totals: Mapping[str, StageTotals]
    stopped: bool


def _quiet(progress: StageProgress, totals: StageTotals) -> None:  # noqa: ARG001 - the default callback
    return


def _no_event(line: str) -> None:  # noqa: ARG001 - the default callback
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
        *,
        listeners: Sequence[RunListener] = (),
        on_event: OnEvent = _no_event,
        on_phase: OnEvent = _no_event,
    ) -> None:
        """A run of a pipeline.

        `on_progress` is called for each micro-batch, `on_step` for each step of a batch, `on_event` with one line for
        each event that needs attention, and `on_phase` for each phase before the stages start; `listeners` observe the
        run (see `headwater.pipelines.monitoring.watching`).
        """
        self.plan: Plan = make_plan(loaded)
        self._loaded = loaded
        self._options = options
        self._ensure_topics = ensure_topics
        self._on_progress = on_progress
        self._on_step = on_step
        self._on_event = on_event
        self._on_phase = on_phase
        self._stop = threading.Event()
        _require_path(options.state)
        require_supported(options.checkpoints)
        own = {name: text.value for name, text in loaded.pipeline.spark.items() if text.value is not None}
        self._conf = {"spark.master": options.spark_master, **own, **options.spark_conf}
        self._files = FileSystemOptions.of(self._conf)
        self._deployment = Deployment(loaded, options.checkpoints or options.state, options.spark_conf, self._files)
        self._watch = RunWatch(loaded.pipeline.pipeline, (*listeners, self._deployment))
        self._folder = os.path.join(options.state, loaded.pipeline.pipeline)
        self._lock: BrokerLock | None = None
        self._lock_lost = ""
        # Machines of the cluster without access to the state folder.
        self._unseen_by: list[str] = []

    @property
    def log_path(self) -> str:
        """The path of Spark's log."""
        return os.path.join(self._folder, "spark.log")

    def stop(self) -> None:
        """Request a stop: each stage completes its current batch and begins no other."""
        self._stop.set()

    def run(self, on_session: Callable[[SparkSession], None] | None = None) -> RunResult:
        """Run to the end of the available data, or until `stop`.

        `on_session` is called after Spark has started, which replaces signal handlers. Raises PipelineError (a problem
        of the file), PipelineBusy (another run holds the state folder), PipelineFailed (a stage failed), SessionError
        (Spark did not start).
        """
        stages = self._chosen()
        self._loaded.require_secrets()
        with hold(self._folder), self._shared_lock() as lock:
            self._lock = lock
            names = [stage.name for stage in stages]
            self._take_ids()
            self._loaded, done = self._deployment.prepare(names, self._options.reset)
            stages = self._chosen()  # with the start offsets of replays
            for line in done:
                self._on_event(line)
            self._on_phase("starting Spark")
            spark = open_session(f"headwater {self._loaded.pipeline.pipeline}", self.log_path, self._conf)
            if on_session is not None:
                on_session(spark)
            for stage in stages:
                self._watch.add(stage.name)
            if self._stop.is_set():
                return RunResult(self.totals, True)
            with self._told():
                if is_cluster(self._conf["spark.master"]):
                    self._unseen_by = self._ask_cluster(spark)
                self._on_phase("looking at what the stages read and write")
                analysis = analyse(spark, self._loaded, self._options.brokers)
                if problems := list(refused_targets(spark, self._loaded, stages)):
                    raise PipelineError(problems)
                # Last: a refused run creates no topics.
                self._ensure_topics([t for t in self.plan.topics if t.partitions is not None and not t.when_needed])
                self._take_ids()
                with self._watched(self._info(spark, analysis, stages)):
                    if self._options.available_now:
                        self._available_now(spark, analysis, stages)
                    else:
                        self._supervise(spark, analysis, stages)
        return RunResult(self.totals, self._stop.is_set())

    def _settle(self) -> None:
        """Make sure that the run continues where the last one ended. The caller holds the lock."""
        settle(
            self._options.state,
            self._options.checkpoints,
            self._loaded.pipeline.pipeline,
            self._files,
            move=self._options.move,
            say=self._on_event,
        )

    @contextmanager
    def _shared_lock(self) -> Iterator[BrokerLock | None]:
        """Hold the brokers' lock of checkpoints that other machines see, and settle where the state is.

        A move holds the lock of its former place, too: a run there would go on with a state that was taken away.
        """
        name, place = self._loaded.pipeline.pipeline, self._options.checkpoints
        former = known_place(self._options.state, name) if self._options.move else None
        with ExitStack() as held:
            lock = None
            for url in filter(None, (former if former != place else None, place)):
                folder = StateFolder(url, name, self._files)
                lock = held.enter_context(hold_shared(self._options.brokers, folder, f"run of {name}", self._lost))
            self._settle()
            yield lock if place else None
        if self._lock_lost:
            raise PipelineFailed(self._lock_lost)

    def _confirm(self) -> None:
        """Make sure, before a batch writes, that no other machine has taken the pipeline. Raises PipelineFailed."""
        if self._lock is None:
            return
        try:
            self._lock.confirm()
        except (LockLostError, LockUnavailableError) as error:
            raise PipelineFailed(str(error)) from error  # whose cause tells whether a restart may help

    def _lost(self, why: str) -> None:
        """Another machine has the pipeline: no batch begins any more."""
        self._lock_lost = why
        self._stop.set()

    def _take_ids(self) -> None:
        read = {topic for stage in self._chosen() for topic in topics_read_by(self._loaded.pipeline, stage)}
        self._deployment.take_ids(*ids_of(self._options.brokers, read))

    @contextmanager
    def _watched(self, info: RunInfo) -> Iterator[None]:
        self._watch.begin(info)
        try:
            yield
        finally:
            self._watch.end()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Report Spark's errors outside a stage's query as one line."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JError, PySparkException, ConnectionError) as error:
            self._require_session(JVM_LOST_SECONDS_MAX)
            if isinstance(error, ConnectionError):
                raise
            said = self._loaded.redacted(first_line(error))
            raise PipelineFailed(f"Spark failed: {said} (details: {self.log_path})") from error

    def _require_session(self, wait_s: float) -> None:
        """Raise PipelineFailed if Spark's JVM has ended: no stage can continue in this run."""
        lost = lost_jvm(wait_s)
        if lost is not None:
            raise PipelineFailed(
                f"{lost}; what was written before is kept, and the next run goes on from there "
                f"(details: {self.log_path})"
            )

    def _ask_cluster(self, spark: SparkSession) -> list[str]:
        try:
            folder = self._deployment.folder
            unseen_by = check_cluster(spark, folder.path if folder.is_local else self._folder)
        except ClusterError as fault:
            raise PipelineFailed(f"the cluster cannot run pipelines: {fault} (details: {self.log_path})") from fault
        return unseen_by if folder.is_local else []

    def _chosen(self) -> list[Stage]:
        order = topological_order(self._loaded.pipeline)
        known = [stage.name for stage in order]
        wrong = [name for name in self._options.stages if name not in known]
        if wrong:
            problem = self._loaded.problem(("stages",), f"there is no stage '{wrong[0]}'", nearest(wrong[0], known))
            raise PipelineError([problem])
        return [stage for stage in order if not self._options.stages or stage.name in self._options.stages]

    @property
    def totals(self) -> dict[str, StageTotals]:
        """Return the totals of each stage so far."""
        return {state.stage: state.totals for state in self._watch.states()}

    def _query(self, spark: SparkSession, analysis: Analysis, stage: Stage) -> StageQuery:
        return StageQuery(
            spark,
            self._loaded,
            stage,
            analysis,
            self._options.brokers,
            self._deployment.stage(stage.name),
            self._stop,
            self._watch.add_outcome,
            self._on_step,
            self._unseen_by,
            self._confirm,
        )

    def _available_now(self, spark: SparkSession, analysis: Analysis, stages: Sequence[Stage]) -> None:
        for stage in stages:
            # Each stage ends before the next begins: a stage fixes its end offsets at its start.
            if self._stop.is_set():
                return
            self._supervise(spark, analysis, [stage])

    def _supervise(self, spark: SparkSession, analysis: Analysis, stages: Sequence[Stage]) -> None:
        Supervisor(
            self._loaded,
            stages,
            lambda stage: self._query(spark, analysis, stage),
            self._watch,
            self._stop,
            self.log_path,
            self._require_session,
            continuous=not self._options.available_now,
            fail_fast=self._options.fail_fast,
            multiple_watermark_policy=str(spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")),
            on_progress=self._on_progress,
            on_event=self._on_event,
        ).run()

    def _info(self, spark: SparkSession, analysis: Analysis, stages: Sequence[Stage]) -> RunInfo:
        return RunInfo(
            self._loaded,
            self.plan,
            analysis,
            tuple(stage.name for stage in stages),
            continuous=not self._options.available_now,
            bootstrap_servers=self._options.bootstrap_servers,
            started_ms=time.time_ns() // 1_000_000,
            versions={"spark": str(spark.version), "python": platform.python_version()},
        )


def _require_path(state: str) -> None:
    if "://" in state:
        raise PipelineFailed(
            f"the state folder {state} must be a path of this machine, not a URL: checkpoints are kept at a URL with "
            "--checkpoints (docs/how-to/hdfs_and_object_stores.md)"
        )
