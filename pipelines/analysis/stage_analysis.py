"""One stage on empty frames: its inputs' columns, its steps, its expectations, its sinks."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis, topic_table_columns
from headwater.pipelines.analysis.stage_sinks import check_sink, stored_columns
from headwater.pipelines.definition import (
    DeltaSink,
    DeltaSource,
    DeltaTable,
    FilesSource,
    FilesTable,
    JdbcSource,
    JdbcTable,
    Loaded,
    SecretMissingError,
    SqlStep,
    Stage,
    TopicSink,
    TopicSource,
    TopicTable,
    WatermarkStep,
)
from headwater.pipelines.definition.graph import place_read, place_writers
from headwater.pipelines.errors import Problem
from headwater.pipelines.sources import debezium, decoding, files, jdbc, rate
from headwater.pipelines.sources import delta as delta_source
from headwater.pipelines.sources.tables import read_table
from headwater.pipelines.spark.spark_errors import first_line, problem_at
from headwater.pipelines.transforms import expectations, python
from headwater.pipelines.transforms.chain import Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def external_tables(
    spark: SparkSession, loaded: Loaded, found: Analysis, wanted: Collection[str] | None = None
) -> list[Problem]:
    """Columns of the tables that no stage writes; of `wanted` ones, if not of all."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    problems = []
    for name, table in loaded.pipeline.tables.items():
        place = place_read(table)
        if name in found.tables or (wanted is not None and name not in wanted):
            continue
        if isinstance(table, TopicTable):
            schema = topic_table_columns(spark, found, table)
            if schema is not None:
                found.tables[name] = schema
            continue
        if place is not None and place_writers(loaded.pipeline, place):
            continue
        loc = ("tables", name, {FilesTable: "path", DeltaTable: "delta", JdbcTable: "jdbc"}[type(table)])
        try:
            found.tables[name] = read_table(spark, loaded, found, name, "").schema
        except (
            PySparkException,
            Py4JError,
            SecretMissingError,
        ) as error:  # a file of another format comes as the second
            hint = ""
            if isinstance(table, FilesTable) and "://" not in table.path:
                hint = f"looked in {os.path.dirname(loaded.path(table.path))}"
            what = f"cannot read the table {name}: {first_line(error)}"
            problems.append(loaded.problem(loc, what.rstrip("."), hint))
        except files.SchemaError as error:
            problems.append(loaded.problem(("tables", name, "schema"), str(error)))
    return problems


def analyse_stage(spark: SparkSession, loaded: Loaded, stage: Stage, found: Analysis) -> list[Problem]:
    """Put the stage's chain and the columns of what it writes into `found`; returns what is wrong."""
    session = spark.newSession()
    for name, schema in found.tables.items():
        session.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
    frames: list[DataFrame] = []
    problems: list[Problem] = []
    for position in range(len(stage.inputs)):
        frame = _input(session, loaded, stage, position, found)
        if isinstance(frame, Problem):
            problems.append(frame)
        else:
            frames.append(frame)
    if problems:
        return problems
    chain = Chain(loaded, stage)
    rows = _steps(loaded, stage, chain, frames)
    if isinstance(rows, Problem):
        return [rows]
    found.chains[stage.name] = chain
    twice = {n for n in rows.columns if [c.lower() for c in rows.columns].count(n.lower()) > 1}
    if twice:
        names = ", ".join(sorted(twice))
        what, hint = f"two columns have one name: {names}", "name the columns one by one, with AS"
        return [loaded.problem(chain.loc(max(len(chain) - 1, 0)), what, hint)]
    return _expectations(loaded, stage, rows) + _sinks(loaded, stage, rows, found)


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
    """What is wrong with a watermark's column, if something is: Spark says so of streams only, not of empty frames."""
    from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

    kind = rows.select(column).schema[0].dataType
    instant = kind["end"].dataType if isinstance(kind, StructType) and "end" in kind.names else kind  # a window
    if isinstance(instant, TimestampType | TimestampNTZType):
        return ""
    return f"the column {column} is {kind.simpleString()}, not a timestamp"


def _input(session: SparkSession, loaded: Loaded, stage: Stage, position: int, found: Analysis) -> DataFrame | Problem:
    """An empty frame with the columns of an input, its watermark set."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    source = stage.inputs[position]
    kind = next(name for name in ("topic", "delta", "files", "jdbc", "rate") if name in type(source).model_fields)
    loc = loaded.input_loc(stage, position, kind)
    try:
        if isinstance(source, TopicSource):
            if not found.has_columns(source.topic):
                return loaded.problem(
                    loc, f"the columns of '{source.topic}' are unknown", f"add a schema to topics.{source.topic}"
                )
            if source.envelope is not None and found.value_format(source.topic) == "avro":
                declared = found.values[source.topic].schema
                if declared is None or not debezium.is_envelope(declared):
                    where = loaded.input_loc(stage, position, "envelope")
                    what = f"the schema of '{source.topic}' is not that of change events: it has no op and after"
                    return loaded.problem(where, what, "name the schema that Debezium has registered, or registry")
            decoded = decoding.decode_input(found, decoding.empty_records(session), source)
            frame = decoded.drop(columns.ERROR)
            frame.schema  # noqa: B018 - analysed here
        else:
            schema = found.inputs.get((stage.name, position))
            if schema is None:
                schema = input_columns(session, loaded, source, found)
            if schema is None:
                assert isinstance(source, DeltaSource)
                return loaded.problem(loc, f"there is no Delta table at {loaded.path(source.delta)}")
            found.inputs[stage.name, position] = schema
            frame = session.createDataFrame([], schema)
            if isinstance(source, FilesSource):
                frame = files.with_origin(frame)
    except (PySparkException, Py4JError, SecretMissingError) as error:
        return loaded.problem(loc, f"cannot read the {kind}: {first_line(error)}")
    except files.SchemaError as error:
        return loaded.problem(loaded.input_loc(stage, position, "schema"), str(error))
    mark = source.watermark
    if mark is None:
        return frame
    where = loaded.input_loc(stage, position, "watermark", "column")
    try:
        if wrong := no_event_time(frame, mark.column):
            return loaded.problem(where, wrong)
        frame = frame.withWatermark(mark.column, mark.delay)
        frame.schema  # noqa: B018 - analysed here
    except PySparkException as error:
        return problem_at(loaded, where, error, "the watermark cannot be used")
    return frame


def input_columns(session: SparkSession, loaded: Loaded, source: object, found: Analysis) -> StructType | None:
    """The columns of an input that is no topic; None for a Delta table that neither exists nor is written."""
    from pyspark.sql.types import StructType

    if isinstance(source, DeltaSource):
        path = loaded.path(source.delta)
        if path in found.stored:
            return delta_source.columns(found.stored[path], source)
        if not delta_source.exists(session, path):
            return None
        return delta_source.columns(session.read.format("delta").load(path).schema, source)
    if isinstance(source, FilesSource):
        return files.found_columns(session, loaded, source, loaded.path(source.files))
    if isinstance(source, JdbcSource):
        return jdbc.table(session, source, source.table).schema
    rows = StructType.fromDDL(rate.DDL)
    assert isinstance(rows, StructType)
    return rows


def _expectations(loaded: Loaded, stage: Stage, rows: DataFrame) -> list[Problem]:
    from pyspark.errors import PySparkException

    problems = []
    for position, expectation in enumerate(stage.expect):
        try:
            expectations.marked(rows, [expectation]).schema  # noqa: B018 - analysed here
        except PySparkException as error:
            where = loaded.stage_loc(stage, "expect", position, "that")
            problems.append(problem_at(loaded, where, error, "Spark refuses the condition"))
    return problems


def _sinks(loaded: Loaded, stage: Stage, rows: DataFrame, found: Analysis) -> list[Problem]:
    from pyspark.errors import PySparkException

    problems = []
    for position, sink in enumerate(stage.to):
        where = loaded.sink_loc(stage, position)
        try:
            check_sink(loaded, sink, rows, found)
        except PySparkException as error:
            problems.append(problem_at(loaded, where, error, "Spark refuses the sink"))
        except (ValueError, python.UserCodeError) as error:
            hint = "select such a column, or give the sink a value" if isinstance(sink, TopicSink) else ""
            problems.append(loaded.problem(where, str(error), hint))
        else:
            if isinstance(sink, DeltaSink):
                found.stored[loaded.path(sink.delta)] = stored_columns(rows, sink)
    return problems
