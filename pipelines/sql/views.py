"""Registers topics and Delta tables as views of a session.

A topic's view has the topic's name (backquoted if it contains dots). If a pipeline declares the topic, the view has the
value's columns and the columns of `columns.LINEAGE`; a dead-letter topic's view has its headers as columns; any other
view has key and value as text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.definition import DeltaSink, Loaded
from headwater.pipelines.definition.graph import DEAD_LETTERS_SUFFIX, tables_named
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

INTERNAL_PREFIX = "__"  # Kafka's and Headwater's internal topics; views only if a query names them
DELTA_SUFFIX = "_delta"  # for a table with the name of a topic


def topics_to_show(query: str, existing: Iterable[str]) -> frozenset[str]:
    """Return the topics that a query names; all except internal topics if sqlglot cannot parse the query.

    >>> sorted(topics_to_show("SELECT * FROM Flights JOIN x", ["flights", "delays", "__consumer_offsets"]))
    ['flights']
    >>> sorted(topics_to_show("DESCRIBE flights", ["flights", "delays", "__consumer_offsets"]))
    ['delays', 'flights']
    """
    named, fault = tables_named(query)
    if fault:
        return frozenset(name for name in existing if not name.startswith(INTERNAL_PREFIX))
    folded = {name.lower() for name in named}
    return frozenset(name for name in existing if name.lower() in folded)


def delta_views(loaded: Loaded) -> dict[str, str]:
    """Map view names to paths of the pipeline's Delta tables: the last path part, plus `_delta` if a topic has it."""
    from headwater.pipelines.definition.graph import known_topics

    taken = {name.lower() for name in known_topics(loaded.pipeline) | loaded.pipeline.tables.keys()}
    views: dict[str, str] = {}
    for stage in loaded.pipeline.stages:
        for sink in stage.to:
            if isinstance(sink, DeltaSink):
                name = os.path.basename(sink.delta.rstrip("/"))
                views[name + DELTA_SUFFIX if name.lower() in taken else name] = loaded.path(sink.delta)
    return views


def topic_frame(spark: SparkSession, bootstrap_servers: Brokers, topic: str, known: KnownColumns | None) -> DataFrame:
    """Return the records of a topic for queries. Undecodable records are omitted."""
    from pyspark.sql import functions as f

    if topic.endswith(DEAD_LETTERS_SUFFIX):
        return dead_letters.readable(topic_source.batch(spark, bootstrap_servers, topic, headers=True))
    needs_headers = known is not None and decoding.topic_needs_headers(known, topic)
    fields = decoding.topic_json_fields(known, topic) if known is not None else None
    records = topic_source.batch(spark, bootstrap_servers, topic, headers=needs_headers, json_fields=fields)
    if known is not None and topic in known.topics:
        decoded = decoding.decode_topic(known, records, topic)
        return decoded.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR, columns.KEY, columns.VALUE)
    text = [f.col(name).cast("string").alias(name) for name in ("key", "value")]
    return records.select(*text, "topic", "partition", "offset", "timestamp")


def register_topics(
    spark: SparkSession, bootstrap_servers: Brokers, topics: Iterable[str], known: KnownColumns | None = None
) -> None:
    """Register topics as views."""
    for topic in topics:
        topic_frame(spark, bootstrap_servers, topic, known).createOrReplaceTempView(f"`{topic}`")


def register_deltas(spark: SparkSession, tables: Mapping[str, str]) -> list[str]:
    """Register Delta tables as views; returns the names of paths without a Delta table."""
    from pyspark.errors import AnalysisException

    missing = []
    for name, path in tables.items():
        try:
            spark.read.format("delta").load(path).createOrReplaceTempView(f"`{name}`")
        except AnalysisException:
            missing.append(name)
    return missing
