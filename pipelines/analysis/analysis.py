"""Analysis of every stage's columns by Spark on empty frames: reports SQL errors before any record is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwater.pipelines.analysis.external_tables import external_tables
from headwater.pipelines.analysis.stage_analysis import analyse_stage
from headwater.pipelines.analysis.topic_schemas import find_declared
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.definition.graph import place_writers, tables_used, topological_order, upstream
from headwater.pipelines.definition.plan import topics_of
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.formats.topic_encoding import Encoding
from headwater.pipelines.sources.kinds import kind_of_table
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.transforms.chain import Chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a pipeline before its run.

    Attributes:
        columns: Columns of topics, tables and inputs.
        chains: Each stage's loaded steps, by stage.
        encodings: Encodings of keys and values, by topic, for every topic that a stage writes.
    """

    columns: KnownColumns
    chains: Mapping[str, Chain]
    encodings: Mapping[str, Encoding]


def analyse(
    spark: SparkSession,
    loaded: Loaded,
    bootstrap_servers: Brokers | None = None,
    *,
    stages: Collection[str] | None = None,
    known: KnownColumns | None = None,
) -> Analysis:
    """Determine every stage's columns. Raises PipelineError with the problems of all stages.

    `bootstrap_servers` is the broker whose records determine the columns of `schema: inferred`. `stages` limits the
    analysis to these stages and the stages whose output they read. Columns in `known` are not determined again.
    """
    columns = KnownColumns(topics_of(loaded.pipeline)) if known is None else known
    wanted = [stage for stage in topological_order(loaded.pipeline) if stages is None or stage.name in stages]
    used = {name for stage in wanted for name in tables_used(loaded.pipeline, stage)} if stages is not None else None
    declared = find_declared(spark, loaded, columns, bootstrap_servers)
    columns, encodings = declared.columns, dict(declared.encodings)
    tables, problems = external_tables(spark, loaded, columns, used)
    columns = replace(columns, tables=tables)
    problems = [*declared.problems, *problems]
    if problems:
        raise PipelineError(problems)
    chains: dict[str, Chain] = {}
    failed: set[str] = set()
    for stage in wanted:
        if any(s.name in failed for s in upstream(loaded.pipeline, stage)):
            failed.add(stage.name)  # its columns depend on a stage with problems
            continue
        written = _written_tables(spark, loaded, stage, columns, failed)
        if written is None:
            failed.add(stage.name)
            continue
        tables, wrong = written
        columns = replace(columns, tables={**columns.tables, **tables})
        if not wrong:
            analysed = analyse_stage(spark, loaded, stage, columns, encodings)
            columns, wrong = analysed.columns, list(analysed.problems)
            encodings |= analysed.encodings
            if analysed.chain is not None:
                chains[stage.name] = analysed.chain
        if wrong:
            failed.add(stage.name)
            problems += wrong
    if problems:
        raise PipelineError(problems)
    return Analysis(columns, chains, encodings)


def _written_tables(
    spark: SparkSession, loaded: Loaded, stage: Stage, known: KnownColumns, failed: set[str]
) -> tuple[dict[str, StructType], list[Problem]] | None:
    """Columns of the tables that the stage uses and other stages write; None if such a stage has problems."""
    tables: dict[str, StructType] = {}
    problems = []
    for name in tables_used(loaded.pipeline, stage):
        table = loaded.pipeline.tables[name]
        place = table.place
        if name in known.tables or place is None:
            continue
        if any(writer.name in failed for writer in place_writers(loaded.pipeline, place)):
            return None
        schema = kind_of_table(table).written_columns(spark, loaded, table, known)
        if schema is None:
            what = f"the columns of the table '{name}' are not known before the stage that writes it"
            problems.append(loaded.problem(("tables", name), what, "declare its topic with a schema"))
        else:
            tables[name] = schema
    return tables, problems
