"""What columns each stage has, found by Spark on empty frames: every SQL mistake is told before any record is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.topic_schemas import find_declared
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import DeltaTable, Loaded, Stage, Topic, TopicTable
from headwater.pipelines.definition.graph import place_read, place_writers, tables_used, topological_order, upstream
from headwater.pipelines.definition.plan import topics_of
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.formats import ValueColumns, format_of
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.transforms.chain import Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(slots=True)
class Analysis:
    """The columns of topics' values and of tables, and each stage's transformation, ready to run.

    `values` are by topic, `events` by topic and event type, `tables` by name. `inputs` are the columns of each input
    that is no topic, by stage and position; `stored` those of the Delta tables that stages write, by path. `keys` are
    those of keys that are columns, `encodings` how topics are written, both by topic.
    """

    topics: dict[str, Topic]
    values: dict[str, ValueColumns] = field(default_factory=dict)
    events: dict[str, dict[str, ValueColumns]] = field(default_factory=dict)
    tables: dict[str, StructType] = field(default_factory=dict)
    inputs: dict[tuple[str, int], StructType] = field(default_factory=dict)
    stored: dict[str, StructType] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    keys: dict[str, ValueColumns] = field(default_factory=dict)
    encodings: dict[str, Encoding] = field(default_factory=dict)

    def value_format(self, topic: str) -> str:
        """The `value:` of a topic; one that nobody declared is raw."""
        return self.topics[topic].value if topic in self.topics else "raw"

    def decode(self, records: DataFrame, topic: str) -> DataFrame:
        """Records of a topic with the value's columns, `columns.ORIGIN` and `columns.ERROR`."""
        return format_of(self.value_format(topic)).decode(records, self.values.get(topic, ValueColumns()))

    def has_columns(self, topic: str) -> bool:
        """Whether the columns of a topic are known: text and bytes have the same everywhere."""
        return self.value_format(topic) in ("raw", "string") or topic in self.values or topic in self.events

    def encoding(self, topic: str) -> Encoding:
        """How a topic is written."""
        if topic not in self.encodings:
            wanted = self.values.get(topic, ValueColumns())
            self.encodings[topic] = Encoding(topic, self.value_format(topic), wanted)
        return self.encodings[topic]


def analyse(
    spark: SparkSession,
    loaded: Loaded,
    bootstrap_servers: Brokers | None = None,
    *,
    stages: Collection[str] | None = None,
    known: Analysis | None = None,
) -> Analysis:
    """Find every stage's columns. Raises PipelineError with the problems of all stages.

    `bootstrap_servers` is the broker whose topics tell the columns of `schema: inferred`. `stages` are those to look
    at, if not all: with a stage those whose output it reads. What is `known` already is not looked for.
    """
    from headwater.pipelines.analysis.stage_analysis import analyse_stage, external_tables

    found = Analysis(topics_of(loaded.pipeline)) if known is None else known
    wanted = [stage for stage in topological_order(loaded.pipeline) if stages is None or stage.name in stages]
    used = {name for stage in wanted for name in tables_used(loaded.pipeline, stage)} if stages is not None else None
    problems = find_declared(spark, loaded, found, bootstrap_servers)
    problems += external_tables(spark, loaded, found, used)
    if problems:
        raise PipelineError(problems)
    failed: set[str] = set()
    for stage in wanted:
        if any(s.name in failed for s in upstream(loaded.pipeline, stage)):
            failed.add(stage.name)  # its columns hang on those of a stage that is wrong
            continue
        wrong = _written_tables(spark, loaded, stage, found, failed)
        if wrong is None:
            failed.add(stage.name)
            continue
        wrong = wrong or analyse_stage(spark, loaded, stage, found)
        if wrong:
            failed.add(stage.name)
            problems += wrong
    if problems:
        raise PipelineError(problems)
    return found


def _written_tables(
    spark: SparkSession, loaded: Loaded, stage: Stage, found: Analysis, failed: set[str]
) -> list[Problem] | None:
    """Columns of the tables that the stage uses and other stages write; None if one of those is wrong."""
    problems = []
    for name in tables_used(loaded.pipeline, stage):
        table = loaded.pipeline.tables[name]
        place = place_read(table)
        if name in found.tables or place is None:
            continue
        if any(writer.name in failed for writer in place_writers(loaded.pipeline, place)):
            return None
        schema = None
        if isinstance(table, TopicTable):
            schema = topic_table_columns(spark, found, table)
        elif isinstance(table, DeltaTable):
            schema = found.stored.get(loaded.path(table.delta))
        if schema is None:
            what = f"the columns of the table '{name}' are not known before the stage that writes it"
            problems.append(loaded.problem(("tables", name), what, "declare its topic with a schema"))
        else:
            found.tables[name] = schema
    return problems


def topic_table_columns(spark: SparkSession, found: Analysis, table: TopicTable) -> StructType | None:
    """Columns of a table of a topic's latest values; None as long as the topic's are unknown."""
    if not found.has_columns(table.topic):
        return None
    from headwater.pipelines.sources.decoding import empty_records
    from headwater.pipelines.sources.tables import topic_rows

    return topic_rows(found, empty_records(spark), table).schema
