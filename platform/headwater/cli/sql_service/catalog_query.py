"""One query over the catalog: judged, analysed, judged again, and run; and the sessions of the JVM that queries use."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, SqlFailure, SqlFailureCode, SqlQuery
from headwater.cli.sql.execution import failure_of, require_names
from headwater.cli.sql.statement_run import StatementRun
from headwater.cli.sql_service.connections import QueryWatch
from headwater.cli.sql_service.result_rows import encoded, encoder_of
from headwater.cli.sql_service.served_archives import ServedArchives, ServedState
from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.query_judge import StatementRefusal, judge_nesting
from headwater.pipelines.sql.query_plan import refusal_of_frame, refusal_of_text
from headwater.pipelines.sql.relations import Relations
from headwater.pipelines.sql.shared_views import LOG, TOPICS, ServedViews
from headwater.pipelines.sql.statement import analysed
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql_text import scanner
from headwater.pipelines.sql_text.scanner import Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CatalogSession", "CatalogSessions", "run_query"]

POOL_PROPERTY: Final = "spark.scheduler.pool"
MESSAGE_LENGTH_MAX: Final = 2_000
LOCK_LOOK_S: Final = 0.2
STUCK_S: Final = 60.0  # a planner that waits for a broker cannot be interrupted


@dataclass(frozen=True, slots=True)
class CatalogSession:
    """A Spark session for one query at a time, and its relations."""

    spark: SparkSession
    relations: Relations
    version: int = 0  # of the archives that the relations know


class CatalogSessions:
    """Sessions of one JVM, used again by later queries. Nothing of a query remains in one: it cannot set or create.

    Sessions share the views `topics.NAME` and `log.NAME`, and the tables `lake.NAME`. A statement that names one of
    these holds the lock of `views` from where its relations are made until they are analysed and dropped: else another
    would scan its ranges, or miss them.
    """

    def __init__(
        self,
        spark: SparkSession,
        relations: Callable[[SparkSession, ServedState], Relations],
        views: ServedViews,
        archives: ServedArchives,
    ) -> None:
        self._spark = spark
        self.views = views
        self._relations = relations
        self._archives = archives
        self._lock = threading.Lock()
        self._idle: list[CatalogSession] = []

    def take(self) -> CatalogSession:
        """A session for one query."""
        state = self._archives.now
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is not None and found.version == state.version:
            return found
        spark = self._opened() if found is None else found.spark
        return CatalogSession(spark, self._relations(spark, state), state.version)

    def _opened(self) -> SparkSession:
        spark = self._spark.newSession()
        # The judge refuses files as relations; here Spark knows none.
        spark.conf.set("spark.sql.runSQLOnFiles", "false")
        return spark

    def give_back(self, session: CatalogSession) -> None:
        """The query of a session has ended."""
        with self._lock:
            self._idle.append(session)


def run_query(
    sessions: CatalogSessions,
    query: SqlQuery,
    pool: int,
    bytes_max: int,
    send: Callable[[QueryEvent], None],
    watch: QueryWatch,
) -> None:
    """Run a query in a thread of its own, and send the events of its answer from this one.

    Raises SqlFailure, Cancelled, and what `send` raises. A session whose thread does not end is not used again.
    """
    statement = statement_of(query.statement)
    session = sessions.take()
    run = StatementRun(session.spark, lambda run: _work(run, sessions, session, query, statement, pool, bytes_max))
    run.start()
    try:
        watch.began(run.cancel)
        for event in run.chunks():
            send(event)
    finally:
        if run.is_alive:
            run.cancel()
        if run.wait(STUCK_S):
            sessions.give_back(session)


def statement_of(text: str) -> Statement:
    """The one statement of a text. Raises SqlFailure."""
    found = scanner.statements(text)
    if len(found) != 1:
        raise SqlFailure(SqlFailureCode.INVALID, f"one statement is run at a time, and there are {len(found)}")
    return found[0]


def _work(
    run: StatementRun,
    sessions: CatalogSessions,
    session: CatalogSession,
    query: SqlQuery,
    statement: Statement,
    pool: int,
    bytes_max: int,
) -> None:
    began = time.monotonic()
    try:
        session.spark.sparkContext.setLocalProperty(POOL_PROPERTY, f"headwater-sql-{pool}")
        frame = _judged(run, sessions, session, query, statement)
        require_names(frame.schema, keyed=False)
        run.put(QueryColumns(tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)))
        for event in _events(frame, query, bytes_max):
            is_end = isinstance(event, QueryEnd)
            run.put(dataclasses.replace(event, seconds=round(time.monotonic() - began, 3)) if is_end else event)
    except SqlFailure:
        raise
    except Exception as error:  # noqa: BLE001 - `failure_of` tells which are the statement's
        run.check()  # a cancelled job fails in Py4J's own way
        raise _failure(failure_of(error, session.relations, statement)) from None


def _events(frame: DataFrame, query: SqlQuery, bytes_max: int) -> Iterator[Any]:
    """The encoded rows of a frame, and the end.

    A Python worker encodes them and stops at the limits, so that the JVM never holds more than `bytes_max` of a result:
    Spark hands a partition's rows to the driver at once.
    """
    form, schema, row_limit = query.form, frame.schema, query.row_limit
    encoder_of(form, schema)  # fails here for a type that Arrow does not have

    def encode(rows: Iterator[Any]) -> Iterator[Any]:
        return encoded(rows, encoder_of(form, schema), row_limit, bytes_max)

    # Spark drops a limit that it knows to be met, and there are several partitions then.
    limited: Any = frame.limit(row_limit + 1).coalesce(1)
    # `rdd` runs the query up to its last shuffle. It is a cached_property, which in Python 3.11 holds one lock for all
    # frames: its function lets other queries begin meanwhile.
    found = type(limited).rdd.func(limited).mapPartitions(encode).toLocalIterator()
    return iter(found)


def _judged(
    run: StatementRun, sessions: CatalogSessions, session: CatalogSession, query: SqlQuery, statement: Statement
) -> DataFrame:
    """Analyse a statement that is permitted. Raises SqlFailure, and what `analysed` raises."""
    _require(judge_nesting(statement.text), statement)
    _require(refusal_of_text(session.spark, statement.text), statement)
    run.check()
    with contextlib.ExitStack() as held:
        if names_shared(statement.text):
            while not sessions.views.lock.acquire(timeout=LOCK_LOOK_S):
                run.check()
            held.callback(sessions.views.lock.release)
        held.callback(session.relations.end)  # the plan has them; other statements must not
        frame = analysed(session.spark, session.relations, statement, query.parameters)
        _require(refusal_of_frame(frame, session.relations.made), statement)
    run.check()
    return frame


def names_shared(text: str) -> bool:
    """Whether a statement may name a relation that sessions share: wherever the words stand.

    `IDENTIFIER('log.a')` has the name in a text.

    >>> names_shared("SELECT * FROM `LOG`.a"), names_shared("SELECT 'log' FROM flights")
    (True, False)
    >>> names_shared(r"SELECT * FROM identifier('\\u006cog.a')")
    True
    """
    code = (token for token in scanner.tokens(text) if token.kind is not scanner.SqlTokenKind.COMMENT)
    return any(token.name.lower() in (TOPICS, LOG, LAKE, "identifier") for token in code)


def _require(refusal: StatementRefusal | None, statement: Statement) -> None:
    if refusal is not None:
        place = statement.place(refusal.at) if refusal.at is not None else None
        raise SqlFailure(SqlFailureCode.NOT_PERMITTED, refusal.reason, place)


def _failure(error: Exception) -> SqlFailure:
    """The failure that a client is told: a line."""
    if isinstance(error, StatementError):
        code = SqlFailureCode.INVALID if error.is_users else SqlFailureCode.FAILED
        return SqlFailure(code, error.message[:MESSAGE_LENGTH_MAX], error.place)
    line = " ".join(str(error).split())[:MESSAGE_LENGTH_MAX] or type(error).__name__
    return SqlFailure(SqlFailureCode.FAILED, line)
