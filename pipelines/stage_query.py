"""One stage as one streaming query.

A stage whose plan holds no state (projections, filters, joins with static tables) is transformed inside foreachBatch,
from a batch that is decoded once. One that holds state (aggregation, deduplication, stream-stream join) must be
transformed on the streaming frame, where Spark keeps its state; there, records that cannot be decoded are counted on
the way, and only a batch that has some reads its records again to find them.

What a batch does, in this order: expectations are counted (one that says `fail` stops the stage before anything is
written), Delta tables are written (a batch that runs again is skipped there), then topics, then dead letters.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines import columns, dead_letters, expectations
from pipelines.analysis import Analysis, register_tables, transform_loc
from pipelines.errors import PipelineError, PipelineFailed
from pipelines.graph import dead_letter_topic
from pipelines.plan import max_offsets_per_trigger
from pipelines.sinks import delta as delta_sink
from pipelines.sinks import topic as topic_sink
from pipelines.sources import topic as topic_source
from pipelines.spark_errors import problem_at
from pipelines.spec import DeltaSink, Loaded, Stage, TopicSink

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
    "RepartitionByExpression", "Range", "OneRowRelation", "LogicalRDD", "Join"
})  # fmt: skip


REFUSED = "headwater_refused"  # name of the observation that counts records that cannot be decoded


class StopRequested(Exception):  # noqa: N818 - it is no error
    """Raised at the start of a batch when the run shall stop: the batch is not begun, and runs next time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the rows of one micro-batch."""

    stage: str
    written: int
    undecodable: int
    unmet: dict[str, int]
    dead_letters: int


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
        self._tables: list[DataFrame] = []
        self._stateful = False

    def start(self, *, available_now: bool) -> StreamingQuery:
        """Start the query. Raises PipelineError for what Spark refuses in a stream."""
        from pyspark.errors import PySparkException

        stage = self.stage
        topic = stage.source.topic
        others = sorted(checkpoint_topics(self._checkpoint) - {topic})
        if others:
            raise PipelineError(
                [
                    self._loaded.problem(
                        self._loaded.stage_loc(stage, "from", "topic"),
                        f"the checkpoint of stage {stage.name} has read the topic '{others[0]}', not '{topic}'",
                        f"give the stage another name, or remove {self._checkpoint} to let it start anew",
                    )
                ]
            )
        self._tables = register_tables(self._session, self._loaded, stage, self._analysis.tables)
        records = topic_source.stream(
            self._session,
            self._servers,
            stage.source.topic,
            stage.source.starting_offsets,
            max_offsets_per_trigger(stage),
        )
        decoded = self._analysis.decode(records, stage.source.topic)
        try:
            frame = self._frame(decoded)
            writer = (
                frame.writeStream.queryName(f"{self._loaded.pipeline.pipeline}.{stage.name}")
                .option("checkpointLocation", self._checkpoint)
                .outputMode("append")
                .foreachBatch(self._batch)
            )
            self.query = (writer.trigger(availableNow=True) if available_now else writer).start()
        except PySparkException as error:
            loc = transform_loc(self._loaded, stage)
            raise PipelineError([problem_at(self._loaded, loc, error, "Spark refuses this in a stream")]) from None
        return self.query

    def close(self) -> None:
        """Forget the static tables."""
        for table in self._tables:
            table.unpersist()
        self._tables = []

    def _transform(self, rows: DataFrame) -> DataFrame:
        return self._analysis.transforms[self.stage.name](rows)

    def _frame(self, decoded: DataFrame) -> DataFrame:
        """The frame that the query runs: decoded records, or for a stateful stage its rows."""
        from pyspark.sql import functions as f

        refused = f.count(f.col(columns.ERROR)).alias(REFUSED)
        good = decoded.observe(REFUSED, refused).where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
        watermark = self.stage.source.watermark
        if watermark is not None:
            good = good.withWatermark(watermark.column, watermark.delay)
        rows = self._transform(good)
        plan = rows._jdf.queryExecution().analyzed()
        self._stateful = not is_stateless(plan)
        return rows if self._stateful else decoded

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """foreachBatch: Spark calls it on a thread of its own and shows only the text of what it raises."""
        try:
            if self._stop.is_set():
                raise StopRequested(self.stage.name)
            self._on_outcome(self._write(frame, batch_id))
        except BaseException as error:
            self.error = error
            raise

    def _write(self, frame: DataFrame, batch_id: int) -> Outcome:
        from pyspark.sql import functions as f

        frame.persist()
        kept = [frame]
        try:
            rows = frame
            if not self._stateful:
                rows = self._transform(frame.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR))
            rows = expectations.marked(rows, self.stage.expect)
            if columns.VALUE in rows.columns:
                # The bytes as they came are wanted for dead letters only: the others need not be kept.
                value = f.when(f.col(columns.FAILED).isNotNull(), f.col(columns.VALUE))
                rows = rows.withColumn(columns.VALUE, value)
            rows.persist()
            kept.append(rows)
            counted = expectations.counts(rows)
            self._fail_if_asked(rows, counted)
            rejected = self._refused_again() if self._stateful else frame.where(f.col(columns.ERROR).isNotNull())
            return self._sinks(rows, rejected, counted, batch_id)
        finally:
            for one in reversed(kept):
                one.unpersist()

    def _sinks(self, rows: DataFrame, rejected: DataFrame | None, counted: dict[str, int], batch_id: int) -> Outcome:
        from pyspark.sql import functions as f

        written = counted.get("", 0)
        met = rows.where(f.col(columns.FAILED).isNull()).drop(columns.FAILED)
        if written:
            app_id = f"headwater/{self._loaded.pipeline.pipeline}/{self.stage.name}/{checkpoint_id(self._checkpoint)}"
            for sink in self.stage.to:
                if isinstance(sink, DeltaSink):
                    delta_sink.write(met, sink, self._loaded.path(sink.delta), app_id, batch_id)
            for sink in self.stage.to:
                if isinstance(sink, TopicSink):
                    topic_sink.write(met, sink, self._analysis.value_format(sink.topic), self._servers)
        undecodable = 0 if rejected is None else rejected.count()
        pipeline, target = self._loaded.pipeline.pipeline, dead_letter_topic(self.stage.source.topic)
        if rejected is not None and undecodable:
            letters = dead_letters.undecodable(rejected, pipeline, self.stage.name)
            topic_sink.write_records(letters, target, self._servers, headers=True)
        buried = {e.name: e.that for e in self.stage.expect if e.otherwise == "dead_letter" and counted.get(e.name)}
        if buried:
            failing = rows.where(f.col(columns.FAILED).isin(*buried))
            letters = dead_letters.unmet(failing, pipeline, self.stage.name, buried)
            topic_sink.write_records(letters, target, self._servers, headers=True)
        unmet = {name: number for name, number in counted.items() if name}
        return Outcome(
            self.stage.name, written, undecodable, unmet, undecodable + sum(counted[name] for name in buried)
        )

    def _refused_again(self) -> DataFrame | None:
        """The records of the present batch that cannot be decoded, read again by their offsets; None if there are none.

        How many there are is known once the batch's rows are computed. Spark keeps count and offsets in the batch's
        execution, which only its JVM interface shows.
        """
        from pyspark.sql import functions as f

        streams = self._session._jsparkSession.streams()
        execution = streams.get(checkpoint_id(self._checkpoint)).streamingQuery().lastExecution()
        counted = execution.observedMetrics().get(REFUSED)
        if counted.isDefined() and not counted.get().getLong(0):
            return None
        offsets = batch_offsets(execution.logical())
        if offsets is None:
            return None  # a batch without data, which closes windows
        records = topic_source.batch_between(self._session, self._servers, self.stage.source.topic, *offsets)
        return self._analysis.decode(records, self.stage.source.topic).where(f.col(columns.ERROR).isNotNull())

    def _fail_if_asked(self, rows: DataFrame, counted: dict[str, int]) -> None:
        from pyspark.sql import functions as f

        for expectation in self.stage.expect:
            if expectation.otherwise != "fail" or not counted.get(expectation.name):
                continue
            where = ""
            if columns.PARTITION in rows.columns and columns.OFFSET in rows.columns:
                first = rows.where(f.col(columns.FAILED) == expectation.name).orderBy(columns.PARTITION, columns.OFFSET)
                row = first.select(columns.PARTITION, columns.OFFSET).first()
                where = f"; the first is offset {row[1]} of partition {row[0]}" if row else ""
            raise PipelineFailed(
                f"stage {self.stage.name}: {counted[expectation.name]} rows do not meet the expectation "
                f"{expectation.name} ({expectation.that}){where}"
            )


def batch_offsets(plan: Any) -> tuple[str, str] | None:
    """Start and end offsets (JSON) of the batch whose plan (a JVM LogicalPlan) this is; None if it reads no stream."""
    if plan.nodeName() == "StreamingDataSourceV2ScanRelation":
        return plan.startOffset().get().json(), plan.endOffset().get().json()
    children = plan.children()
    found = (batch_offsets(children.apply(i)) for i in range(children.size()))
    return next((offsets for offsets in found if offsets is not None), None)


def checkpoint_topics(checkpoint: str) -> set[str]:
    """The topics whose offsets a checkpoint holds; none if nothing has been read yet."""
    folder = os.path.join(checkpoint, "offsets")
    try:
        last = max((int(name) for name in os.listdir(folder) if name.isdigit()), default=None)
        if last is None:
            return set()
        with open(os.path.join(folder, str(last)), encoding="utf-8") as file:
            offsets = json.loads(file.read().splitlines()[-1])
    except (FileNotFoundError, IndexError, ValueError):
        return set()  # Spark says what is wrong with its own files
    return set(offsets) if isinstance(offsets, dict) else set()


def checkpoint_id(checkpoint: str) -> str:
    """The identity that Spark gave a checkpoint: it tells the batches of this checkpoint from another's."""
    with open(os.path.join(checkpoint, "metadata"), encoding="utf-8") as file:
        return str(json.load(file)["id"])
