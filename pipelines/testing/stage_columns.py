"""Columns of a tested stage, its inputs and its tables, determined without external systems.

Inputs and tables without columns from the file, a schema or an earlier stage have the columns of the tests' rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis, analyse
from headwater.pipelines.definition import (
    INFERRED,
    FilesSource,
    FilesTable,
    JdbcSource,
    JdbcTable,
    Loaded,
    PipelineTest,
    Stage,
    Topic,
    TopicSource,
    TopicTable,
)
from headwater.pipelines.definition.graph import place_writers, table_upstream, topological_order, upstream
from headwater.pipelines.definition.plan import topics_of
from headwater.pipelines.definition.topics import FRAMED
from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.rows.column_types import inferred, struct
from headwater.pipelines.rows.given_rows import WATERMARK
from headwater.pipelines.rows.typed_values import from_text
from headwater.pipelines.sources import files
from headwater.pipelines.sources.kind import InputMistake
from headwater.pipelines.sources.kinds import kind_of_source
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.sources.tables import read_table
from headwater.pipelines.validation.stage_test_checks import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def analyse_tested(spark: SparkSession, loaded: Loaded, tests: Sequence[PipelineTest]) -> Analysis:
    """The columns of the stages under test and of the stages that feed them. Raises PipelineError."""
    pipeline = loaded.pipeline
    known = KnownColumns(topics_of(pipeline))
    wanted: set[str] = set()
    waiting = [pipeline.stage(test.stage) for test in tests]
    while waiting:
        stage = waiting.pop()
        if stage.name not in wanted:
            wanted.add(stage.name)
            waiting += [*upstream(pipeline, stage), *table_upstream(pipeline, stage)]
    for stage in topological_order(pipeline):
        own = [test for test in tests if test.stage == stage.name]
        for position, source in enumerate(stage.inputs) if own else ():
            known = _with_input(spark, loaded, stage, position, _given(loaded, own, source.name), known)
    given = {name for test in tests for name in test.given}
    for name, table in pipeline.tables.items():
        if name in given or (isinstance(table, FilesTable) and table.schema_source is not None):
            known = _with_table(spark, loaded, name, _given(loaded, tests, name), known)
    return analyse(spark, loaded, stages=wanted, known=known)


def _given(loaded: Loaded, tests: Iterable[PipelineTest], name: str) -> list[dict[str, Any]]:
    """All rows that tests provide for an input or table, without watermark advances."""
    found: list[dict[str, Any]] = []
    for test in tests:
        if name in test.given:
            rows = rows_of(loaded, test.given[name])
            found += [_guessed(row) if rows.are_texts else row for row in rows.rows if WATERMARK not in row]
    return found


def _guessed(row: Mapping[str, Any]) -> dict[str, Any]:
    """CSV cells as inferred values, like Spark's own inference."""
    found = dict(row)
    for name, text in row.items():
        for kind in ("long", "double", "boolean"):
            value = from_text(kind, text)
            if not isinstance(value, str):
                found[name] = value
                break
    return found


def _schema(rows: Iterable[Mapping[str, Any]]) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(struct(inferred(rows)))


def _with_input(
    spark: SparkSession, loaded: Loaded, stage: Stage, position: int, rows: list[dict[str, Any]], known: KnownColumns
) -> KnownColumns:
    """The known columns including an input's, if only its rows or an external system determine them."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    source = stage.inputs[position]
    if isinstance(source, TopicSource):
        declared = known.topics.get(source.topic)
        if declared is None or not _is_told_outside(loaded, declared, source):
            return known
        values = ValueColumns(_schema([{n: v for n, v in row.items() if n not in columns.RESERVED} for row in rows]))
        if source.event is None:
            return replace(known, values={source.topic: values, **known.values})
        events = {source.event: values, **known.events.get(source.topic, {})}
        return replace(known, events={**known.events, source.topic: events})
    place = source.place
    if place is not None and place_writers(loaded.pipeline, place):
        return known  # the writing stage determines them
    schema = None
    if not isinstance(source, JdbcSource):
        try:
            schema = kind_of_source(source).columns(spark, loaded, source, known)
        except (PySparkException, Py4JError, InputMistake):
            if isinstance(source, FilesSource) and source.schema_source is not None:
                return known  # the analysis says what is wrong with it
    return replace(known, inputs={**known.inputs, (stage.name, position): _schema(rows) if schema is None else schema})


def _is_told_outside(loaded: Loaded, declared: Topic, source: TopicSource) -> bool:
    """Whether only a topic's records, or a registry, determine the columns of an input."""
    if declared.schema_source == INFERRED:
        return True
    if declared.value not in FRAMED:
        return False
    if declared.events:
        event = declared.events.get(source.event or "")
        return event is not None and event.schema_file is None
    if declared.schema_source is None:
        return declared.value == "protobuf" or not place_writers(loaded.pipeline, ("topic", source.topic))
    return declared.schema_file is None


def _with_table(
    spark: SparkSession, loaded: Loaded, name: str, rows: list[dict[str, Any]], known: KnownColumns
) -> KnownColumns:
    """The same for a table."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    table = loaded.pipeline.tables[name]
    place = table.place
    if isinstance(table, TopicTable) or (place is not None and place_writers(loaded.pipeline, place)):
        return known
    schema = None
    if not isinstance(table, JdbcTable):
        try:
            if isinstance(table, FilesTable) and table.schema_source is not None:
                schema = files.declared_columns(loaded, table.schema_source)
            else:
                schema = read_table(spark, loaded, known, name, "").schema
        except files.SchemaError:
            return known  # the analysis says what is wrong with it
        except (PySparkException, Py4JError):
            schema = None  # it does not exist
    return replace(known, tables={**known.tables, name: _schema(rows) if schema is None else schema})


def input_schema(session: SparkSession, stage: Stage, position: int, known: KnownColumns) -> StructType:
    """Columns of an input as the stage's first step sees them."""
    source = stage.inputs[position]
    schema = known.inputs.get((stage.name, position))
    return kind_of_source(source).empty(session, source, known, schema).schema


def output_rows(session: SparkSession, stage: Stage, analysis: Analysis) -> DataFrame:
    """An empty frame of the stage's output."""
    chain = analysis.chains[stage.name]
    empty = [
        session.createDataFrame([], input_schema(session, stage, position, analysis.columns))
        for position in range(len(stage.inputs))
    ]
    return chain.apply_to_batch(chain.apply_to_streams(empty))
