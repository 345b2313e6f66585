"""The tables that a stage joins with: reads them, registers them as views, and refreshes them when due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import (
    EVERY_BATCH,
    ONCE,
    Loaded,
    Stage,
    Table,
    TopicTable,
    interval_ms,
)
from headwater.pipelines.definition.graph import tables_used
from headwater.pipelines.sources.kinds import kind_of_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns


def read_table(
    spark: SparkSession, loaded: Loaded, known: KnownColumns, name: str, bootstrap_servers: Brokers
) -> DataFrame:
    """The current table; an empty frame if its stage has not written it yet.

    Raises the errors of Spark, the broker or the database.
    """
    table = loaded.pipeline.tables[name]
    return kind_of_table(table).read(spark, loaded, table, known.tables.get(name), known, bootstrap_servers)


class StageTables:
    """The tables of one stage's session, as views that its query and its batches read.

    Tables that are read once, or at intervals, are in Spark's cache; Spark reads the others whenever a micro-batch
    needs them. A query is bound to a table's files at its start, so the files are listed again. A `refresh` takes
    effect in the next micro-batch: the current one is already planned.
    """

    def __init__(
        self, session: SparkSession, loaded: Loaded, stage: Stage, known: KnownColumns, bootstrap_servers: Brokers
    ) -> None:
        self._session = session
        self._loaded = loaded
        self._known = known
        self._servers = bootstrap_servers
        self._tables: dict[str, Table] = {
            name: loaded.pipeline.tables[name] for name in tables_used(loaded.pipeline, stage)
        }
        self._frames: dict[str, DataFrame] = {}
        self._read_at_s: dict[str, float] = {}
        inputs = {source.topic for source in stage.topic_inputs}  # their records are refused as input records
        self._topics = {
            name: table.topic
            for name, table in self._tables.items()
            if isinstance(table, TopicTable) and table.topic not in inputs
        }
        self._read_topics: set[str] = set()

    def open(self) -> None:
        """Register every table as a view."""
        for name, table in self._tables.items():
            frame = read_table(self._session, self._loaded, self._known, name, self._servers)
            if table.refresh != EVERY_BATCH:
                frame = frame.persist()
            frame.createOrReplaceTempView(f"`{name}`")
            self._frames[name] = frame
            self._note_read(name)

    def refresh(self) -> None:
        """Refresh the tables that are due."""
        now_s = time.monotonic()
        for name, table in self._tables.items():
            if table.refresh == ONCE:
                continue
            if table.refresh != EVERY_BATCH and now_s - self._read_at_s[name] < interval_ms(table.refresh) / 1000:
                continue
            frame = self._frames[name]
            if table.refresh != EVERY_BATCH:
                frame.unpersist()
            kind_of_table(table).look_again(frame)
            if table.refresh != EVERY_BATCH:
                frame.persist()
            self._note_read(name)

    def _note_read(self, name: str) -> None:
        self._read_at_s[name] = time.monotonic()
        if name in self._topics:
            self._read_topics.add(self._topics[name])

    def take_read_topics(self) -> list[str]:
        """The topics of the tables read since the last call, without topics that are also inputs."""
        found = sorted(self._read_topics)
        self._read_topics.clear()
        return found

    def close(self) -> None:
        """Release the cached tables."""
        for name, frame in self._frames.items():
            if self._tables[name].refresh != EVERY_BATCH:
                frame.unpersist()
        self._frames = {}
