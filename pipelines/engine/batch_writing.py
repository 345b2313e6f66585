"""A stage's micro-batch: counts, writes, commits.

The order: rows are computed and cached; expectations and each sink's rows are counted (a violated `fail` expectation
stops the stage before any write); Delta tables are written, each commit with the batch's number, so that a repeated
batch is skipped there; then at-least-once topics; last, in one transaction, all exactly-once topics, the dead letters
and the source offsets for the consumer group `<pipeline>.<stage>`. The first step is a check whether the batch's
transaction is already committed: such a batch is not written again.

A stage whose topic sinks are all `at_least_once` uses no transactions: its dead letters are at-least-once, too, and the
source offsets are committed after all writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.topics import ensure_topic
from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.offsets import Offsets
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.definition import Expectation, Loaded, Stage, TopicSink
from headwater.pipelines.definition.graph import dead_letter_topic, row_dead_letters, topic_tables
from headwater.pipelines.definition.plan import made_when_needed
from headwater.pipelines.engine.offset_log import end_offsets, query_id, topic_offsets
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.monitoring.outcome import Outcome
from headwater.pipelines.sinks import topic as topic_sink
from headwater.pipelines.sinks.commit_metadata import USER_METADATA_CONF, user_metadata
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import Batch, Step, stage_owner
from headwater.pipelines.sinks.exactly_once.exactly_once_topics import ExactlyOnceTopics, TopicRecords
from headwater.pipelines.sinks.outside import OutsideSinks
from headwater.pipelines.sinks.source_offsets import SourceOffsets
from headwater.pipelines.sources.table_dead_letters import TableRefusals
from headwater.pipelines.transforms import expectations
from headwater.pipelines.transforms.received_rows import ReceivedRows, handed_out, reads_record_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchWriter", "OnStep", "Outcome", "StageFrames", "no_step"]

logger = logging.getLogger(__name__)

#: Called at each step of a batch with stage, batch number and step. For tests, which kill the process there. Steps:
#: begun, computed, tables_written, transaction_open, records_sent, committed, done.
OnStep = Callable[[str, int, str], None]


def no_step(stage: str, batch: int, step: str) -> None:
    """Ignore the step."""


class StageFrames(Protocol):
    """Frames that a stage derives from a micro-batch; `stage_query` builds them."""

    @property
    def is_stateful(self) -> bool:
        """Whether Spark keeps state for the stage: such a batch must be computed even if it is not written."""

    def rows(self, frame: DataFrame) -> DataFrame:
        """The stage's rows."""

    def record_headers(self) -> DataFrame | None:
        """Headers of the batch's records, by topic, partition and offset (see `StageInputs.headers_again`)."""

    def refused(self) -> Mapping[str, DataFrame]:
        """Undecodable records by source topic. Called after the rows are computed."""

    def late(self) -> tuple[str, DataFrame] | None:
        """The topic for late records, with those that Spark dropped. Called after the rows are computed."""

    def refused_by_tables(self) -> TableRefusals:
        """Undecodable records of tables' topics. Called once a batch, after the rows are computed."""


class BatchWriter:
    """Writes the micro-batches of one stage in sequence. Call `close` at the end of the query."""

    def __init__(
        self,
        session: SparkSession,
        loaded: Loaded,
        stage: Stage,
        analysis: Analysis,
        frames: StageFrames,
        bootstrap_servers: Brokers,
        on_step: OnStep = no_step,
    ) -> None:
        """A writer for queries started on `session`."""
        self._session = session
        self._loaded = loaded
        self._pipeline = loaded.pipeline.pipeline
        self._stage = stage
        self._analysis = analysis
        self._frames = frames
        self._servers = bootstrap_servers
        self._on_step = on_step
        self._outside = OutsideSinks(loaded, stage)
        self._reads_values = reads_record_values(stage)
        self._late: DataFrame | None = None
        self._unmade = set(made_when_needed(loaded.pipeline))
        self._transactions: ExactlyOnceTopics | None = None
        self._source_offsets: SourceOffsets | None = None
        options = WriteOptions.parse(connection_options(bootstrap_servers))
        if has_transactions(stage):
            self._transactions = ExactlyOnceTopics(options, stage_owner(self._pipeline, stage.name))
        elif stage.topic_inputs or topic_tables(loaded.pipeline, stage):
            self._source_offsets = SourceOffsets(options.client, self._pipeline, stage.name)

    def close(self) -> None:
        """Close the connections."""
        if self._transactions is not None:
            self._transactions.close()
        if self._source_offsets is not None:
            self._source_offsets.close()

    def write(self, frame: DataFrame, batch_id: int) -> Outcome:
        """Write a micro-batch unless it is already written. Called by foreachBatch, on its thread."""
        query = query_id(self._session)
        batch = Batch(query, batch_id, end_offsets(self._session, query, batch_id))
        self._on_step(self._stage.name, batch_id, "begun")
        if self._transactions is not None and self._transactions.step(batch) is Step.SKIP:
            if self._frames.is_stateful:
                frame.write.format("noop").mode("overwrite").save()  # its state is part of the checkpoint
            return Outcome(self._stage.name, 0, 0, {}, 0)
        outcome = self._compute_and_write(frame, batch)
        self._on_step(self._stage.name, batch_id, "done")
        return outcome

    def _compute_and_write(self, frame: DataFrame, batch: Batch) -> Outcome:
        from pyspark.sql import functions as f

        rows = self._frames.rows(frame)
        expected = expectations.of_stage(self._stage, rows.columns)
        rows = expectations.marked(rows, self._stage)
        if columns.VALUE in rows.columns and not self._reads_values:
            # Only dead letters need the original bytes: other rows are cached without them.
            value = f.when(f.col(columns.FAILED).isNotNull(), f.col(columns.VALUE))
            rows = rows.withColumn(columns.VALUE, value)
        rows.persist()
        try:
            counted = expectations.counts(rows, self._stage)  # computes all of them: the transaction has not begun yet
            self._fail_if_asked(rows, counted.unmet)
            self._warn(counted)
            refused = {topic: (found, found.count()) for topic, found in self._frames.refused().items()}
            self._on_step(self._stage.name, batch.number, "computed")
            tables = self._frames.refused_by_tables()
            letters, outcome = self._dead_letters(rows, refused, counted, expected)
            letters, outcome = self._with_tables(tables, letters, outcome)
            letters, outcome = self._with_late(letters, outcome)
            received = handed_out(expectations.met(rows), self._stage, counted.received)
            self._write(received, letters, outcome, batch, tables.ends)
            return outcome
        finally:
            rows.unpersist()
            if self._late is not None:
                self._late.unpersist()
                self._late = None

    def _make_topics(self, letters: list[TopicRecords]) -> None:
        """Create the topics of dead letters and late records with the first ones: most pipelines never have any."""
        needed = {letter.topic for letter in letters} & self._unmade
        if not needed:
            return
        with ClusterClient(WriteOptions.parse(connection_options(self._servers)).client) as cluster:
            for topic in sorted(needed):
                ensure_topic(cluster, topic, partitions=1, configs={})
        self._unmade -= needed

    def _write(
        self,
        received: Sequence[ReceivedRows],
        letters: list[TopicRecords],
        outcome: Outcome,
        batch: Batch,
        table_ends: Offsets,
    ) -> None:
        self._make_topics(letters)
        if outcome.written or self._stage.mode == "complete":  # an empty result replaces a table, too
            self._write_tables(received, batch)
        self._on_step(self._stage.name, batch.number, "tables_written")
        exactly_once = list(letters) if self._transactions is not None else []
        for share in received:
            sink = share.sink
            if not isinstance(sink, TopicSink) or not share.count:
                continue
            ordered = topic_sink.in_source_order(share.rows, sink, is_stateful=self._frames.is_stateful)
            encoding = self._analysis.encodings[sink.topic]
            encoding.ready()
            records = topic_sink.records(ordered, sink, encoding)
            if sink.guarantee == "exactly_once":
                exactly_once.append(TopicRecords(sink.topic, records, share.count, sink.compression))
            else:
                topic_sink.write_records(records, sink.topic, self._servers, sink.compression)
        ends = topic_offsets(batch.end_offsets, [source.topic for source in self._stage.topic_inputs])
        ends |= table_ends
        if self._transactions is not None:
            self._transactions.write(
                batch, exactly_once, ends, lambda step: self._on_step(self._stage.name, batch.number, step)
            )
            return
        for letter in letters:
            topic_sink.write_records(letter.records, letter.topic, self._servers)
        if self._source_offsets is not None:
            self._source_offsets.commit(batch.number, ends)

    def _write_tables(self, received: Sequence[ReceivedRows], batch: Batch) -> None:
        app_id = f"headwater/{self._pipeline}/{self._stage.name}/{batch.checkpoint}"
        metadata = user_metadata(self._pipeline, self._stage.name, batch)
        received[0].rows.sparkSession.conf.set(USER_METADATA_CONF, metadata)
        self._outside.write(received, app_id, batch.number)

    def _dead_letters(
        self,
        rows: DataFrame,
        refused: Mapping[str, tuple[DataFrame, int]],
        counted: expectations.Counts,
        expected: Sequence[Expectation],
    ) -> tuple[list[TopicRecords], Outcome]:
        stage, pipeline = self._stage, self._loaded.pipeline
        buried = {e.name: e.that for e in expected if e.otherwise == "dead_letter" and counted.unmet.get(e.name)}
        has_dead_letters = bool(buried) or any(count for _, count in refused.values())
        headers = self._frames.record_headers() if has_dead_letters else None  # most batches have none to keep
        letters = [
            TopicRecords(
                dead_letter_topic(topic), dead_letters.undecodable(found, self._pipeline, stage.name, headers), count
            )
            for topic, (found, count) in refused.items()
            if count
        ]
        if buried:
            failing = expectations.unmet(rows, buried)
            found = dead_letters.unmet(failing, self._pipeline, stage.name, buried, headers)
            letters.append(
                TopicRecords(row_dead_letters(pipeline, stage), found, sum(counted.unmet[name] for name in buried))
            )
        outcome = Outcome(
            stage.name,
            counted.written,
            sum(count for _, count in refused.values()),
            counted.of_all,
            sum(letter.count for letter in letters),
        )
        return letters, outcome

    def _with_tables(
        self, tables: TableRefusals, letters: list[TopicRecords], outcome: Outcome
    ) -> tuple[list[TopicRecords], Outcome]:
        """The batch's outcome, including the dead letters of the stage's tables."""
        own = []
        for topic, found in tables.refused.items():
            count = found.count()
            if count:
                records = dead_letters.undecodable(found, self._pipeline, self._stage.name, tables.headers[topic])
                own.append(TopicRecords(dead_letter_topic(topic), records, count))
        number = sum(letter.count for letter in own)
        outcome = replace(outcome, undecodable=outcome.undecodable + number, dead_letters=outcome.dead_letters + number)
        return [*letters, *own], outcome

    def _warn(self, counted: expectations.Counts) -> None:
        conditions = {expectation.name: expectation.that for expectation in self._stage.expect}
        for name, rows in counted.warned.items():
            logger.warning(
                "stage %s: %d rows that are written do not meet the expectation %s (%s)%s",
                self._stage.name,
                rows.count,
                name,
                conditions[name],
                _position(rows.first),
            )

    def _with_late(self, letters: list[TopicRecords], outcome: Outcome) -> tuple[list[TopicRecords], Outcome]:
        """The batch's outcome, including the records of late rows."""
        found = self._frames.late()
        if found is None:
            return letters, outcome
        topic, records = found
        self._late = records.persist()  # found by reading the batch again, which is done once
        count = self._late.count()
        if not count:
            return letters, outcome
        own = dead_letters.undecodable(self._late, self._pipeline, self._stage.name, self._frames.record_headers())
        return [*letters, TopicRecords(topic, own, count)], replace(outcome, late_records=count)

    def _fail_if_asked(self, rows: DataFrame, counted: Mapping[str, int]) -> None:
        from pyspark.sql import functions as f

        for expectation in self._stage.expect:
            if expectation.otherwise != "fail" or not counted.get(expectation.name):
                continue
            where = ""
            if columns.PARTITION in rows.columns and columns.OFFSET in rows.columns:
                first = rows.where(f.col(columns.FAILED) == expectation.name).orderBy(columns.PARTITION, columns.OFFSET)
                where = _position(first.select(columns.PARTITION, columns.OFFSET).first())
            raise PipelineFailed(
                f"stage {self._stage.name}: {counted[expectation.name]} rows do not meet the expectation "
                f"{expectation.name} ({expectation.that}){where}"
            )


def _position(first: Sequence[int] | None) -> str:
    """The end of a message about rows: the first's partition and offset, if they are known."""
    return "" if first is None else f"; the first is offset {first[1]} of partition {first[0]}"


def has_transactions(stage: Stage) -> bool:
    """Whether the stage's writes to topics are exactly-once; without topic sinks, its dead letters are."""
    guarantees = [sink.guarantee for sink in stage.topic_sinks]
    return not guarantees or "exactly_once" in guarantees
