"""Makes the relations that a statement names when it names them: topics, records of the log, Delta tables.

| name | relation |
|---|---|
| `NAME` | the topic (`topic_rows`), else the pipeline's table, else the Delta table of that name |
| `log.NAME` | the records of the topic as the log holds them; needs a session from `session_conf` |
| `lake.NAME` | the Delta table: a table of the session's catalog, so that statements can change it |

`log` is the session's database of global temporary views. Each statement has its own relations. Views that the user has
created are never replaced.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from headwater.pipelines.definition import DeltaSink, Loaded
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.sql import topic_rows
from headwater.pipelines.sql.registry_columns import Registered
from headwater.pipelines.sql.statement_errors import missing_format
from headwater.pipelines.sql.topic_names import AmbiguousTopicError, TopicNames
from headwater.pipelines.sql_text import scanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers

__all__ = [
    "LAKE",
    "LOG",
    "Known",
    "PresentFrames",
    "RelationError",
    "Relations",
    "TopicFrames",
    "delta_tables",
    "session_conf",
]

LOG: Final = "log"
LAKE: Final = "lake"
GLOBAL_DATABASE: Final = "spark.sql.globalTempDatabase"
TABLE_NAME: Final = re.compile(r"\w+")  # what Spark's catalog accepts


class RelationError(Exception):
    """A name cannot be made a relation; the message is one line."""


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
        registered: Columns of a topic by a schema registry; None if it has none.
    """

    columns: KnownColumns = field(default_factory=lambda: KnownColumns({}))
    loaded: Loaded | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    registered: Callable[[str], Registered | None] = lambda _topic: None


class TopicFrames(Protocol):
    """The frames that topics' names stand for.

    With `pushdown`, filters narrow the offsets to read; Spark must scan the frame once only.
    """

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`."""

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:
        """`log.NAME`."""


class PresentFrames:
    """The records that topics have when a query is planned."""

    def __init__(self, spark: SparkSession, where: Brokers) -> None:
        self._spark = spark
        self._where = where

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`."""
        return topic_rows.present(self._spark, self._where, topic, known, pushdown=pushdown)

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:
        """`log.NAME`."""
        return topic_rows.log_records(self._spark, self._where, topic, pushdown=pushdown)


def delta_tables(loaded: Loaded) -> dict[str, str]:
    """Paths of the pipeline's Delta tables by name: the last part of the path, with `_` for what a name cannot hold.

    Of two tables with one name, the second has the part before in its name, too.
    """
    found: dict[str, str] = {}
    for stage in loaded.pipeline.stages:
        for sink in stage.to:
            if isinstance(sink, DeltaSink):
                path = loaded.path(sink.delta)
                found[_table_name(path, {name for name, other in found.items() if other != path})] = path
    return found


def _table_name(path: str, taken: Iterable[str]) -> str:
    """Name a table by its path.

    >>> _table_name("/lake/orders-clean/", ()), _table_name("/lake/b/orders", ["orders"])
    ('orders_clean', 'b_orders')
    """
    parts = [part for part in re.split(r"[/:]+", path) if part]
    used = {name.lower() for name in taken}
    name = ""
    for part in reversed(parts):
        name = re.sub(r"\W", "_", part) + (f"_{name}" if name else "")
        if name.lower() not in used:
            return name
    return name


class Relations:
    """The relations of one session. Thread-safe: completion makes relations as well."""

    def __init__(
        self,
        spark: SparkSession,
        where: Brokers,
        topics: TopicNames,
        known: Known,
        frames: TopicFrames | None = None,
    ) -> None:
        self._spark = spark
        self._where = where
        self._frames = frames if frames is not None else PresentFrames(spark, where)
        self._lock = threading.RLock()
        self.topics = topics
        self.known = known
        self._views: set[scanner.Name] = set()
        self._lake_tables: set[str] = set()
        self._current: dict[scanner.Name, None] = {}
        self._users: set[str] = set()
        self._columns: dict[scanner.Name, tuple[str, ...]] = {}
        self._pushdown = False
        self.has_log = spark.conf.get(GLOBAL_DATABASE) == LOG
        self.missing: list[str] = []

    # -- statements ----------------------------------------------------------------------------------------------------

    def prepare(self, text: str, *, pushdown: bool = False) -> None:
        """Make the relations that a statement names where its words show it. For `pushdown` see `TopicFrames`.

        If no broker answers, only what does not need one is made, and `make` raises the error for a name that Spark
        then misses. Raises Spark's errors about the pipeline's tables, and AmbiguousTopicError.
        """
        with self._lock:
            self.missing.clear()
            self._pushdown = pushdown
            self._current.clear()
            self._note_users_view(text)
            named = scanner.names(text)
            before = sorted(self._views)
            # An earlier statement's views have its ranges. A user's view may name any of them.
            for key in before if not self._users else ():
                self._drop(key)
            for name in (*(before if self._users else ()), *named):
                try:
                    self._bring(name, is_certain=False)
                except (_NoTopicsError, RelationError):
                    continue  # the name may be a column's; Spark misses it if it is a relation's

    def make(self, name: scanner.Name) -> bool:
        """Make a relation that Spark misses; whether there is one of this name. Raises RelationError and the listing's.

        Asks for the topics anew: one may have been created since the last answer.
        """
        try:
            with self._lock:
                return self._bring(name, is_certain=True)
        except _NoTopicsError as error:
            raise error.reason from None

    def make_again(self) -> None:
        """Make the statement's relations again, to be scanned any number of times."""
        with self._lock:
            self._pushdown = False
            for name in list(self._current):
                self._bring(name, is_certain=False)

    @property
    def has_users_views(self) -> bool:
        """Whether the user has created temporary views, whose texts may name any relation."""
        return bool(self._users)

    def _note_users_view(self, text: str) -> None:
        target = scanner.target_of_view(text)
        if target is None or len(target[1]) != 1:
            return
        verb, (name,) = target
        if verb == "DROP":
            self._users.discard(name.lower())
            return
        self._drop((name.lower(),))
        self._users.add(name.lower())

    def _bring(self, name: scanner.Name, *, is_certain: bool) -> bool:
        if len(name) == 2 and name[0].lower() == LAKE:
            return self._lake(name[1])
        is_log = len(name) == 2 and name[0].lower() == LOG
        if not is_log and (len(name) != 1 or name[0].lower() in self._users):
            return False
        key = (LOG, name[1].lower()) if is_log else (name[0].lower(),)
        rows = self._rows(name, is_certain=is_certain)
        if rows is None:
            self._drop(key)
            return False
        self._require_one_case(name)
        self._current[name] = None
        self._view(key, rows)
        return True

    def _require_one_case(self, name: scanner.Name) -> None:
        """Raise AmbiguousTopicError if the statement names two topics that Spark takes for one."""
        lower = tuple(part.lower() for part in name)
        for other in self._current:
            if other != name and tuple(part.lower() for part in other) == lower:
                topics = sorted({found for each in (other, name) if (found := self.topics.match(each[-1])) is not None})
                if len(topics) > 1:
                    both = " and ".join(topics)
                    raise AmbiguousTopicError(f"{both} differ in case only, which Spark ignores: use two statements")

    def _rows(self, name: scanner.Name, *, is_certain: bool) -> DataFrame | None:
        """The rows of a name. They are read anew for each statement.

        Spark plans the ranges of a relation of a Python source once, so that a kept view would show old records; and a
        table may have other columns, or be there at last.
        """
        topic = self._topic(name[-1], is_certain=is_certain)
        if len(name) == 2:
            if topic is None or self.has_log:
                return None if topic is None else self._frames.log(topic, pushdown=self._pushdown)
            raise RelationError(
                f"log.{topic} needs a session with {GLOBAL_DATABASE}={LOG}; headwater.table(spark, 'log.{topic}') has "
                "the same records"
            )
        if topic is not None:
            return self._of_topic(topic, pushdown=self._pushdown)
        rows = self._pipeline_table(name[0])
        known = self._table(name[0])
        return rows if rows is not None or known is None else self._delta(known)

    def _topic(self, name: str, *, is_certain: bool) -> str | None:
        try:
            return self.topics.match(name, anew=is_certain)
        except Exception as error:  # noqa: BLE001 - the listing's own
            if self._pipeline_table(name) is not None or self._table(name) is not None:
                return None
            raise _NoTopicsError(error) from None

    def _lake(self, name: str) -> bool:
        """Make a Delta table a table of the catalog; whether there is one of this name."""
        known = self._table(name)
        if known is None or known in self._lake_tables:
            return known is not None
        if not self.has_log:
            path = self.known.tables[known]
            raise RelationError(f"lake.{known} is a name of `headwater sql`; name the table {known}, or delta.`{path}`")
        frame = self._delta(known)
        if frame is None:
            return False
        path = self.known.tables[known]
        self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {LAKE}")
        self._spark.sql(f"DROP TABLE IF EXISTS {LAKE}.{known}")
        self._spark.sql(f"CREATE TABLE {LAKE}.{known} USING delta LOCATION '{_escaped(path)}'")
        self._lake_tables.add(known)
        self._columns[LAKE, known.lower()] = tuple(frame.columns)
        return True

    def _delta(self, known: str) -> DataFrame | None:
        """The rows of a Delta table; None if it is not there yet. Raises RelationError if the session has no Delta."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return self._spark.read.format("delta").load(self.known.tables[known])
        except (PySparkException, Py4JJavaError) as error:
            if (reason := missing_format(error)) is not None:
                raise RelationError(reason) from None
            if known not in self.missing:
                self.missing.append(known)
            return None

    def _table(self, name: str) -> str | None:
        return next((each for each in self.known.tables if each.lower() == name.lower()), None)

    def _pipeline_table(self, name: str) -> DataFrame | None:
        """The current rows of a table in the pipeline's `tables:`."""
        from headwater.pipelines.sources.tables import read_table

        known, loaded = self.known.columns, self.known.loaded
        found = next((each for each in known.tables if each.lower() == name.lower()), None)
        if found is None or loaded is None:
            return None
        return read_table(self._spark, loaded, known, found, self._where)

    # -- views ---------------------------------------------------------------------------------------------------------

    def _of_topic(self, topic: str, *, pushdown: bool) -> DataFrame:
        known = self.known.columns
        registered = None if topic in known.topics else self.known.registered(topic)
        if registered is not None:
            known = dataclasses.replace(
                known,
                topics={**known.topics, topic: registered.topic},
                values={**known.values, topic: registered.values},
            )
        return self._frames.rows(topic, known, pushdown=pushdown)

    def _view(self, key: scanner.Name, frame: DataFrame) -> None:
        quoted = f"`{key[-1].replace('`', '``')}`"
        if len(key) > 1:
            frame.createOrReplaceGlobalTempView(quoted)
        else:
            frame.createOrReplaceTempView(quoted)
        self._views.add(key)
        self._columns[key] = tuple(frame.columns)

    def _drop(self, key: scanner.Name) -> None:
        if key not in self._views:
            return
        self._views.discard(key)
        if len(key) > 1:
            self._spark.catalog.dropGlobalTempView(key[-1])
        else:
            self._spark.catalog.dropTempView(key[-1])

    def columns(self, name: scanner.Name) -> tuple[str, ...]:
        """The columns of a relation that a statement has named before; `()` for others."""
        return self._columns.get(tuple(part.lower() for part in name), ())

    def frame(self, name: scanner.Name) -> DataFrame | None:
        """The rows of a name without a view; None if there is none. Raises as `make` does."""
        is_log, is_lake = (len(name) == 2 and name[0].lower() == each for each in (LOG, LAKE))
        if is_lake:
            known = self._table(name[1])
            return None if known is None else self._delta(known)
        topic = self.topics.match(name[-1], anew=True) if is_log or len(name) == 1 else None
        if topic is not None:
            return self._frames.log(topic, pushdown=False) if is_log else self._of_topic(topic, pushdown=False)
        rows = self._pipeline_table(name[0]) if len(name) == 1 else None
        return rows if rows is not None or len(name) != 1 else self.frame((LAKE, name[0]))


class _NoTopicsError(Exception):
    """The topics cannot be listed; `reason` is the listing's error."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _escaped(path: str) -> str:
    r"""Escape a path for a string in SQL.

    >>> _escaped("/a'b\\c")
    "/a\\'b\\\\c"
    """
    return path.replace("\\", "\\\\").replace("'", "\\'")
