"""Runs a stage over the rows of a test, as a batch or as a stream, and collects its output.

Of its sinks, only the Delta sinks whose tables the test compares are written, to a temporary folder.

A stream runs to the end of its rows, micro-batch by micro-batch, with its own checkpoint; Spark adds batches without
rows after the watermark has advanced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.dead_letters import frames as dead_letters
from headwater.pipelines.dead_letters import headers as dead_letter_headers
from headwater.pipelines.definition import Loaded, Stage, TopicSource
from headwater.pipelines.definition.graph import dead_letter_topic, row_dead_letters
from headwater.pipelines.engine.stage_query import is_stateless
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.collected_rows import rows_of
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.testing.feeding import Feed
from headwater.pipelines.testing.sink_tables import ROWS_MAX, SinkTables
from headwater.pipelines.transforms import expectations
from headwater.pipelines.transforms.chain import Chain
from headwater.pipelines.transforms.received_rows import handed_out, without_marks
from headwater.pipelines.transforms.stateful import STATE_STORE_CONF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_SECONDS_MAX: Final = 600


@dataclass(slots=True)
class Observed:
    """A stage's output for a test's rows. `error` is its failure, '' without one.

    `tables` are the rows of the compared tables by their sink's path.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    letters: list[dict[str, Any]] = field(default_factory=list)
    stopped_by: str = ""
    error: str = ""


class _Stopped(Exception):  # noqa: N818 - as a run's stage stops
    """An expectation with `otherwise: fail` is violated."""


class StageRun:
    """Runs a stage once over the inputs of `feeds`, in a session with its tables as views."""

    def __init__(
        self,
        session: SparkSession,
        loaded: Loaded,
        stage: Stage,
        analysis: Analysis,
        feeds: Sequence[Feed],
        tables: SinkTables,
    ) -> None:
        self._session = session
        self._loaded = loaded
        self._stage = stage
        self._chain: Chain = analysis.chains[stage.name]
        self._feeds = feeds
        self._tables = tables
        self._seen = Observed()
        self._failure: BaseException | None = None

    def keeps_state(self) -> bool:
        """Whether the stage as a stream keeps state."""
        rows = self._chain.apply_to_streams([feed.stream() for feed in self._feeds])
        return not is_stateless(jvm.analyzed_plan(rows))

    def as_batch(self) -> Observed:
        """Run over all rows at once."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            self._take(self._chain.apply_to_streams([feed.batch() for feed in self._feeds]), 0)
            self._take_undecodable()
        except _Stopped:
            pass
        except (PySparkException, Py4JError, ValueError) as error:
            self._seen.error = self._said(error)
        return self._with_tables()

    def as_stream(self, folder: str) -> Observed:
        """Run micro-batch by micro-batch; `folder` is for the checkpoint."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if self._chain.keeps_user_state:
            for name, value in STATE_STORE_CONF.items():
                self._session.conf.set(name, value)
        query = None
        try:
            rows = self._chain.apply_to_streams([feed.stream() for feed in self._feeds])
            query = (
                rows.writeStream.option("checkpointLocation", os.path.join(folder, "checkpoint"))
                .outputMode(self._stage.mode)
                .trigger(availableNow=True)
                .foreachBatch(self._batch)
                .start()
            )
            if not query.awaitTermination(RUN_SECONDS_MAX):
                self._seen.error = f"the stage has not come to its end within {RUN_SECONDS_MAX} s"
            self._take_undecodable()
        except (PySparkException, Py4JError, ValueError) as error:
            if not isinstance(self._failure, _Stopped):
                self._seen.error = self._said(self._failure or error)
        finally:
            if query is not None:
                query.stop()
        return self._with_tables()

    def _with_tables(self) -> Observed:
        """The output including the tables, as all micro-batches have left them."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if not self._seen.error:
            try:
                self._seen.tables = self._tables.rows()
            except (PySparkException, Py4JError, ValueError) as error:
                self._seen.error = self._said(error)
        return self._seen

    def _said(self, error: BaseException) -> str:
        return self._loaded.redacted(first_line(error))

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback. Spark calls it on its own thread and shows only the text of its exceptions."""
        try:
            if self._stage.mode == "complete":
                self._seen.rows, self._seen.unmet = [], {}  # each batch has all rows
            self._take(frame, batch_id)
        except BaseException as error:
            self._failure = error
            raise

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        """Collect and write a batch's rows that are written; count unmet expectations, and collect dead letters."""
        unmarked = self._chain.apply_to_batch(frame)
        expected = expectations.of_stage(self._stage, unmarked.columns)
        rows = expectations.marked(unmarked, self._stage).persist()
        try:
            warnings = expectations.warnings(self._stage)
            found = rows_of(without_marks(rows, but_for=warnings).limit(ROWS_MAX + 1))
            if len(found) > ROWS_MAX:
                raise ValueError(f"the stage writes more than {ROWS_MAX:,} rows, and a test compares no more")
            counted: dict[str, int] = {}
            for row in found:
                failed = row.pop(columns.FAILED)
                unmet = [expectation.name for mark, expectation in warnings.items() if row.pop(mark)]
                if failed is None:
                    self._seen.rows.append(row)
                for name in unmet if failed is None else [failed]:
                    counted[name] = counted.get(name, 0) + 1
            for name, count in counted.items():
                self._seen.unmet[name] = self._seen.unmet.get(name, 0) + count
            for expectation in self._stage.expect:
                if expectation.otherwise == "fail" and counted.get(expectation.name):
                    self._seen.stopped_by = expectation.name
                    raise _Stopped(expectation.name)
            self._write(rows, batch_id)
            buried = {e.name: e.that for e in expected if e.otherwise == "dead_letter" and e.name in counted}
            if buried:
                failing = expectations.unmet(rows, buried)
                topic = row_dead_letters(self._loaded.pipeline, self._stage)
                letters = dead_letters.unmet(failing, self._loaded.pipeline.pipeline, self._stage.name, buried)
                self._take_letters(letters, topic)
        finally:
            rows.unpersist()

    def _write(self, marked: DataFrame, batch_id: int) -> None:
        """Write a batch to the compared tables, each with the rows that its sink receives."""
        if not self._tables.is_empty:
            counts = expectations.counts(marked, self._stage).received
            self._tables.write(handed_out(expectations.met(marked), self._stage, counts), batch_id)

    def _take_undecodable(self) -> None:
        for feed, source in zip(self._feeds, self._stage.inputs, strict=True):
            refused = feed.undecodable()
            if refused is not None:
                assert isinstance(source, TopicSource), "others have no records"
                letters = dead_letters.undecodable(refused, self._loaded.pipeline.pipeline, self._stage.name)
                self._take_letters(letters, dead_letter_topic(source.topic))

    def _take_letters(self, letters: DataFrame, topic: str) -> None:
        for row in rows_of(letters):
            headers = {header["key"]: (header["value"] or b"").decode() for header in row["headers"] or ()}
            self._seen.letters.append({
                "topic": topic,
                "error": headers.get(dead_letter_headers.ERROR),
                "stage": headers.get(dead_letter_headers.STAGE),
                "expectation": headers.get(dead_letter_headers.EXPECTATION),
                "source_topic": headers.get(dead_letter_headers.TOPIC),
                "source_partition": _number(headers.get(dead_letter_headers.PARTITION)),
                "source_offset": _number(headers.get(dead_letter_headers.OFFSET)),
                "key": dead_letter_part(row["key"]),
                "value": dead_letter_part(row["value"]),
            })  # fmt: skip


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def dead_letter_part(data: bytes | str | None) -> Any:
    """A dead letter's key or value: JSON objects and arrays parsed, other text unchanged, or bytes."""
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError:
            return data
    if data is None or not data.lstrip().startswith(("{", "[")):
        return data
    try:
        return json.loads(data)
    except ValueError:
        return data
