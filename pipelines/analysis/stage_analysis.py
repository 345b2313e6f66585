"""Analysis of one stage on empty frames: its inputs' columns, its steps, its expectations, its sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.analysis.stage_sinks import topic_columns
from headwater.pipelines.definition import (
    Loaded,
    SecretMissingError,
    SqlStep,
    Stage,
    TopicSink,
    WatermarkStep,
)
from headwater.pipelines.errors import Problem
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.sources.kind import InputMistake
from headwater.pipelines.sources.kinds import kind_of_source
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.spark_errors import first_line, problem_at
from headwater.pipelines.transforms import python, received_rows
from headwater.pipelines.transforms.chain import Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class StageAnalysis:
    """The analysis of one stage.

    Attributes:
        columns: Known columns, including the stage's inputs and the topics and tables that it writes.
        encodings: Encodings of the topics that the stage writes.
        chain: Its loaded steps; None if they have problems.
        problems: Problems of the stage.
    """

    columns: KnownColumns
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    chain: Chain | None = None
    problems: tuple[Problem, ...] = ()


def analyse_stage(
    spark: SparkSession, loaded: Loaded, stage: Stage, known: KnownColumns, encodings: Mapping[str, Encoding]
) -> StageAnalysis:
    """Determine the stage's chain and its output's columns.

    `encodings` are the encodings of declared topics and of topics that other stages write.
    """
    session = spark.newSession()
    for name, schema in known.tables.items():
        session.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
    frames: list[DataFrame] = []
    problems: list[Problem] = []
    inputs = dict(known.inputs)
    for position in range(len(stage.inputs)):
        frame = _input(session, loaded, stage, position, known)
        if isinstance(frame, Problem):
            problems.append(frame)
            continue
        if frame.stored is not None:
            inputs[stage.name, position] = frame.stored
        frames.append(frame.rows)
    known = replace(known, inputs=inputs)
    if problems:
        return StageAnalysis(known, problems=tuple(problems))
    chain = Chain(loaded, stage)
    rows = _steps(loaded, stage, chain, frames)
    if isinstance(rows, Problem):
        return StageAnalysis(known, problems=(rows,))
    twice = {n for n in rows.columns if [c.lower() for c in rows.columns].count(n.lower()) > 1}
    if twice:
        names = ", ".join(sorted(twice))
        what, hint = f"two columns have one name: {names}", "name the columns one by one, with AS"
        return StageAnalysis(known, problems=(loaded.problem(chain.loc(max(len(chain) - 1, 0)), what, hint),))
    unmet = _expectations(loaded, stage, rows)
    known, written, wrong = _sinks(loaded, stage, rows, known, encodings)
    return StageAnalysis(known, written, chain, (*unmet, *wrong))


def _steps(loaded: Loaded, stage: Stage, chain: Chain, frames: list[DataFrame]) -> DataFrame | Problem:
    from pyspark.errors import PySparkException

    for position in range(len(chain)):
        loc = chain.loc(position)
        try:
            chain.load(position)
            step = stage.transforms[position]
            if isinstance(step, WatermarkStep) and (wrong := no_event_time(frames[0], step.watermark.column)):
                return loaded.problem((*loc, "column"), wrong)
            frames = [chain.apply_step(position, frames)]
            frames[0].schema  # noqa: B018 - analysed here
        except PySparkException as error:
            is_sql = isinstance(stage.transforms[position], SqlStep)
            return problem_at(loaded, loc, error, "Spark refuses the SQL" if is_sql else "Spark refuses the step")
        except python.UserCodeError as error:
            return loaded.problem(loc, str(error))
    return frames[0]


def no_event_time(rows: DataFrame, column: str) -> str:
    """The problem of a watermark's column, '' if none: Spark checks it only in streams, not in empty frames."""
    from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

    kind = rows.select(column).schema[0].dataType
    instant = kind["end"].dataType if isinstance(kind, StructType) and "end" in kind.names else kind  # a window
    if isinstance(instant, TimestampType | TimestampNTZType):
        return ""
    return f"the column {column} is {kind.simpleString()}, not a timestamp"


@dataclass(frozen=True, slots=True)
class _Input:
    """An empty frame with an input's columns and watermark; and the columns of an input other than a topic."""

    rows: DataFrame
    stored: StructType | None = None


def _input(session: SparkSession, loaded: Loaded, stage: Stage, position: int, known: KnownColumns) -> _Input | Problem:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    source = stage.inputs[position]
    kind = kind_of_source(source)
    try:
        schema = known.inputs.get((stage.name, position))
        if schema is None:
            schema = kind.columns(session, loaded, source, known)
        frame = kind.empty(session, source, known, schema)
        frame.schema  # noqa: B018 - analysed here
    except (PySparkException, Py4JError, SecretMissingError) as error:
        loc = loaded.input_loc(stage, position, source.kind)
        return loaded.problem(loc, f"cannot read the {source.kind}: {first_line(error)}")
    except InputMistake as error:
        return loaded.problem(loaded.input_loc(stage, position, error.field), str(error), error.hint)
    mark = source.watermark
    if mark is None:
        return _Input(frame, schema)
    where = loaded.input_loc(stage, position, "watermark", "column")
    try:
        if wrong := no_event_time(frame, mark.column):
            return loaded.problem(where, wrong)
        frame = frame.withWatermark(mark.column, mark.delay)
        frame.schema  # noqa: B018 - analysed here
    except PySparkException as error:
        return problem_at(loaded, where, error, "the watermark cannot be used")
    return _Input(frame, schema)


def _expectations(loaded: Loaded, stage: Stage, rows: DataFrame) -> list[Problem]:
    from pyspark.errors import PySparkException

    problems = []
    for position, expectation in enumerate(stage.expect):
        try:
            rows.withColumn(columns.FAILED, received_rows.is_true(expectation.that)).schema  # noqa: B018 - analysed here
        except PySparkException as error:
            where = loaded.stage_loc(stage, "expect", position, "that")
            problems.append(problem_at(loaded, where, error, "Spark refuses the condition"))
    return problems


def _when(loaded: Loaded, stage: Stage, position: int, rows: DataFrame) -> Iterator[Problem]:
    from pyspark.errors import PySparkException

    when = stage.to[position].when
    if when is None:
        return
    try:
        received_rows.with_mark(rows, position, when).schema  # noqa: B018 - analysed here
    except PySparkException as error:
        yield problem_at(loaded, loaded.sink_loc(stage, position, "when"), error, "Spark refuses the condition")


def _sinks(
    loaded: Loaded, stage: Stage, rows: DataFrame, known: KnownColumns, encodings: Mapping[str, Encoding]
) -> tuple[KnownColumns, dict[str, Encoding], list[Problem]]:
    """The known columns including the sinks' topics and tables, the topics' encodings, and the problems."""
    from pyspark.errors import PySparkException

    problems: list[Problem] = []
    written: dict[str, Encoding] = {}
    for position, sink in enumerate(stage.to):
        where = loaded.sink_loc(stage, position)
        kind = kind_of_sink(sink)
        problems += _when(loaded, stage, position, rows)
        with_topic, with_encoding = known, written
        try:
            if isinstance(sink, TopicSink):
                encoding = written.get(sink.topic) or encodings.get(sink.topic)
                found = topic_columns(loaded, sink, rows, known, encoding)
                with_topic, with_encoding = found.columns, {**written, sink.topic: found.encoding}
            kind.check(loaded, sink, rows, with_encoding)
        except PySparkException as error:
            problems.append(problem_at(loaded, where, error, "Spark refuses the sink"))
        except (ValueError, python.UserCodeError) as error:
            hint = "select such a column, or give the sink a value" if isinstance(sink, TopicSink) else ""
            problems.append(loaded.problem(where, str(error), hint))
        else:
            known, written = with_topic, with_encoding
            stored = kind.stored(sink, rows)
            if stored is not None:
                known = replace(known, stored={**known.stored, sink.target(loaded.path): stored})
    return known, written, problems
