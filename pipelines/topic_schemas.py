"""What columns the values of declared topics have: from schema files, from the records themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import Problem
from pipelines.formats import ValueColumns, json_schema
from pipelines.sources import topic as topic_source
from pipelines.spec import INFERRED, Loaded
from pipelines.spec.topics import Event, Topic
from pipelines.yaml_source import Loc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.analysis import Analysis

INFERENCE_RECORDS_MAX = 100_000  # of a topic, that are looked at for their fields


def find_declared(spark: SparkSession, loaded: Loaded, found: Analysis, bootstrap_servers: str | None) -> list[Problem]:
    """Put the columns of every topic that says where they come from into `found`; returns what is wrong.

    Without a broker's address the columns of a topic with `schema: inferred` stay unknown.
    """
    problems: list[Problem] = []
    for name, topic in loaded.pipeline.topics.items():
        if topic.events:
            events = {}
            for event, declared in topic.events.items():
                values = _from_file(loaded, ("topics", name, "events", event, "schema"), declared, problems)
                if values is not None:
                    events[event] = values
            found.events[name] = events
        elif topic.schema_source == INFERRED:
            if bootstrap_servers is not None:
                problems += _infer(spark, loaded, found, bootstrap_servers, name)
        else:
            values = _from_file(loaded, ("topics", name, "schema"), topic, problems)
            if values is not None:
                found.values[name] = values
    return problems


def _from_file(loaded: Loaded, loc: Loc, declared: Topic | Event, problems: list[Problem]) -> ValueColumns | None:
    from pyspark.sql.types import StructType

    if declared.schema_file is None:
        return None
    path = loaded.path(declared.schema_file)
    try:
        with open(path, encoding="utf-8") as file:
            columns = json_schema.parse(file.read(json_schema.SCHEMA_BYTES_MAX + 1))
    except OSError as error:
        problems.append(loaded.problem(loc, f"cannot read the schema {path}: {error.strerror}"))
    except ValueError as error:
        problems.append(loaded.problem(loc, f"the schema {path} cannot be used: {error}"))
    else:
        schema = StructType.fromDDL(columns.ddl)
        assert isinstance(schema, StructType)
        return ValueColumns(schema, columns.required)
    return None


def _infer(spark: SparkSession, loaded: Loaded, found: Analysis, servers: str, name: str) -> list[Problem]:
    """The fields of a topic's JSON values, as Spark finds them in the records that are there."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, functions

    loc = ("topics", name, "schema")
    try:
        records = topic_source.batch(spark, servers, name).where(functions.col("value").isNotNull())
        texts = records.limit(INFERENCE_RECORDS_MAX).select(functions.col("value").cast("string").alias("value"))
        # Only the JVM's reader takes a frame of texts.
        java = spark._jvm.org.apache.spark.sql.Encoders  # type: ignore[union-attr]
        typed = getattr(texts._jdf, "as")(java.STRING())
        schema = DataFrame(spark._jsparkSession.read().option("mode", "DROPMALFORMED").json(typed), spark).schema
    except PySparkException as error:
        from pipelines.spark_errors import first_line

        return [loaded.problem(loc, f"the columns of '{name}' cannot be found in its records: {first_line(error)}")]
    if not schema.fields:
        what = f"the topic '{name}' has no records that tell its columns"
        return [loaded.problem(loc, what, "name a schema file, or write a record first")]
    found.values[name] = ValueColumns(schema)
    return []
