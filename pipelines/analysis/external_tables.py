"""Columns of the tables that no stage of the pipeline writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headwater.pipelines.definition import Loaded, SecretMissingError, TopicTable
from headwater.pipelines.definition.graph import place_writers
from headwater.pipelines.errors import Problem
from headwater.pipelines.sources import files
from headwater.pipelines.sources.kinds import kind_of_table
from headwater.pipelines.sources.tables import read_table
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns


def external_tables(
    spark: SparkSession, loaded: Loaded, known: KnownColumns, wanted: Collection[str] | None = None
) -> tuple[dict[str, StructType], list[Problem]]:
    """Known columns of tables, extended by the tables that no stage writes; `wanted` limits the tables."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tables = dict(known.tables)
    problems = []
    for name, table in loaded.pipeline.tables.items():
        place = table.place
        if name in tables or (wanted is not None and name not in wanted):
            continue
        if isinstance(table, TopicTable):
            schema = kind_of_table(table).written_columns(spark, loaded, table, known)
            if schema is not None:
                tables[name] = schema
            continue
        if place is not None and place_writers(loaded.pipeline, place):
            continue
        loc = ("tables", name, table.kind)
        try:
            tables[name] = read_table(spark, loaded, known, name, "").schema
        except (
            PySparkException,
            Py4JError,
            SecretMissingError,
        ) as error:  # a file of another format raises the second
            hint = kind_of_table(table).hint(loaded, table)
            what = f"cannot read the table {name}: {first_line(error)}"
            problems.append(loaded.problem(loc, what.rstrip("."), hint))
        except files.SchemaError as error:
            problems.append(loaded.problem(("tables", name, "schema"), str(error)))
    return tables, problems
