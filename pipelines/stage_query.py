"""One stage as one streaming query.

The stage's steps run on the streaming frame, where Spark keeps what state they need; those that say `each_batch` run on
the rows of a micro-batch. Records that cannot be decoded are counted on the way, and only a batch that has some reads
its records again to find them.

What becomes of a batch's rows is the business of `batch_writing`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipelines import columns
from pipelines.analysis import Analysis
from pipelines.batch_writing import BatchWriter, OnStep, Outcome, no_step
from pipelines.errors import PipelineError, PipelineFailed
from pipelines.sources.inputs import StageInputs, may_refuse
from pipelines.sources.tables import StageTables
from pipelines.spark_errors import first_line, problem_at
from pipelines.spec import Loaded, Stage, interval_ms
from pipelines.transforms.stateful import STATE_STORE_CONF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Plan nodes that look at one row at a time. Every other node makes a stage stateful, so that Spark itself decides.
STATELESS_NODES = frozenset({
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "Union", "LocalRelation", "LogicalRelation",
    "StreamingRelation", "StreamingRelationV2", "StreamingDataSourceV2Relation", "DataSourceV2Relation",
    "EventTimeWatermark", "ResolvedHint", "MapInPandas", "MapInArrow", "MapPartitions", "DeserializeToObject",
    "SerializeFromObject", "MapElements", "TypedFilter", "Expand", "WithCTE", "CTERelationRef",
    "CTERelationDef", "InMemoryRelation", "BatchEvalPython", "ArrowEvalPython", "Repartition",
    "RepartitionByExpression", "Range", "OneRowRelation", "LogicalRDD", "Join", "CollectMetrics"
})  # fmt: skip


# Name, with the input's position, of the observation that counts records that cannot be decoded.
REFUSED = "headwater_refused_"


_OFFSET_LOG_HEAD = 2  # lines before those of the sources: the version, and what Spark says of the batch


class StopRequested(Exception):  # noqa: N818 - it is no error
    """Raised at the start of a batch when the run shall stop: the batch is not begun, and runs next time."""


def is_stateless(plan: Any) -> bool:
    """Whether a streaming plan (a JVM LogicalPlan) holds no state. Static branches may hold anything."""
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
    """Builds and starts the query of a stage. `error` holds what the stage's own code raised in a batch."""

    def __init__(
        self,
        spark: SparkSession,
        loaded: Loaded,
        stage: Stage,
        analysis: Analysis,
        bootstrap_servers: str,
        checkpoint: str,
        stop: threading.Event,
        on_outcome: Callable[[Outcome], None],
        on_step: OnStep = no_step,
    ) -> None:
        self.stage = stage
        self.error: BaseException | None = None
        self.query: StreamingQuery | None = None
        self._loaded = loaded
        self._analysis = analysis
        self._servers = bootstrap_servers
        self._checkpoint = checkpoint
        self._stop = stop
        self._on_outcome = on_outcome
        self._session = spark.newSession()
        self._writer = BatchWriter(self._session, loaded, stage, analysis, self, bootstrap_servers, on_step)
        self._tables = StageTables(self._session, loaded, stage, analysis, bootstrap_servers)
        self._inputs = StageInputs(self._session, loaded, stage, analysis, bootstrap_servers, checkpoint)
        self._chain = analysis.chains[stage.name]
        self._stateful = False

    def start(self, *, available_now: bool) -> StreamingQuery:
        """Start the query. Raises PipelineError for what Spark refuses in a stream."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        stage = self.stage
        self._check_checkpoint()
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
            writer = (
                frame.writeStream.queryName(f"{self._loaded.pipeline.pipeline}.{stage.name}")
                .option("checkpointLocation", self._checkpoint)
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

    def close(self) -> None:
        """Forget the tables, and close the connections of inputs and writer."""
        self._inputs.close()
        self._writer.close()
        self._tables.close()

    def _input_failed(self, error: BaseException) -> None:
        """An input's own thread has failed: the query would wait for ever."""
        said = self._loaded.redacted(first_line(error))
        self.error = PipelineFailed(f"stage {self.stage.name}: {said}")
        if self.query is not None:
            self.query.stop()

    def _check_checkpoint(self) -> None:
        """Raises PipelineError if the checkpoint is that of a stage with other topics."""
        stage = self.stage
        topics = [source.topic for source in stage.topic_inputs]
        others = sorted(checkpoint_topics(self._checkpoint) - set(topics))
        if others:
            reads = f", not '{topics[0]}'" if topics else ""
            field = ("topic",) if topics else ()
            raise PipelineError(
                [
                    self._loaded.problem(
                        self._loaded.input_loc(stage, 0, *field),
                        f"the checkpoint of stage {stage.name} has read the topic '{others[0]}'{reads}",
                        f"give the stage another name, or remove {self._checkpoint} to let it start anew",
                    )
                ]
            )

    def _frame(self, inputs: list[DataFrame]) -> DataFrame:
        """The frame that the query runs: decoded records, transformed."""
        from pyspark.sql import functions as f

        good = []
        for position, (source, decoded) in enumerate(zip(self.stage.inputs, inputs, strict=True)):
            frame = decoded
            if may_refuse(source):
                refused = f.count(f.col(columns.ERROR)).alias(REFUSED)
                frame = frame.observe(f"{REFUSED}{position}", refused)
                frame = frame.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
            if source.watermark is not None:
                frame = frame.withWatermark(source.watermark.column, source.watermark.delay)
            good.append(frame)
        rows = self._chain.apply_to_streams(good)
        self._stateful = not is_stateless(rows._jdf.queryExecution().analyzed())
        return rows

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """foreachBatch: Spark calls it on a thread of its own and shows only the text of what it raises."""
        try:
            if self._stop.is_set():
                raise StopRequested(self.stage.name)
            self._tables.refresh()
            self._on_outcome(self._writer.write(frame, batch_id))
        except BaseException as error:
            self.error = error
            raise

    # -- what `batch_writing` asks for -------------------------------------------------------------------------------

    @property
    def is_stateful(self) -> bool:
        """Whether Spark keeps state for the stage."""
        return self._stateful

    def rows(self, frame: DataFrame) -> DataFrame:
        """The stage's rows of a micro-batch, given what its query made of it."""
        return self._chain.apply_to_batch(frame)

    def refused(self) -> dict[str, DataFrame]:
        """The records of the present micro-batch that cannot be decoded, by topic (by stage, if they are no topic's).

        Asked when the batch's rows are computed: then their number is known, and most batches have none.
        """
        from pyspark.sql import functions as f

        found: dict[str, DataFrame] = {}
        for position, source in enumerate(self.stage.inputs):
            origin = self._inputs.origin(source)
            if may_refuse(source) and origin not in found:
                rejected = self._refused_again(position)
                if rejected is not None:
                    found[origin] = rejected.where(f.col(columns.ERROR).isNotNull())
        return found

    def _refused_again(self, position: int) -> DataFrame | None:
        """The records of the present batch, read again; None if all of an input's can be decoded.

        How many there are is known once the batch's rows are computed. Spark keeps count and offsets in the batch's
        execution, which only its JVM interface shows.
        """
        streams = self._session._jsparkSession.streams()
        execution = streams.get(checkpoint_id(self._checkpoint)).streamingQuery().lastExecution()
        counted = execution.observedMetrics().get(f"{REFUSED}{position}")
        if counted.isDefined() and not counted.get().getLong(0):
            return None
        return self._inputs.read_again(position, execution.logical())


def checkpoint_topics(checkpoint: str) -> set[str]:
    """The topics whose offsets a checkpoint holds; none if nothing has been read yet."""
    folder = os.path.join(checkpoint, "offsets")
    try:
        last = max((int(name) for name in os.listdir(folder) if name.isdigit()), default=None)
        if last is None:
            return set()
        with open(os.path.join(folder, str(last)), encoding="utf-8") as file:
            sources = file.read().splitlines()[_OFFSET_LOG_HEAD:]
    except FileNotFoundError:
        return set()
    found: set[str] = set()
    for line in sources:
        try:
            offsets = json.loads(line)
        except ValueError:
            continue  # a source without data yet; of anything else Spark says what is wrong with its own files
        if isinstance(offsets, dict) and all(isinstance(partitions, dict) for partitions in offsets.values()):
            found |= set(offsets)
    return found


def checkpoint_id(checkpoint: str) -> str:
    """The identity that Spark gave a checkpoint: it tells the batches of this checkpoint from another's."""
    with open(os.path.join(checkpoint, "metadata"), encoding="utf-8") as file:
        return str(json.load(file)["id"])
