"""The views of topics that all sessions of a JVM share: those whose names have a schema.

Spark has one database of global temporary views. In `headwater sql` it is called `log`, and `log.NAME` is such a view
while a statement runs that names it. In the SQL service it is called `topics`, for `topics.NAME`; `log.NAME` is there a
view of the session catalog that reads a global temporary view, since a frame can become a temporary view only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from headwater.pipelines.columns import quoted
from headwater.pipelines.spark import jvm_servers
from headwater.pipelines.sql_text.scanner import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GLOBAL_DATABASE", "LOG", "TOPICS", "LogViews", "ServedViews", "SharedViews", "log_view_text"]

LOG: Final = "log"
TOPICS: Final = "topics"
GLOBAL_DATABASE: Final = "spark.sql.globalTempDatabase"
HIDDEN_PREFIX: Final = "log$"  # of the temporary views below `log.NAME`: no topic's name has a dollar sign
LOCK_S_MAX: Final = 30.0


class SharedViews(Protocol):
    """Makes and drops the views of one statement. Names are in lower case: a schema and a topic.

    Attributes:
        schemas: The first parts of the names.
        user_schema: The schema in which users create global temporary views; None if nobody's are looked for.
        narrows: Whether a view is scanned by the statement alone that it was made for.
    """

    @property
    def schemas(self) -> frozenset[str]: ...  # noqa: D102 - see the class

    @property
    def user_schema(self) -> str | None: ...  # noqa: D102

    @property
    def narrows(self) -> bool: ...  # noqa: D102

    def put(self, name: Name, frame: DataFrame) -> None:
        """Let a name stand for a frame."""

    def drop(self, name: Name) -> None:
        """The statement that `put` was called for no longer needs the name."""


class LogViews:
    """`log.NAME` in a session whose database of global temporary views is called `log`."""

    schemas: Final = frozenset({LOG})
    user_schema: Final = LOG
    narrows: Final = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def put(self, name: Name, frame: DataFrame) -> None:
        """See `SharedViews`."""
        frame.createOrReplaceGlobalTempView(quoted(name[-1]))

    def drop(self, name: Name) -> None:
        """See `SharedViews`."""
        self._spark.catalog.dropGlobalTempView(name[-1])


class ServedViews:
    """`topics.NAME` and `log.NAME` in the SQL service, whose database of global temporary views is called `topics`.

    With clients of other protocols, each name has a view that is kept; a statement of the service replaces it by its
    own frame while it is analysed. A client whose statement is analysed in that moment reads that frame, which is a
    state of the topic, too: filters must not have narrowed it.

    Who makes or replaces views holds `lock`, a statement from where its views are made until it is analysed.
    """

    schemas: Final = frozenset({TOPICS, LOG})
    user_schema: Final = None

    def __init__(self, spark: SparkSession, *, keeps: bool) -> None:
        """`keeps`: views may be kept."""
        self.lock = threading.RLock()
        self.narrows = not keeps
        self._spark = spark
        self._kept: dict[Name, DataFrame] = {}

    def put(self, name: Name, frame: DataFrame) -> None:
        """See `SharedViews`."""
        schema, topic = name
        with self.lock:
            if schema == TOPICS:
                frame.createOrReplaceGlobalTempView(quoted(topic))
                return
            hidden = HIDDEN_PREFIX + topic
            frame.createOrReplaceGlobalTempView(quoted(hidden))
            # Whatever was there: a client may have dropped it.
            self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {LOG}")
            jvm_servers.replace_view(self._spark, LOG, topic, log_view_text(topic), frame, [(TOPICS, hidden)])

    def drop(self, name: Name) -> None:
        """See `SharedViews`."""
        with self.lock:
            kept = self._kept.get(name)
            if kept is not None:
                self.put(name, kept)
                return
            schema, topic = name
            if schema == TOPICS:
                self._spark.catalog.dropGlobalTempView(topic)
                return
            self._spark.sql(f"DROP VIEW IF EXISTS {LOG}.{quoted(topic)}")
            self._spark.catalog.dropGlobalTempView(HIDDEN_PREFIX + topic)

    def keep(self, topic: str, rows: DataFrame, log: DataFrame) -> None:
        """Keep both views of a topic, in place of earlier ones. Raises TimeoutError if a statement has the names."""
        with self._locked():
            for schema, frame in ((TOPICS, rows), (LOG, log)):
                name = (schema, topic.lower())
                self.put(name, frame)
                self._kept[name] = frame

    def forget(self, topic: str) -> None:
        """Drop both views of a topic. Raises TimeoutError if a statement has the names."""
        with self._locked():
            for schema in (TOPICS, LOG):
                name = (schema, topic.lower())
                if self._kept.pop(name, None) is not None:
                    self.drop(name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.lock.acquire(timeout=LOCK_S_MAX):
            raise TimeoutError(f"a query over REST has been planned for more than {LOCK_S_MAX:.0f} s")
        try:
            yield
        finally:
            self.lock.release()


def log_view_text(topic: str) -> str:
    """The statement of the view `log.NAME` in the session catalog.

    >>> log_view_text("flights")
    'SELECT * FROM topics.`log$flights`'
    """
    return f"SELECT * FROM {TOPICS}.{quoted(HIDDEN_PREFIX + topic)}"  # noqa: S608 - quoted
