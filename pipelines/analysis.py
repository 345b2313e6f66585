"""What columns each stage has, found by Spark on empty frames: every SQL mistake is told before any record is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines import columns, expectations
from pipelines.errors import PipelineError, Problem
from pipelines.formats import ValueColumns, format_of, json_schema
from pipelines.graph import topological_order, writers
from pipelines.plan import tables_used, topics_of
from pipelines.sinks import delta as delta_sink
from pipelines.sinks import topic as topic_sink
from pipelines.spark_errors import problem_at
from pipelines.spec import DeltaSink, Loaded, Stage, Topic, TopicSink
from pipelines.transforms import python, sql
from pipelines.yaml_source import Loc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Transform = Callable[["DataFrame"], "DataFrame"]


@dataclass(slots=True)
class Analysis:
    """The columns of topics' values and of tables, and each stage's transform, ready to run."""

    topics: dict[str, Topic]
    values: dict[str, ValueColumns] = field(default_factory=dict)
    tables: dict[str, StructType] = field(default_factory=dict)
    transforms: dict[str, Transform] = field(default_factory=dict)

    def value_format(self, topic: str) -> str:
        """The `value:` of a topic; one that nobody declared is raw."""
        return self.topics[topic].value if topic in self.topics else "raw"

    def decode(self, records: DataFrame, topic: str) -> DataFrame:
        """Records of a topic with the value's columns, `columns.ORIGIN` and `columns.ERROR`."""
        return format_of(self.value_format(topic)).decode(records, self.values.get(topic, ValueColumns()))


def analyse(spark: SparkSession, loaded: Loaded) -> Analysis:
    """Find every stage's columns. Raises PipelineError with the problems of all stages."""
    found = Analysis(topics_of(loaded.pipeline))
    problems = _declared_schemas(loaded, found)
    problems += _tables(spark, loaded, found)
    if problems:
        raise PipelineError(problems)
    failed: set[str] = set()
    for stage in topological_order(loaded.pipeline):
        topic = stage.source.topic
        if any(s.name in failed for s in writers(loaded.pipeline, topic)):
            failed.add(stage.name)  # its columns hang on those of a stage that is wrong
            continue
        wrong = _stage(spark, loaded, stage, found)
        if wrong:
            failed.add(stage.name)
            problems += wrong
    if problems:
        raise PipelineError(problems)
    return found


def _declared_schemas(loaded: Loaded, found: Analysis) -> list[Problem]:
    from pyspark.sql.types import StructType

    problems = []
    for name, topic in loaded.pipeline.topics.items():
        if topic.schema_file is None:
            continue
        path, loc = loaded.path(topic.schema_file), ("topics", name, "schema")
        try:
            with open(path, encoding="utf-8") as file:
                declared = json_schema.parse(file.read(json_schema.SCHEMA_BYTES_MAX + 1))
        except OSError as error:
            problems.append(loaded.problem(loc, f"cannot read the schema {path}: {error.strerror}"))
        except ValueError as error:
            problems.append(loaded.problem(loc, f"the schema {path} cannot be used: {error}"))
        else:
            schema = StructType.fromDDL(declared.ddl)
            assert isinstance(schema, StructType)
            found.values[name] = ValueColumns(schema, declared.required)
    return problems


def _tables(spark: SparkSession, loaded: Loaded, found: Analysis) -> list[Problem]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    problems = []
    for name, table in loaded.pipeline.tables.items():
        loc = ("tables", name)
        try:
            found.tables[name] = read_table(spark, loaded, name, None).schema
        except (PySparkException, Py4JError) as error:  # a file of another format comes as the latter
            hint = "" if "://" in table.path else f"looked in {os.path.dirname(loaded.path(table.path))}"
            problem = problem_at(loaded, (*loc, "path"), error, f"cannot read the table {name}")
            problems.append(loaded.problem((*loc, "path"), problem.message.rstrip("."), hint))
    return problems


def read_table(spark: SparkSession, loaded: Loaded, name: str, schema: StructType | None) -> DataFrame:
    """A static table. CSV files have a header and their columns' types are found unless the options say otherwise."""
    table = loaded.pipeline.tables[name]
    reader = spark.read.format(table.format)
    if table.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    for key, value in table.options.items():
        reader = reader.option(key, str(value).lower() if isinstance(value, bool) else value)
    return (reader.schema(schema) if schema is not None else reader).load(loaded.path(table.path))


def register_tables(
    spark: SparkSession, loaded: Loaded, stage: Stage, tables: Mapping[str, StructType]
) -> list[DataFrame]:
    """Make the tables that a stage names views of its session, each read once and kept; the caller unpersists them."""
    kept = []
    for name in tables_used(loaded.pipeline, stage):
        frame = read_table(spark, loaded, name, tables[name]).persist()
        frame.createOrReplaceTempView(f"`{name}`")
        kept.append(frame)
    return kept


def _transform(loaded: Loaded, stage: Stage) -> Transform:
    """The stage's transform as a function of frames. Raises python.UserCodeError."""
    if stage.sql is not None:
        text = stage.sql
        return lambda rows: sql.apply(rows, stage.source.topic, text)
    if stage.python is not None:
        path = loaded.path(stage.python.file)
        function = python.load(path, stage.python.function)
        return lambda rows: python.apply(rows, path, function)
    return lambda rows: rows


def transform_loc(loaded: Loaded, stage: Stage) -> Loc:
    """Where a stage says what it does."""
    return loaded.stage_loc(stage, *(["sql"] if stage.sql else ["python"] if stage.python else []))


def _stage(spark: SparkSession, loaded: Loaded, stage: Stage, found: Analysis) -> list[Problem]:
    from pyspark.errors import PySparkException

    session = spark.newSession()
    for name, schema in found.tables.items():
        session.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
    topic, loc = stage.source.topic, transform_loc(loaded, stage)
    if found.value_format(topic) == "json" and topic not in found.values:
        where = loaded.stage_loc(stage, "from", "topic")
        return [loaded.problem(where, f"the columns of '{topic}' are unknown", f"add a schema to topics.{topic}")]
    rows = found.decode(session.createDataFrame([], columns.RECORD_DDL), topic).drop(columns.ERROR)
    watermark = stage.source.watermark
    if watermark is not None:
        try:
            rows = rows.withWatermark(watermark.column, watermark.delay)
            rows.schema  # noqa: B018 - analysed here
        except PySparkException as error:
            where = loaded.stage_loc(stage, "from", "watermark", "column")
            return [problem_at(loaded, where, error, "the watermark cannot be used")]
    try:
        found.transforms[stage.name] = _transform(loaded, stage)
        rows = found.transforms[stage.name](rows)
        rows.schema  # noqa: B018 - analysed here
    except PySparkException as error:
        return [problem_at(loaded, loc, error, "Spark refuses the SQL" if stage.sql else "Spark refuses the function")]
    except python.UserCodeError as error:
        return [loaded.problem(loc, str(error))]
    twice = {n for n in rows.columns if [c.lower() for c in rows.columns].count(n.lower()) > 1}
    if twice:
        names = ", ".join(sorted(twice))
        return [loaded.problem(loc, f"two columns have one name: {names}", "name the columns one by one, with AS")]
    return _expectations(loaded, stage, rows) + _sinks(loaded, stage, rows, found)


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
    from pyspark.sql.types import StructType

    problems = []
    for position, sink in enumerate(stage.to):
        where = loaded.stage_loc(stage, "to", position)
        try:
            if isinstance(sink, DeltaSink):
                names = [delta_sink.partition_column(e)[0] for e in sink.partition_by]
                delta_sink.table_rows(rows, sink).select(*(f"`{name}`" for name in names)).schema  # noqa: B018
            else:
                _topic_sink(stage, rows, sink, found)
        except PySparkException as error:
            problems.append(problem_at(loaded, where, error, "Spark refuses the sink"))
        except ValueError as error:
            problems.append(loaded.problem(where, str(error), "select such a column, or give the sink a value"))
        if isinstance(sink, TopicSink) and sink.value is None and found.value_format(sink.topic) == "json":
            fields = [f for f in rows.schema.fields if f.name not in columns.RESERVED]
            # A declared schema is what readers of the topic go by; else they get what this stage writes.
            found.values.setdefault(sink.topic, ValueColumns(StructType(fields)))
    return problems


def _topic_sink(stage: Stage, rows: DataFrame, sink: TopicSink, found: Analysis) -> None:
    columns_of = topic_sink.records(rows, sink, found.value_format(sink.topic)).columns
    assert columns_of == ["key", "value"], f"stage {stage.name} would write {columns_of}"
