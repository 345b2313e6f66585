"""Preview of a stage's output from existing records, without any write.

A preview creates no checkpoint, topic or table, commits nothing, and registers no schema. It computes all records as
one batch: for a stateful stage, the watermark does not limit the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.dead_letters import headers as dead_letter_headers
from headwater.pipelines.definition import (
    Expectation,
    Loaded,
    Source,
    Stage,
    TopicSource,
)
from headwater.pipelines.definition.graph import tables_used
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.engine.stage_query import is_stateless
from headwater.pipelines.preview.start_offsets import Start, offsets_json, ranges_of
from headwater.pipelines.rows.comparison import plain
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.sources.kind import Sample, StageInput, TopicOffsets
from headwater.pipelines.sources.kinds import kind_of_source
from headwater.pipelines.sources.table_gaps import TableGap, gaps_of
from headwater.pipelines.sources.tables import read_table
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.collected_rows import rows_of
from headwater.pipelines.transforms import expectations
from headwater.pipelines.transforms.received_rows import handed_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class InputRead:
    """The read of one input. `there` is the topic's number of offsets, None for other inputs."""

    kind: str
    target: str
    rows: int
    undecodable: int
    there: int | None


@dataclass(frozen=True, slots=True)
class SinkRows:
    """The first rows that a sink receives; `count` is the number of all of them."""

    kind: str
    target: str
    how: str
    count: int
    rows: list[dict[str, Any]]


@dataclass(slots=True)
class Preview:
    """The result of a preview. `stopped_by` names expectations that would stop a run before any write.

    `gaps` belong to the tables that the stage joins with.
    """

    stage: str
    keeps_state: bool
    inputs: list[InputRead] = field(default_factory=list)
    gaps: list[TableGap] = field(default_factory=list)
    written: int = 0
    unmet: dict[str, int] = field(default_factory=dict)
    stopped_by: list[str] = field(default_factory=list)
    sinks: list[SinkRows] = field(default_factory=list)
    dead_letters: int = 0
    letters: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a preview: start, number of records per input, number of rows shown."""

    start: Start
    records_max: int
    rows_max: int


class StagePreview:
    """Computes a stage once. `empty_folder` has no files: a stream of it shows whether the stage keeps state."""

    def __init__(
        self, spark: SparkSession, loaded: Loaded, stage: Stage, analysis: Analysis, where: Brokers, empty_folder: str
    ) -> None:
        self._session = spark.newSession()
        self._loaded = loaded
        self._stage = stage
        self._analysis = analysis
        self._where = where
        self._empty_folder = empty_folder

    def compute(self, request: Request) -> Preview:
        """Read, transform and count. Raises SourceError, PipelineFailed, or Spark's errors."""
        tables = tables_used(self._loaded.pipeline, self._stage)
        for name in tables:
            frame = read_table(self._session, self._loaded, self._analysis.columns, name, self._where)
            frame.createOrReplaceTempView(f"`{name}`")
        found = Preview(self._stage.name, keeps_state=False)
        found.gaps = gaps_of(self._session, self._loaded, self._analysis.columns, tables, self._where)
        inputs, refused = self._read(request, found)
        found.keeps_state = self._keeps_state(inputs)
        chain = self._analysis.chains[self._stage.name]
        unmarked = chain.apply_to_batch(chain.apply_to_streams(inputs))
        expected = expectations.of_stage(self._stage, unmarked.columns)
        rows = expectations.marked(unmarked, self._stage).persist()
        try:
            counted = expectations.counts(rows, self._stage)
            found.written, unmet = counted.written, counted.of_all
            found.unmet = {e.name: unmet.get(e.name, 0) for e in expected if e in self._stage.expect or e.name in unmet}
            found.stopped_by = [e.name for e in self._stage.expect if e.otherwise == "fail" and unmet.get(e.name)]
            received = handed_out(expectations.met(rows), self._stage, counted.received)
            plans = next(stage for stage in make_plan(self._loaded).stages if stage.name == self._stage.name).writes
            for share, plan in zip(received, plans, strict=True):
                of_sink = kind_of_sink(share.sink).shown(share.sink, share.rows, self._analysis.encodings)
                shown = plain(rows_of(of_sink.limit(request.rows_max)))
                found.sinks.append(SinkRows(plan.kind, plan.target, _how(plan), share.count, shown))
            self._letters(rows, refused, request, found, expected)
        finally:
            rows.unpersist()
            for frame in (*inputs, *refused):
                frame.unpersist()
        return found

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _read(self, request: Request, found: Preview) -> tuple[list[DataFrame], list[DataFrame]]:
        """The inputs' rows and their undecodable records."""
        from pyspark.sql import functions as f

        inputs, refused = [], []
        plan = next(stage for stage in make_plan(self._loaded).stages if stage.name == self._stage.name)
        for position, source in enumerate(self._stage.inputs):
            frame, there = self._frame(source, position, request)
            frame = frame.persist()
            count, undecodable = frame.count(), 0
            if columns.ERROR in frame.columns:
                bad = frame.where(f.col(columns.ERROR).isNotNull())
                undecodable = bad.count()
                if undecodable:
                    refused.append(bad)
                frame = frame.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR)
            read = plan.reads[position]
            found.inputs.append(InputRead(read.kind, read.target, count, undecodable, there))
            inputs.append(frame)
        return inputs, refused

    def _frame(self, source: Source, position: int, request: Request) -> tuple[DataFrame, int | None]:
        at = StageInput(self._session, self._loaded, self._stage, position, self._analysis.columns, self._where)

        def range_of(topic: TopicSource) -> TopicOffsets:
            committed = topic.isolation == topic_source.READ_COMMITTED
            found = ranges_of(self._where, topic.topic, request.start, request.records_max, committed=committed)
            start, end = (offsets_json(topic.topic, found, end=end) for end in (False, True))
            return TopicOffsets(start, end, sum(one.latest - one.earliest for one in found.values()))

        return kind_of_source(source).sample(at, source, Sample(request.records_max, range_of))

    def _keeps_state(self, inputs: Sequence[DataFrame]) -> bool:
        """Whether the stage as a stream keeps state, from the plan of a stream without files, which is not run."""
        streams = []
        for source, frame in zip(self._stage.inputs, inputs, strict=True):
            stream = self._session.readStream.schema(frame.schema).parquet(self._empty_folder)
            mark = source.watermark
            streams.append(stream if mark is None else stream.withWatermark(mark.column, mark.delay))
        rows = self._analysis.chains[self._stage.name].apply_to_streams(streams)
        return not is_stateless(jvm.analyzed_plan(rows))

    # -- outputs -----------------------------------------------------------------------------------------------------

    def _letters(
        self,
        rows: DataFrame,
        refused: Sequence[DataFrame],
        request: Request,
        found: Preview,
        expected: Sequence[Expectation],
    ) -> None:
        name, stage = self._loaded.pipeline.pipeline, self._stage
        letters = [dead_letters.undecodable(frame, name, stage.name) for frame in refused]
        buried = {e.name: e.that for e in expected if e.otherwise == "dead_letter" and found.unmet.get(e.name)}
        if buried:
            letters.append(dead_letters.unmet(expectations.unmet(rows, buried), name, stage.name, buried))
        found.dead_letters = sum(one.undecodable for one in found.inputs) + sum(found.unmet[name] for name in buried)
        for frame in letters:
            left = request.rows_max - len(found.letters)
            for row in rows_of(frame.limit(left)) if left > 0 else ():
                headers = {header["key"]: header["value"] for header in row["headers"] or ()}
                error = headers.get(dead_letter_headers.ERROR) or b""
                found.letters.append(plain({"error": error, "key": row["key"], "value": row["value"]}))


def _how(plan: SinkPlan) -> str:
    when = [] if plan.when is None else [f"when {plan.when}"]
    how = [plan.how] if plan.how != "append" else []
    return ", ".join([*([f"key {plan.key}"] if plan.key else []), *how, *when])
