"""The inputs of a running stage as streaming frames, and what of a micro-batch could not be decoded.

A frame has its input's columns, and `columns.ERROR` where rows may be refused (topics, files of CSV, JSON and Avro).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import (
    DeltaSource,
    FilesSource,
    JdbcSource,
    Loaded,
    RateSource,
    Source,
    Stage,
    TopicSource,
)
from headwater.pipelines.definition.plan import max_offsets_per_trigger
from headwater.pipelines.sources import decoding, delta, files, rate
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.sources.jdbc_feed import JdbcFeed
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns


def may_refuse(source: Source) -> bool:
    """Whether rows of an input may be such that nothing can be made of them."""
    return isinstance(source, TopicSource) or (
        isinstance(source, FilesSource) and source.format in ("csv", "json", "avro")
    )


class StageInputs:
    """Opens the inputs of one stage. `close` it at the end of the query."""

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
        """`make_table` makes a Delta table of this pipeline, by its path, unless it exists."""
        self._session = session
        self._loaded = loaded
        self._stage = stage
        self._known = known
        self._servers = bootstrap_servers
        self._checkpoint = checkpoint
        self._make_table = make_table
        self._feeds: list[JdbcFeed] = []

    def open(self, *, available_now: bool, on_failure: Callable[[BaseException], None]) -> list[DataFrame]:
        """A streaming frame for each input. `on_failure` hears when what feeds one of them in the background fails.

        Raises what Spark, the broker or the database says.
        """
        frames = [self._frame(position, source) for position, source in enumerate(self._stage.inputs)]
        if not available_now:
            for feed in self._feeds:
                feed.follow(on_failure)
        return frames

    def close(self) -> None:
        """End what runs in the background."""
        for feed in self._feeds:
            feed.close()

    def _frame(self, position: int, source: Source) -> DataFrame:
        if isinstance(source, TopicSource):
            headers = decoding.needs_headers(self._known, source)
            limit = max_offsets_per_trigger(self._stage, source)
            fields = decoding.json_fields(self._known, source)
            records = topic_source.stream(
                self._session, self._servers, source, limit, headers=headers, json_fields=fields
            )
            return decoding.decode_input(self._known, records, source)
        if isinstance(source, DeltaSource):
            path = self._loaded.path(source.delta)
            if path in self._known.stored:  # a stage of this pipeline writes it, and may have had no row yet
                self._make_table(path, self._known.stored[path])
            return delta.stream(self._session, source, path)
        schema = self._known.inputs[self._stage.name, position]
        if isinstance(source, FilesSource):
            found = files.stream(self._session, source, self._loaded.path(source.files), schema)
            return found if may_refuse(source) else found.drop(columns.ERROR)
        if isinstance(source, JdbcSource):
            folder = f"{self._checkpoint}/headwater/input-{position}"
            feed = JdbcFeed(self._session, source, folder, nullable(schema))
            self._feeds.append(feed)
            feed.open()
            feed.fetch()
            return feed.stream()
        assert isinstance(source, RateSource)
        return rate.stream(self._session, source)

    # -- what a micro-batch refuses ----------------------------------------------------------------------------------

    def origin(self, source: Source) -> str:
        """Whose dead letters the refused rows of an input are: its topic's, or the stage's own."""
        if isinstance(source, TopicSource):
            return source.topic
        return f"{self._loaded.pipeline.pipeline}.{self._stage.name}"

    def read_again(self, position: int, plan: Any) -> DataFrame | None:
        """What an input reads in the micro-batch whose plan (a JVM LogicalPlan) this is, decoded once more.

        None for a batch in which it reads nothing, such as one that closes windows.
        """
        source = self._stage.inputs[position]
        if isinstance(source, TopicSource):
            found = [offsets for offsets in topic_ranges(plan) if source.topic in json.loads(offsets[1])]
            same = [i for i, other in enumerate(self._stage.inputs) if _reads(other, source.topic)]
            place = same.index(position)
            if place >= len(found):
                return None
            headers = decoding.needs_headers(self._known, source)
            start, end = found[place]
            records = topic_source.batch_between(
                self._session,
                self._servers,
                source.topic,
                start,
                end,
                isolation=source.isolation,
                headers=headers,
                json_fields=decoding.json_fields(self._known, source),
            )
            return decoding.decode_input(self._known, records, source)
        assert isinstance(source, FilesSource), "no other input refuses rows"
        paths = file_paths(plan)
        schema = self._known.inputs[self._stage.name, position]
        return files.batch(self._session, source, paths, schema) if paths else None

    def headers_again(self, plan: Any) -> DataFrame | None:
        """The records with headers that the topics give to the micro-batch whose plan this is; None without topics.

        Columns: `columns.TOPIC`, `columns.PARTITION`, `columns.OFFSET` and `headers`; each record once.
        """
        from pyspark.sql import functions as f

        found: DataFrame | None = None
        for start, end in topic_ranges(plan):
            for source in self._stage.topic_inputs:
                if source.topic not in json.loads(end):
                    continue
                records = topic_source.batch_between(
                    self._session, self._servers, source.topic, start, end, isolation=source.isolation, headers=True
                )
                place = {"topic": columns.TOPIC, "partition": columns.PARTITION, "offset": columns.OFFSET}
                named = [f.col(name).alias(alias) for name, alias in place.items()]
                # Pushed down: of records without headers, mostly all of them, none leaves the task that reads them.
                some = records.where(f.col("headers").isNotNull()).select(*named, "headers")
                found = some if found is None else found.unionAll(some)
                break
        return None if found is None else found.dropDuplicates([columns.TOPIC, columns.PARTITION, columns.OFFSET])


def _reads(source: Source, topic: str) -> bool:
    return isinstance(source, TopicSource) and source.topic == topic


def topic_ranges(plan: Any) -> list[tuple[str, str]]:
    """Start and end offsets (JSON) of every topic that a micro-batch's plan reads."""
    if plan.nodeName() == "StreamingDataSourceV2ScanRelation":
        return [(plan.startOffset().get().json(), plan.endOffset().get().json())]
    children = plan.children()
    return [found for i in range(children.size()) for found in topic_ranges(children.apply(i))]


def file_paths(plan: Any) -> list[str]:
    """The files of a folder that a micro-batch's plan reads."""
    if plan.nodeName() == "LogicalRelation":
        relation = plan.relation()
        return [str(path) for path in relation.location().inputFiles()] if hasattr(relation, "location") else []
    children = plan.children()
    return [path for i in range(children.size()) for path in file_paths(children.apply(i))]
