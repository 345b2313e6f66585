"""The inputs of a running stage as streaming frames, and the undecodable records of a micro-batch.

A frame has its input's columns, and `columns.ERROR` where rows may be refused (topics, files of CSV, JSON and Avro).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import (
    Loaded,
    Source,
    Stage,
    TopicSource,
)
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.sources.kind import Running, StageInput
from headwater.pipelines.sources.kinds import kind_of_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns


class StageInputs:
    """Opens the inputs of one stage. Call `close` at the end of the query."""

    def __init__(
        self,
        session: SparkSession,
        loaded: Loaded,
        stage: Stage,
        known: KnownColumns,
        bootstrap_servers: Brokers,
        checkpoint: str,
        make_table: Callable[[str, StructType], None],
    ) -> None:
        """`make_table` creates a Delta table of this pipeline, by its path, if missing."""
        self._session = session
        self._loaded = loaded
        self._stage = stage
        self._known = known
        self._servers = bootstrap_servers
        self._running = Running(checkpoint, make_table)

    def open(self, *, available_now: bool, on_failure: Callable[[BaseException], None]) -> list[DataFrame]:
        """A streaming frame for each input. `on_failure` is called if an input's background fetch fails.

        Raises the errors of Spark, the broker or the database.
        """
        frames = [
            kind_of_source(source).stream(self._at(position), source, self._running)
            for position, source in enumerate(self._stage.inputs)
        ]
        if not available_now:
            for feed in self._running.feeds:
                feed.follow(on_failure)
        return frames

    def close(self) -> None:
        """End the background fetches."""
        for feed in self._running.feeds:
            feed.close()

    def _at(self, position: int) -> StageInput:
        return StageInput(self._session, self._loaded, self._stage, position, self._known, self._servers)

    # -- undecodable records -----------------------------------------------------------------------------------------

    def origin(self, source: Source) -> str:
        """The owner of an input's dead letters: its topic, or the stage."""
        if isinstance(source, TopicSource):
            return source.topic
        return f"{self._loaded.pipeline.pipeline}.{self._stage.name}"

    def read_again(self, position: int, plan: Any) -> DataFrame | None:
        """An input's rows in the micro-batch with this plan (a JVM LogicalPlan), read and decoded again.

        None for a batch without rows of the input, such as a batch that closes windows.
        """
        source = self._stage.inputs[position]
        return kind_of_source(source).read_again(self._at(position), source, plan)

    def headers_again(self, plan: Any) -> DataFrame | None:
        """The topics' records with headers in the micro-batch with this plan; None without topics.

        Columns: `columns.TOPIC`, `columns.PARTITION`, `columns.OFFSET` and `headers`; each record once.
        """
        from pyspark.sql import functions as f

        found: DataFrame | None = None
        for start, end in topic_source.topic_ranges(plan):
            for source in self._stage.topic_inputs:
                if source.topic not in json.loads(end):
                    continue
                records = topic_source.batch_between(
                    self._session, self._servers, source.topic, start, end, isolation=source.isolation, headers=True
                )
                place = {"topic": columns.TOPIC, "partition": columns.PARTITION, "offset": columns.OFFSET}
                named = [f.col(name).alias(alias) for name, alias in place.items()]
                # Pushed down: records without headers, usually all of them, do not leave the reading task.
                some = records.where(f.col("headers").isNotNull()).select(*named, "headers")
                found = some if found is None else found.unionAll(some)
                break
        return None if found is None else found.dropDuplicates([columns.TOPIC, columns.PARTITION, columns.OFFSET])
