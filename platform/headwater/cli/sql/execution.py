"""Runs one statement and prints its result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.shell.output import note
from headwater.cli.sql import listing
from headwater.cli.sql.outputs import PARQUET, Output
from headwater.cli.sql.parquet_file import write_parquet
from headwater.cli.sql.statement_run import StatementRun
from headwater.cli.sql.values import equal_names, row_values
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.statement import analysed, failed, planned_lines
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql.table_locks import CHANGES
from headwater.pipelines.sql_text.scanner import Statement, words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.sql.relations import Relations

__all__ = ["Executor", "ResultColumns", "chunked", "failure_of", "may_commit", "require_names", "show_chunks"]

CHUNK_ROWS_MAX: Final = 1_000
CHUNK_S_MAX: Final = 0.2  # rows that have come are shown after this time
#: First words of statements that change nothing, whatever follows.
_HARMLESS_FIRST: Final = frozenset(
    {"SELECT", "TABLE", "VALUES", "MAP", "REDUCE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"}
)
_AS_TEXT: Final = "a time outside of the years 1 to 9999 is shown by CAST(… AS STRING)"


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns of a result; its rows follow."""

    names: Sequence[str]


def may_commit(text: str) -> str:
    """The word by which a statement may change something; '' if it certainly changes nothing.

    >>> may_commit("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a"), may_commit("SELECT 'INSERT'")
    ('INSERT', '')
    >>> may_commit("EXECUTE IMMEDIATE 'INSERT INTO t VALUES (1)'"), may_commit("CONVERT TO DELTA parquet.`/x`")
    ('EXECUTE', 'CONVERT')
    """
    seen = words(text)
    if not seen or seen[0] in _HARMLESS_FIRST:
        return ""
    if seen[0] in ("WITH", "FROM"):
        return next((word for word in seen if word in CHANGES), "")
    return seen[0]


def require_names(schema: Any, *, keyed: bool) -> None:
    """Raise StatementError if columns or fields of equal names would hide each other."""
    same = equal_names(schema, keyed=keyed)
    if same:
        raise StatementError(f"several columns or fields are named {', '.join(same)}: rename them with AS")


def chunked(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Collect rows to chunks by number and time."""
    chunk: list[tuple[Any, ...]] = []
    began = time.monotonic()
    for row in rows:
        chunk.append(row)
        if len(chunk) >= CHUNK_ROWS_MAX or time.monotonic() - began >= CHUNK_S_MAX:
            yield chunk
            chunk, began = [], time.monotonic()
    if chunk:
        yield chunk


def show_chunks(run: StatementRun, output: Output) -> int | None:
    """Print a run's chunks as they come; returns the number of rows, None for a statement without columns."""
    count: int | None = None
    is_printed = False
    try:
        for chunk in run.chunks():
            if isinstance(chunk, ResultColumns):
                is_printed, count = True, 0
                output.begin(chunk.names)
            elif isinstance(chunk, int):
                count = chunk  # rows in a file
            else:
                assert count is not None, "the header comes first"
                output.rows(chunk)
                count += len(chunk)
    finally:
        if is_printed:
            output.end()
    return count


@dataclass(slots=True)
class Executor:
    """The statements of one session: their parameters, and the format of their results.

    `to` is the file of `-o parquet`, which takes one result.
    """

    spark: SparkSession
    relations: Relations
    output: Output
    values: Mapping[str, Any] = field(default_factory=dict)
    to: str = ""
    _has_written: bool = False

    def start(self, statement: Statement) -> StatementRun:
        """Start a statement in a thread of its own."""
        run = StatementRun(self.spark, lambda run: self._work(run, statement))
        run.start()
        return run

    def show(self, run: StatementRun) -> int | None:
        """Print the result as it comes; returns the number of rows, None for a statement without columns.

        Raises StatementError, and the errors of the function that lists topics.
        """
        count = show_chunks(run, self.output)
        for name in self.relations.missing:
            note(f"{name}: there is no Delta table at {self.relations.known.lake[name]} yet")
        return count

    # -- in the statement's thread -------------------------------------------------------------------------------------

    def _work(self, run: StatementRun, statement: Statement) -> None:
        try:
            self._answer(run, statement)
        except Exception as error:  # noqa: BLE001 - `failure_of` tells which are the statement's
            run.check()  # a cancelled job fails in Py4J's own way
            raise failure_of(error, self.relations, statement) from None

    def _answer(self, run: StatementRun, statement: Statement) -> None:
        listed = self._listed(statement)
        if listed is not None:
            run.put(ResultColumns(listing.COLUMNS))
            run.put([tuple(each) for each in listed])
            return
        offsets = [] if self.to else planned_lines(self.spark, self.relations, statement, self.values)
        explained = self.relations.frames if offsets else None  # Spark's plan is of the same state
        told: list[str] = []

        def waits(table: str) -> None:
            run.check()
            if table not in told:
                told.append(table)
                note(f"another process changes {table}: the statement waits")

        frame = analysed(self.spark, self.relations, statement, self.values, waits=waits, frames=explained)
        if not frame.columns:
            return
        run.check()
        if self.to:
            self._write(run, frame)
            return
        require_names(frame.schema, keyed=self.output.keyed)
        run.put(ResultColumns(frame.columns))
        for chunk in self._fetched(frame):
            run.put(chunk)
        if offsets:  # of EXPLAIN
            run.put([(line,) for line in offsets])

    def _listed(self, statement: Statement) -> list[listing.Relation] | None:
        asked = listing.parse_listing(statement.text)
        if asked is None or self.to:
            return None

        def of_spark() -> list[listing.Relation]:
            return [listing.Relation(*row) for row in self.spark.sql("SHOW TABLES").collect()]

        return listing.relations_listed(asked, self.relations, of_spark)

    def _fetched(self, frame: DataFrame) -> Iterator[list[tuple[Any, ...]]]:
        most, values = self.output.rows_max, row_values(frame.schema)
        if most is None:
            return chunked(map(values, frame.toLocalIterator()))
        return iter([[values(row) for row in frame.limit(most + 1).collect()]])

    def _write(self, run: StatementRun, frame: DataFrame) -> None:
        if self._has_written:
            raise StatementError(f"-o {PARQUET} takes the result of one statement, and an earlier one has written it")
        count = write_parquet(frame, self.to)
        self._has_written = True
        run.put(count)


def failure_of(error: Exception, relations: Relations, statement: Statement) -> Exception:
    """The statement's failure: one line, so that a script can go on. The listing's errors and Spark's end remain."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        return failed(error, relations, statement)
    if isinstance(error, Py4JJavaError):  # PySpark has no class for it
        return StatementError(relations.reason(error) or first_line(error), is_users=False)
    if isinstance(error, OverflowError | ValueError):
        return StatementError(f"a value has no form in Python ({first_line(error)}): {_AS_TEXT}", is_users=False)
    return error
