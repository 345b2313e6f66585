"""Columns of the tables that no stage of the pipeline writes."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from headwater.pipelines.definition import DeltaTable, FilesTable, JdbcTable, Loaded, SecretMissingError, TopicTable
from headwater.pipelines.definition.graph import place_read, place_writers
from headwater.pipelines.errors import Problem
from headwater.pipelines.sources import files
from headwater.pipelines.sources.decoding import empty_records
from headwater.pipelines.sources.tables import read_table, topic_rows
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns


def external_tables(
    spark: SparkSession, loaded: Loaded, known: KnownColumns, wanted: Collection[str] | None = None
) -> tuple[dict[str, StructType], list[Problem]]:
    """Columns of the tables that are known, and of those that no stage writes; of `wanted` ones, if not of all."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tables = dict(known.tables)
    problems = []
    for name, table in loaded.pipeline.tables.items():
        place = place_read(table)
        if name in tables or (wanted is not None and name not in wanted):
            continue
        if isinstance(table, TopicTable):
            schema = topic_table_columns(spark, known, table)
            if schema is not None:
                tables[name] = schema
            continue
        if place is not None and place_writers(loaded.pipeline, place):
            continue
        loc = ("tables", name, {FilesTable: "path", DeltaTable: "delta", JdbcTable: "jdbc"}[type(table)])
        try:
            tables[name] = read_table(spark, loaded, known, name, "").schema
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
    return tables, problems


def topic_table_columns(spark: SparkSession, known: KnownColumns, table: TopicTable) -> StructType | None:
    """Columns of a table of a topic's latest values; None as long as the topic's are unknown."""
    if not known.has_columns(table.topic):
        return None
    return topic_rows(known, empty_records(spark), table).schema
