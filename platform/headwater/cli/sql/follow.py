"""`--follow`: prints what comes to the topics that a statement reads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.cli.messages.start_offset import StartKind, StartOffset, parse_start, resolve
from headwater.cli.shell.errors import CliError
from headwater.cli.sql.execution import ResultColumns, chunked, failure_of, require_names
from headwater.cli.sql.statement_run import StatementRun
from headwater.cli.sql.values import row_values
from headwater.pipelines.definition import TopicSource
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.statement import analysed, is_query
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql.streams import require_bounded
from headwater.pipelines.sql_text.scanner import Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.api.topic_model import PartitionOffsets
    from headwater.pipelines.sql.relations import Relations

__all__ = ["Follower", "parse_from", "start_of", "with_history"]

_KAFKA_WORDS: Final = {"earliest": StartKind.START, "latest": StartKind.END}
STOP_POLL_S: Final = 1


class Offsets(Protocol):
    """Lists a topic's first and next offsets, by partition."""

    def __call__(self, name: str, /) -> Sequence[PartitionOffsets]:
        """Raises the administration client's errors."""


def parse_from(text: str) -> StartOffset:
    """Parse `--from`: the positions of `headwater consume -o`, and `earliest` and `latest`. Raises CliError.

    >>> parse_from("latest").kind.value, parse_from("-10").number
    ('end', 10)
    """
    if text in _KAFKA_WORDS:
        return StartOffset(_KAFKA_WORDS[text])
    try:
        return parse_start(text)
    except ValueError as error:
        raise CliError("sql", f"--from: {error}") from None


def start_of(start: StartOffset, offsets: Offsets) -> Callable[[str], TopicSource]:
    """The source of a topic that begins at a position."""

    def source(topic: str) -> TopicSource:
        if start.kind is StartKind.START:
            return TopicSource.model_validate({"topic": topic, "starting_offsets": "earliest"})
        if start.kind is StartKind.END:
            return TopicSource.model_validate({"topic": topic, "starting_offsets": "latest"})
        if start.kind is StartKind.TIMESTAMP:
            moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=start.number)
            return TopicSource.model_validate({"topic": topic, "starting_offsets": moment})
        found = {str(each.partition): resolve(start, each.earliest, each.latest) for each in offsets(topic)}
        return TopicSource.model_validate({"topic": topic, "starting_offsets": found})

    return source


def with_history(offsets: Offsets, first_of: Callable[[str], Mapping[int, int] | None]) -> Offsets:
    """The same offsets; those of an archived topic begin with its history, at what `first_of` returns."""

    def listed(name: str) -> Sequence[PartitionOffsets]:
        found, first = offsets(name), first_of(name) or {}
        return [dataclasses.replace(each, earliest=first.get(each.partition, each.earliest)) for each in found]

    return listed


class Follower:
    """A statement as a streaming query, whose rows are printed as they come.

    The state and the checkpoint are in a folder that ends with the command: a later one begins at `--from` again.
    """

    def __init__(
        self, spark: SparkSession, relations: Relations, values: dict[str, Any], *, keyed: bool = False
    ) -> None:
        """`keyed` is that of the output."""
        self._spark = spark
        self._relations = relations
        self._values = values
        self._keyed = keyed

    def start(self, statement: Statement) -> StatementRun:
        """Start the query in a thread of its own."""
        run = StatementRun(self._spark, lambda run: self._work(run, statement))
        run.start()
        return run

    def _work(self, run: StatementRun, statement: Statement) -> None:
        if not is_query(statement.text):  # a command would run while it is analysed
            raise StatementError("--follow: only a query can be followed, and the statement is none")
        try:
            self._answer(run, statement)
        except Exception as error:  # noqa: BLE001 - `failure_of` tells which are the statement's
            run.check()
            raise failure_of(error, self._relations, statement) from None

    def _answer(self, run: StatementRun, statement: Statement) -> None:
        frame = analysed(self._spark, self._relations, statement, self._values)
        if not frame.isStreaming:
            raise StatementError("--follow: the statement reads no topic, so nothing comes")
        require_bounded(self._spark, jvm.analyzed_plan(frame))
        require_names(frame.schema, keyed=self._keyed)
        run.put(ResultColumns(frame.columns))
        with tempfile.TemporaryDirectory(prefix="headwater-follow-") as folder:
            self._follow(run, frame, os.path.join(folder, "checkpoint"))

    @staticmethod
    def _follow(run: StatementRun, frame: DataFrame, checkpoint: str) -> None:
        values = row_values(frame.schema)

        def show(rows: DataFrame, _batch: int) -> None:
            for chunk in chunked(map(values, rows.toLocalIterator())):
                run.put(chunk)

        query = frame.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint).start()
        try:
            while not query.awaitTermination(STOP_POLL_S):
                run.check()
        finally:
            query.stop()
