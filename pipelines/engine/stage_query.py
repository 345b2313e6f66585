"""One stage as one streaming query.

The stage's steps run on the streaming frame, where Spark keeps their state; `each_batch` steps run on the rows of a
micro-batch. An observation counts undecodable records, and only a batch with such records reads its input again to find
them.

`batch_writing` writes a batch's rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.definition import DeltaSink, Loaded, Stage, TopicSource, interval_ms
from headwater.pipelines.definition.late_rule import late_rule
from headwater.pipelines.deployment.state_folder import StageFolder
from headwater.pipelines.engine.batch_writing import BatchWriter, OnStep, no_step
from headwater.pipelines.engine.late_records import check_rule, late_records
from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.file_systems.opening import is_local
from headwater.pipelines.monitoring.outcome import Outcome
from headwater.pipelines.monitoring.progress import EVENT_TIME
from headwater.pipelines.sinks.delta import delta_rows
from headwater.pipelines.sources.event_times import event_time_ms, latest_event_times
from headwater.pipelines.sources.inputs import StageInputs
from headwater.pipelines.sources.table_dead_letters import TableDeadLetters, TableRefusals
from headwater.pipelines.sources.tables import StageTables
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import CHECKPOINT_FILES_CONF
from headwater.pipelines.spark.spark_errors import first_line, problem_at
from headwater.pipelines.transforms.stateful import STATE_STORE_CONF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

# Plan nodes that process one row at a time. Any other node makes a stage count as stateful, so that Spark decides.
STATELESS_NODES = frozenset({
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "Union", "LocalRelation", "LogicalRelation",
    "StreamingRelation", "StreamingRelationV2", "StreamingDataSourceV2Relation", "DataSourceV2Relation",
    "EventTimeWatermark", "ResolvedHint", "MapInPandas", "MapInArrow", "MapPartitions", "DeserializeToObject",
    "SerializeFromObject", "MapElements", "TypedFilter", "Expand", "WithCTE", "CTERelationRef",
    "CTERelationDef", "InMemoryRelation", "BatchEvalPython", "ArrowEvalPython", "Repartition",
    "RepartitionByExpression", "Range", "OneRowRelation", "LogicalRDD", "Join", "CollectMetrics"
})  # fmt: skip


# Name, with the input's position, of the observation that counts undecodable records.
REFUSED = "headwater_refused_"


class StopRequested(Exception):  # noqa: N818 - it is no error
    """Raised at the start of a batch after a stop request: the batch does not begin, and runs in the next run."""


def is_stateless(plan: Any) -> bool:
    """Return whether a streaming plan (a JVM LogicalPlan) holds no state. Static branches are ignored."""
    if not plan.isStreaming():
        return True
    name = plan.nodeName()
    children = [plan.children().apply(i) for i in range(plan.children().size())]
    if name not in STATELESS_NODES:
        return False
    if name == "Join" and all(child.isStreaming() for child in children):
        return False
    return all(is_stateless(child) for child in children)


class StageQuery:
    """Builds and starts the query of a stage.

    `error` holds the exception that the stage's own code raised in a batch; `is_busy` means that a batch is running.
    """

    def __init__(
        self,
        spark: SparkSession,
        loaded: Loaded,
        stage: Stage,
        analysis: Analysis,
        bootstrap_servers: Brokers,
        folder: StageFolder,
        stop: threading.Event,
        on_outcome: Callable[[Outcome], None],
        on_step: OnStep = no_step,
        unseen_by: Sequence[str] = (),
        before_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """`unseen_by`: machines of a cluster without access to the checkpoint's folder.

        `before_batch` is called before each batch; what it raises fails the stage.
        """
        self.stage = stage
        self.error: BaseException | None = None
        self.is_busy = False
        self.query: StreamingQuery | None = None
        self._loaded = loaded
        self._analysis = analysis
        self._servers = bootstrap_servers
        self._folder = folder
        self._checkpoint = folder.checkpoint
        self._checkpoint_id = ""
        self._stop = stop
        self._on_outcome = on_outcome
        self._session = spark.newSession()
        if not is_local(folder.checkpoint):
            self._session.conf.unset(CHECKPOINT_FILES_CONF)  # Spark's default renames atomically, and replaces nothing
        self._writer = BatchWriter(self._session, loaded, stage, analysis, self, bootstrap_servers, on_step)
        self._tables = StageTables(self._session, loaded, stage, analysis.columns, bootstrap_servers)
        group = f"{loaded.pipeline.pipeline}.{stage.name}"
        self._table_dead_letters = TableDeadLetters(self._session, analysis.columns, bootstrap_servers, group)
        self._inputs = StageInputs(
            self._session, loaded, stage, analysis.columns, bootstrap_servers, folder.location, self._make_table
        )
        self._chain = analysis.chains[stage.name]
        self._stateful = False
        self._late_rule = late_rule(stage)
        self._unseen_by = unseen_by
        self._before_batch = before_batch

    def start(self, *, available_now: bool) -> StreamingQuery:
        """Start the query. Raises PipelineError for operations that Spark refuses in a stream."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        stage = self.stage
        if self._chain.keeps_user_state:
            for name, value in STATE_STORE_CONF.items():
                self._session.conf.set(name, value)
        try:
            self._tables.open()
            inputs = self._inputs.open(available_now=available_now, on_failure=self._input_failed)
        except (PySparkException, Py4JError) as error:
            raise PipelineFailed(f"stage {stage.name}: {self._loaded.redacted(first_line(error))}") from error
        try:
            frame = self._frame(inputs)
            self._check_checkpoint()
            if self._stateful and self._unseen_by:
                raise PipelineFailed(
                    f"stage {stage.name} keeps state, and {', '.join(self._unseen_by)} does not see the folder "
                    f"{self._checkpoint}: give a folder that all machines share with --state "
                    "(docs/how-to/spark_cluster.md)"
                )
            writer = (
                frame.writeStream.queryName(f"{self._loaded.pipeline.pipeline}.{stage.name}")
                .option("checkpointLocation", self._folder.location)
                .outputMode(stage.mode)
                .foreachBatch(self._batch)
            )
            if available_now:
                writer = writer.trigger(availableNow=True)
            elif stage.trigger is not None:
                writer = writer.trigger(processingTime=f"{interval_ms(stage.trigger)} milliseconds")
            self.query = writer.start()
        except PySparkException as error:
            loc = self._chain.loc(max(len(self._chain) - 1, 0))
            raise PipelineError([problem_at(self._loaded, loc, error, "Spark refuses this in a stream")]) from None
        return self.query

    def event_times(self, ends: Sequence[Mapping[tuple[str, int], int]]) -> list[dict[tuple[str, int], int]]:
        """Return the latest event time (ms) of each partition of each input with a watermark, before these end offsets.

        A separate Spark job reads the last records. Raises the errors of Spark or of the broker.
        """
        found: list[dict[tuple[str, int], int]] = []
        for source, read_to in zip(self.stage.inputs, ends, strict=False):
            if isinstance(source, TopicSource) and source.watermark is not None and read_to:
                found.append(latest_event_times(self._session, self._servers, self._analysis.columns, source, read_to))
            else:
                found.append({})
        return found

    def _make_table(self, path: str, schema: StructType) -> None:
        """Create a Delta table that a stage of the pipeline writes, without rows, if it does not exist."""
        for stage in self._loaded.pipeline.stages:
            for sink in stage.to:
                if isinstance(sink, DeltaSink) and self._loaded.path(sink.delta) == path:
                    delta_rows.create(self._session, sink, path, schema)
                    return

    def close(self) -> None:
        """Drop the tables' views, and close the connections of inputs and writer."""
        self._inputs.close()
        self._writer.close()
        self._tables.close()

    def _input_failed(self, error: BaseException) -> None:
        """Handle the failure of an input's own thread, after which the query would wait forever."""
        said = self._loaded.redacted(first_line(error))
        self.error = PipelineFailed(f"stage {self.stage.name}: {said}")
        self.error.__cause__ = error  # decides whether the failure is transient
        if self.query is not None:
            self.query.stop()

    def _check_checkpoint(self) -> None:
        """Raise PipelineError if the checkpoint has state and the stage has none.

        Changes of the file are checked before Spark starts (`headwater.pipelines.deployment.deployment`); only Spark
        can determine whether code keeps state.
        """
        if self._stateful or not self._folder.keeps_state:
            return
        name = self.stage.name
        what = f"the checkpoint of stage {name} does not fit: it holds state, and the stage keeps none now"
        hint = f"`--reset {name}` lets it start anew where the file says, or give the stage another name"
        raise PipelineError([self._loaded.problem(self._chain.loc(max(len(self._chain) - 1, 0)), what, hint)])

    def _frame(self, inputs: list[DataFrame]) -> DataFrame:
        """Return the query's frame: decoded, transformed records."""
        from pyspark.sql import functions as f

        good = []
        for position, (source, decoded) in enumerate(zip(self.stage.inputs, inputs, strict=True)):
            frame = decoded
            if source.may_refuse:
                told = [f.count(f.col(columns.ERROR)).alias(REFUSED)]
                if columns.HEADERS_SEEN in frame.columns:
                    told.append(f.max(f.col(columns.HEADERS_SEEN)).alias(columns.HEADERS_SEEN))
                frame = frame.observe(f"{REFUSED}{position}", *told).drop(columns.HEADERS_SEEN)
                frame = frame.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
            if source.watermark is not None:
                # Spark does not report which input's event times hold the stage's watermark back.
                latest = f.max(event_time_ms(frame, source.watermark.column)).alias("latest")
                frame = frame.observe(f"{EVENT_TIME}{position}", latest)
                frame = frame.withWatermark(source.watermark.column, source.watermark.delay)
            good.append(frame)
        if self._late_rule is not None:
            check_rule(self._session, self.stage.name, self._late_rule, good[0].schema)
        rows = self._chain.apply_to_streams(good)
        self._stateful = not is_stateless(jvm.analyzed_plan(rows))
        return rows

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback. Spark calls it on its own thread and shows only the text of its exceptions."""
        try:
            if self._stop.is_set():
                raise StopRequested(self.stage.name)
            self.is_busy = True
            self._before_batch()
            self._tables.refresh()
            self._on_outcome(self._writer.write(frame, batch_id))
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.is_busy = False

    # -- StageFrames, for `batch_writing` ----------------------------------------------------------------------------

    @property
    def is_stateful(self) -> bool:
        """Whether Spark keeps state for the stage."""
        return self._stateful

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the stage's rows of a micro-batch, from the query's output."""
        return self._chain.apply_to_batch(frame)

    def refused(self) -> dict[str, DataFrame]:
        """Return the current micro-batch's undecodable records, by topic (by stage, for inputs that are no topics).

        Called after the batch's rows are computed: their number is known by then, and most batches have none.
        """
        from pyspark.sql import functions as f

        found: dict[str, DataFrame] = {}
        for position, source in enumerate(self.stage.inputs):
            origin = self._inputs.origin(source)
            if source.may_refuse and origin not in found:
                rejected = self._refused_again(position)
                if rejected is not None:
                    found[origin] = rejected.where(f.col(columns.ERROR).isNotNull())
        return found

    def late(self) -> tuple[str, DataFrame] | None:
        """The topic for late records, and those of the current micro-batch; None if Spark dropped no row.

        Called after the batch's rows are computed: Spark's count of dropped rows is known by then.
        """
        if self._late_rule is None:
            return None
        execution = self._execution()
        watermark_ms = jvm.dropping_watermark_ms(execution)
        records = None if watermark_ms is None else self._inputs.read_again(0, execution.logical())
        if watermark_ms is None or records is None:
            return None
        return self._late_rule.topic, late_records(records, self._late_rule, watermark_ms)

    def refused_by_tables(self) -> TableRefusals:
        """Return the undecodable records of tables' topics that no earlier batch has reported.

        Called after the batch's rows are computed, for the table records that these rows could read.
        """
        try:
            return self._table_dead_letters.look(self._tables.take_read_topics())
        except SourceError as error:
            raise PipelineFailed(f"stage {self.stage.name}: {error}") from error

    def record_headers(self) -> DataFrame | None:
        """Return the headers of the current micro-batch's records, read again; None if no record has any."""
        execution = self._execution()
        topics = [position for position, source in enumerate(self.stage.inputs) if isinstance(source, TopicSource)]
        if not any(_may_have_headers(execution, position) for position in topics):
            return None
        return self._inputs.headers_again(execution.logical())

    def _execution(self) -> Any:
        """The current micro-batch's execution, which only Spark's JVM interface exposes."""
        if not self._checkpoint_id:
            self._checkpoint_id = self._folder.checkpoint_id()
        return jvm.last_execution(self._session, self._checkpoint_id)

    def _refused_again(self, position: int) -> DataFrame | None:
        """Return the current batch's records of an input, read again; None if all of them can be decoded.

        The number of undecodable records is known after the batch's rows are computed. Spark keeps count and offsets in
        the batch's execution.
        """
        execution = self._execution()
        counted = jvm.observed(execution, f"{REFUSED}{position}")
        if counted is not None and not counted.getLong(0):
            return None
        return self._inputs.read_again(position, execution.logical())


def _may_have_headers(execution: Any, position: int) -> bool:
    """Return whether an input's records may have headers in a batch, by the observation HEADERS_SEEN of its format."""
    observed = jvm.observed(execution, f"{REFUSED}{position}")
    if observed is None or observed.length() < 2:
        return True
    return not observed.isNullAt(1) and bool(observed.getBoolean(1))
