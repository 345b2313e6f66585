"""Makes the relations that a statement names when it names them: topics, records of the log, Delta tables.

| name | relation |
|---|---|
| `NAME` | the topic (`topic_rows`), or its unified table; else the pipeline's table, else the Delta table |
| `topics.NAME` | in the SQL service, the same as `NAME` where that is a topic |
| `log.NAME` | the records of the topic as the log holds them; needs a session from `session_conf` |
| `lake.NAME` | the Delta table: a table of the session's catalog, so that statements can change it |

Names with a schema are known to all sessions of the JVM (`shared_views`). Each statement has its own relations.
Temporary views that the user has created are never replaced: Spark's catalog tells which they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from headwater.pipelines.columns import quoted
from headwater.pipelines.definition import Loaded
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql import topic_rows
from headwater.pipelines.sql.lake_tables import LAKE, lake_table
from headwater.pipelines.sql.registry_columns import Registered
from headwater.pipelines.sql.shared_views import GLOBAL_DATABASE, LOG, LogViews, SharedViews
from headwater.pipelines.sql.statement_errors import StatementError, missing_format
from headwater.pipelines.sql.topic_names import AmbiguousTopicError, TopicNames
from headwater.pipelines.sql.topic_tables import topic_table
from headwater.pipelines.sql_text import scanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers

__all__ = [
    "Known",
    "PresentFrames",
    "RelationError",
    "Relations",
    "StatementRelations",
    "TakenError",
    "TopicFrames",
    "UnreadableRelationError",
    "session_conf",
]

#: First words of statements that read what they name, and change at most another table.
_READING: Final = frozenset({
    "SELECT", "WITH", "FROM", "TABLE", "VALUES", "MAP", "REDUCE", "EXPLAIN", "INSERT", "CREATE", "REPLACE", "MERGE",
})  # fmt: skip
TABLE_NAME: Final = re.compile(r"\w+")  # what Spark's catalog accepts


class RelationError(Exception):
    """A name cannot be made a relation; the message is one line."""


class UnreadableRelationError(RelationError):
    """The name stands for a relation that cannot be read, by the user's mistake or because something failed."""

    def __init__(self, message: str, *, is_users: bool = True) -> None:
        super().__init__(message)
        self.is_users = is_users


class TakenError(RelationError):
    """The catalog has another table of this name."""


def session_conf() -> dict[str, str]:
    """The settings of a session in which `log.NAME` is known."""
    return {GLOBAL_DATABASE: LOG}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the relations before a statement names them.

    Attributes:
        columns: Columns of the topics and tables that a pipeline declares.
        loaded: The pipeline, if there is one.
        tables: Paths of Delta tables by name.
        archives: Paths of archives' tables by the name that they have in `lake`.
        registered: Columns of a topic by a schema registry; None if it has none.
    """

    columns: KnownColumns = field(default_factory=lambda: KnownColumns({}))
    loaded: Loaded | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    registered: Callable[[str], Registered | None] = lambda _topic: None
    archives: Mapping[str, str] = field(default_factory=dict)

    @property
    def lake(self) -> Mapping[str, str]:
        """Paths of the tables that `lake.NAME` stands for."""
        return {**self.archives, **self.tables}


class TopicFrames(Protocol):
    """The frames that topics' names stand for.

    With `pushdown`, filters narrow the offsets to read; Spark must scan the frame once only.
    """

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`."""

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:
        """`log.NAME`."""

    def of_statement(self) -> TopicFrames:
        """The frames of one statement, whose scans agree on what they have decided."""

    def decided_lines(self) -> list[str]:
        """What these frames have decided, as lines of EXPLAIN."""

    def reason(self, error: Exception, statement: str) -> str:
        """Why a statement of these frames failed, where Spark's error does not tell; '' if it does."""


class PresentFrames:
    """The records that topics have when a query is planned. One of a statement has one frame for all names of a topic.

    With `is_kept`, frames become views, and do not narrow.
    """

    def __init__(self, spark: SparkSession, where: Brokers, *, is_kept: bool = False) -> None:
        self._spark = spark
        self._where = where
        self._is_kept = is_kept
        self._made: dict[tuple[str, bool], DataFrame] = {}

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`."""
        narrows = pushdown and not self._is_kept
        frame = self._made.get((topic, narrows))
        if frame is None:
            frame = self._made[topic, narrows] = topic_rows.present(
                self._spark, self._where, topic, known, pushdown=narrows, is_kept=self._is_kept
            )
        return frame

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:
        """`log.NAME`."""
        return topic_rows.log_records(
            self._spark, self._where, topic, pushdown=pushdown and not self._is_kept, is_kept=self._is_kept
        )

    def of_statement(self) -> TopicFrames:
        """Those of another statement."""
        return PresentFrames(self._spark, self._where, is_kept=self._is_kept)

    def decided_lines(self) -> list[str]:
        """Nothing."""
        return []

    def reason(self, error: Exception, statement: str) -> str:  # noqa: ARG002 - Spark's error tells
        """None."""
        return ""


@dataclass(slots=True, eq=False)
class StatementRelations:
    """What one statement names, and has been made for it.

    Attributes:
        text: The statement.
        users: The temporary views that the user has created, in lower case.
        target: The temporary view that the statement creates or drops; None if it does neither.
        pushdown: See `TopicFrames`.
        made: The names for which there are views.
        tables: The names, in lower case, of the tables of `lake` that it reads or changes.
        earlier: Names of earlier statements, which a view of the user's may name.
        missing: The Delta tables that it names and that are not there yet.
        frames: The frames of its topics.
    """

    text: str
    frames: TopicFrames
    users: frozenset[scanner.Name] = frozenset()
    target: scanner.Name | None = None
    pushdown: bool = False
    made: dict[scanner.Name, None] = field(default_factory=dict)
    tables: set[scanner.Name] = field(default_factory=set)
    earlier: Sequence[scanner.Name] = ()
    missing: list[str] = field(default_factory=list)


class Relations:
    """The relations of one session. Thread-safe; a statement that goes on after a later one has begun is refused.

    No lock is held while a broker, a registry or a table is asked.
    """

    def __init__(
        self,
        spark: SparkSession,
        where: Brokers,
        topics: TopicNames,
        known: Known,
        frames: TopicFrames | None = None,
        shared: SharedViews | None = None,
    ) -> None:
        """`shared` makes the names with a schema; by default, a session from `session_conf` has `log.NAME`."""
        self._spark = spark
        self._where = where
        self._frames = frames if frames is not None else PresentFrames(spark, where)
        self._lock = threading.Lock()
        self.topics = topics
        self.known = known
        self._views: dict[scanner.Name, scanner.Name] = {}
        self._places: dict[str, str] = {}
        self._current = StatementRelations("", self._frames.of_statement())
        self._columns: dict[scanner.Name, tuple[str, ...]] = {}
        if shared is None and spark.conf.get(GLOBAL_DATABASE) == LOG:
            shared = LogViews(spark)
        self._shared = shared

    # -- statements ----------------------------------------------------------------------------------------------------

    def begin(self, text: str, frames: TopicFrames | None = None) -> StatementRelations:
        """Begin a statement: the views of the one before go, which have its ranges. What remains is the user's.

        `frames` are those of an earlier statement, whose decisions this one shares.
        """
        with self._lock:
            before = self._drop_views()
            users = jvm.temporary_views(self._spark, "" if self._shared is None else self._shared.user_schema)
            frames = self._frames.of_statement() if frames is None else frames
            self._current = StatementRelations(text, frames, users, scanner.target_of_view(text, LOG))
            if users:  # a user's view may name any of them
                self._current.earlier = before
            return self._current

    def prepare(self, statement: StatementRelations, *, pushdown: bool = False) -> None:
        """Make the relations that a statement names where its words show it. For `pushdown` see `TopicFrames`.

        If no broker answers, only what does not need one is made, and `make` raises the error for a name that Spark
        then misses. Raises Spark's errors about the pipeline's tables, AmbiguousTopicError, and TakenError.
        """
        statement.pushdown = pushdown
        is_drop = scanner.words(statement.text)[:1] == ["DROP"]
        for name in scanner.names(statement.text):
            if is_drop and name[0].lower() == LAKE:
                continue
            try:
                self._bring(statement, name, is_certain=False)
            except TakenError:
                raise
            except UnreadableRelationError:
                if self._has_table(name) or self._is_kept(name):  # which Spark would read instead
                    raise
            except _NoTopicsError as error:
                if self._is_kept(name):
                    raise error.reason from None
            except RelationError:
                continue  # the name may be a column's; Spark misses it if it is a relation's
        made = {_key(name) for name in statement.made}
        for name in statement.earlier:
            # Of topics that differ in case only, the statement may name another where its words do not show it.
            with contextlib.suppress(_NoTopicsError, RelationError):
                if _key(name) not in made and self._is_one(name[-1]):
                    self._bring(statement, name, is_certain=False)

    def make(self, statement: StatementRelations, name: scanner.Name) -> bool:
        """Make a relation that Spark misses; whether there is one of this name. Raises RelationError and the listing's.

        Asks for the topics anew: one may have been created since the last answer.
        """
        try:
            return self._bring(statement, name, is_certain=True)
        except _NoTopicsError as error:
            raise error.reason from None

    def make_again(self, statement: StatementRelations) -> None:
        """Make the statement's relations again, to be scanned any number of times."""
        statement.pushdown = False
        for name in list(statement.made):
            self._bring(statement, name, is_certain=False)

    def end(self) -> None:
        """Drop the last statement's views, which would hide the user's own tables."""
        with self._lock:
            self._drop_views()

    def _has_table(self, name: scanner.Name) -> bool:
        """Whether the session's catalog has a table of a name without schema."""
        schema = self._spark.catalog.currentDatabase()
        return len(name) == 1 and jvm.table_location(self._spark, schema, name[0]) is not None

    def _is_kept(self, name: scanner.Name) -> bool:
        """Whether there may be a view of this name that no statement has made."""
        return self._shared is not None and not self._shared.narrows and name[0].lower() in self._shared.schemas

    @property
    def made(self) -> frozenset[scanner.Name]:
        """The names, in lower case, that the last statement has relations of its own for."""
        return frozenset(map(_key, self._current.made)) | self._current.tables

    @property
    def frames(self) -> TopicFrames:
        """The frames of the last statement."""
        return self._current.frames

    def reason(self, error: Exception) -> str:
        """Why the last statement failed, where Spark's error does not tell; '' if it does."""
        return self._current.frames.reason(error, self._current.text)

    @property
    def missing(self) -> list[str]:
        """The Delta tables that the last statement names and that are not there yet."""
        return self._current.missing

    def _bring(self, statement: StatementRelations, name: scanner.Name, *, is_certain: bool) -> bool:
        if len(name) == 2 and name[0].lower() == LAKE:
            is_table = self._lake(statement, name[1])
            if is_table:
                statement.tables.add(_key(name))
            return is_table
        is_shared = len(name) == 2 and name[0].lower() in ({LOG} if self._shared is None else self._shared.schemas)
        key = _key(name)
        if (not is_shared and len(name) != 1) or key in statement.users or key == statement.target:
            return False
        rows = self._rows(statement, name, is_certain=is_certain)
        if rows is None:
            return False
        self._require_one_case(statement, name)
        statement.made[name] = None
        self._view(statement, name, rows)
        return True

    def _is_one(self, topic: str) -> bool:
        try:
            return sum(each.lower() == topic.lower() for each in self.topics.all()) <= 1
        except Exception as error:  # noqa: BLE001 - the listing's own
            raise _NoTopicsError(error) from None

    def _require_one_case(self, statement: StatementRelations, name: scanner.Name) -> None:
        """Raise AmbiguousTopicError if the statement names two topics that Spark takes for one."""
        for other in statement.made:
            if other != name and _key(other) == _key(name):
                topics = sorted({found for each in (other, name) if (found := self.topics.match(each[-1])) is not None})
                if len(topics) > 1:
                    both = " and ".join(topics)
                    raise AmbiguousTopicError(f"{both} differ in case only, which Spark ignores: use two statements")

    def _rows(self, statement: StatementRelations, name: scanner.Name, *, is_certain: bool) -> DataFrame | None:
        """The rows of a name. They are read anew for each statement.

        Spark plans the ranges of a relation of a Python source once, so that a kept view would show old records; and a
        table may have other columns, or be there at last.
        """
        topic = self._topic(name[-1], is_certain=is_certain)
        if len(name) == 2:
            if topic is None:
                return None
            if self._shared is None:
                raise RelationError(
                    f"log.{topic} needs a session with {GLOBAL_DATABASE}={LOG}; headwater.table(spark, 'log.{topic}') "
                    "has the same records"
                )
            pushdown = statement.pushdown and self._shared.narrows
            if name[0].lower() == LOG:
                return statement.frames.log(topic, pushdown=pushdown)
            return self._of_topic(statement.frames, topic, pushdown=pushdown)
        if topic is not None:
            return self._of_topic(statement.frames, topic, pushdown=statement.pushdown)
        rows = self._pipeline_table(name[0])
        known = self._table(name[0])
        if rows is not None:
            return rows
        return self._topic_table(statement, name[0]) if known is None else self._delta(known, statement.missing)

    def _topic_table(self, statement: StatementRelations, name: str) -> DataFrame | None:
        """The rows of a table of `USING headwater`, for statements that read; others mean the table itself."""
        if not _READING & set(scanner.words(statement.text)[:1]):
            return None
        with self._lock:
            # A view of the first analysis hides the table.
            if statement is self._current and self._views.pop((name.lower(),), None) is not None:
                self._spark.catalog.dropTempView(name)
        return topic_table(self._spark, name, pushdown=statement.pushdown)

    def _topic(self, name: str, *, is_certain: bool) -> str | None:
        try:
            return self.topics.match(name, anew=is_certain)
        except Exception as error:  # noqa: BLE001 - the listing's own
            if self._pipeline_table(name) is not None or self._table(name) is not None:
                return None
            raise _NoTopicsError(error) from None

    def _lake(self, statement: StatementRelations, name: str) -> bool:
        """Make a Delta table a table of the catalog; whether there is one of this name. Raises TakenError.

        A catalog that outlives the session may have a table of this name already, with files of its own.
        """
        known = self._lake_table(name)
        if known is None:
            return False
        path = self.known.lake[known]
        if self._shared is None:
            raise RelationError(f"lake.{known} is a name of `headwater sql`; name the table {known}, or delta.`{path}`")
        if known not in self._places:
            if self._delta(known, statement.missing) is None:
                return False
            self._places[known] = jvm.qualified_path(self._spark, path)
        place = self._places[known]
        found = jvm.table_location(self._spark, LAKE, known)
        if found is not None and found != place:
            raise TakenError(
                f"the catalog has a table lake.{known} at {found}, which is another than {place}: give the latter "
                f"another name (--delta NAME={path})"
            )
        if found is None:
            lake_table(self._spark, known, place)
        return True

    def _delta(self, known: str, missing: list[str]) -> DataFrame | None:
        """The rows of a Delta table; None if it is not there yet. Raises RelationError if the session has no Delta."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return self._spark.read.format("delta").load(self.known.lake[known])
        except (PySparkException, Py4JJavaError) as error:
            if (reason := missing_format(error)) is not None:
                raise RelationError(reason) from None
            if known not in missing:
                missing.append(known)
            return None

    def _table(self, name: str) -> str | None:
        return next((each for each in self.known.tables if each.lower() == name.lower()), None)

    def _lake_table(self, name: str) -> str | None:
        return next((each for each in self.known.lake if each.lower() == name.lower()), None)

    def _pipeline_table(self, name: str) -> DataFrame | None:
        """The current rows of a table in the pipeline's `tables:`."""
        from headwater.pipelines.sources.tables import read_table

        known, loaded = self.known.columns, self.known.loaded
        found = next((each for each in known.tables if each.lower() == name.lower()), None)
        if found is None or loaded is None:
            return None
        return read_table(self._spark, loaded, known, found, self._where)

    # -- views ---------------------------------------------------------------------------------------------------------

    def _of_topic(self, frames: TopicFrames, topic: str, *, pushdown: bool) -> DataFrame:
        known = self.known.columns
        registered = None if topic in known.topics else self.known.registered(topic)
        if registered is not None:
            known = dataclasses.replace(
                known,
                topics={**known.topics, topic: registered.topic},
                values={**known.values, topic: registered.values},
            )
        return frames.rows(topic, known, pushdown=pushdown)

    def _view(self, statement: StatementRelations, name: scanner.Name, frame: DataFrame) -> None:
        """Make a view. Raises StatementError in the thread of a statement that was left behind."""
        key = _key(name)
        with self._lock:
            if statement is not self._current:
                raise StatementError("the statement was cancelled, and another has begun", is_users=False)
            if len(key) > 1:
                assert self._shared is not None, "which made the frame"
                self._shared.put(key, frame)
            else:
                frame.createOrReplaceTempView(quoted(key[-1]))
            self._views[key] = name
            self._columns[key] = tuple(frame.columns)

    def _drop_views(self) -> list[scanner.Name]:
        """Drop all views of ours, and return their names as statements wrote them."""
        before = list(self._views.values())
        for key in self._views:
            if len(key) > 1:
                assert self._shared is not None, "which has made the view"
                self._shared.drop(key)
            else:
                self._spark.catalog.dropTempView(key[-1])
        self._views.clear()
        return before

    def location(self, name: scanner.Name) -> str | None:
        """Where a known Delta table or one of the session's catalog has its files; None without one."""
        is_lake = len(name) == 2 and name[0].lower() == LAKE
        known = self._lake_table(name[1]) if is_lake else self._table(name[0]) if len(name) == 1 else None
        if known is not None:
            return self.known.lake[known]
        if len(name) > 2:
            return None
        schema = name[0] if len(name) == 2 else self._spark.catalog.currentDatabase()
        return jvm.table_location(self._spark, schema, name[-1])

    def columns(self, name: scanner.Name) -> tuple[str, ...]:
        """The columns of a relation, without a view of it; `()` if there is none, or it cannot be read."""
        key = _key(name)
        if key not in self._columns:
            try:
                frame = self.frame(name, anew=False)
            except Exception:  # noqa: BLE001 - the statement reports it
                return ()
            if frame is None:
                return ()
            self._columns[key] = tuple(frame.columns)
        return self._columns[key]

    def frame(self, name: scanner.Name, *, anew: bool = True, frames: TopicFrames | None = None) -> DataFrame | None:
        """The rows of a name without a view; None if there is none. `frames` are others than the session's.

        Raises as `make` does.
        """
        is_log, is_lake = (len(name) == 2 and name[0].lower() == each for each in (LOG, LAKE))
        if is_lake:
            known = self._lake_table(name[1])
            return None if known is None else self._delta(known, [])
        topic = self.topics.match(name[-1], anew=anew) if is_log or len(name) == 1 else None
        if topic is not None:
            frames = self._frames.of_statement() if frames is None else frames
            return frames.log(topic, pushdown=False) if is_log else self._of_topic(frames, topic, pushdown=False)
        rows = self._pipeline_table(name[0]) if len(name) == 1 else None
        if rows is not None or len(name) != 1:
            return rows
        found = self._table(name[0])
        return None if found is None else self._delta(found, [])


class _NoTopicsError(Exception):
    """The topics cannot be listed; `reason` is the listing's error."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _key(name: scanner.Name) -> scanner.Name:
    """A name as Spark compares it: without case."""
    return tuple(part.lower() for part in name)
