"""The names of topics for clients that no statement of ours passes through: JDBC, ODBC, Spark Connect.

| name | view |
|---|---|
| `topics.NAME` | the topic; where it has an archive, the unified table: global temporary |
| `log.NAME` | the records of the topic as the log holds them: of the session catalog |
| `lake.NAME` | the table of the topic's archive at the version of `topics.NAME`: of the session catalog |

A view fixes the version of a table and the offsets where the log continues, not the log's end. After each commit of the
archive the views are replaced, each in one step; statements that are analysed by then keep what they have: VACUUM
leaves its files, and the archive's `view_grace` holds its offsets.

A frame can become only a temporary view: `log.NAME` is a view over one, which clients see in `topics`, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headwater.pipelines.seam.table_offsets import table_offsets
from headwater.pipelines.spark import jvm, jvm_servers
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchivedTable", "ForeignFrames", "ForeignViews", "Look", "ShownViews", "foreign_conf", "renewals"]

_log = logging.getLogger(__name__)

TOPICS: Final = "topics"
LOG: Final = "log"
LAKE: Final = "lake"
INTERNAL_PREFIX: Final = "__"  # Kafka's and Headwater's internal topics have no views
HIDDEN_PREFIX: Final = "__log_"  # of the temporary views below `log.NAME`: no topic that has views begins so
#: Between two looks at topics and tables.
LOOK_EVERY_S: Final = 1.0
#: A look at a local table takes some 20 ms: with many archives, looks take this part of a core at most.
LOOKING_SHARE_MAX: Final = 0.1
#: A registry's new schema adds columns without a commit.
RENEWED_AFTER_S: Final = 60.0
#: Before a topic that failed is tried again.
AGAIN_AFTER_S: Final = 10.0
STOP_SECONDS_MAX: Final = 30.0


def foreign_conf(warehouse: str) -> dict[str, str]:
    """The settings of a session whose views foreign clients read; `warehouse` is a folder of the service's own."""
    return {
        "spark.sql.globalTempDatabase": TOPICS,
        # Views end with the service: the next one makes them again. Hive's catalog would leave a Derby database.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": warehouse,
    }


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """An archive's table: its name in `lake`, and its path or URL."""

    name: str
    path: str


class ForeignFrames(Protocol):
    """The frames of topics for views: what the log has is asked when a scan is planned."""

    def unified(self, topic: str) -> DataFrame:
        """`topics.NAME`, with version and offsets of now."""

    def log(self, topic: str) -> DataFrame:
        """`log.NAME`."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found of a topic.

    Attributes:
        version: Of its archive's table; None without an archive or before its first commit.
    """

    archive: ArchivedTable | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ShownViews:
    """What views of a topic show.

    Attributes:
        at_s: When they were made or tried, by the monotonic clock.
        failure: Why they could not be made; '' if they are.
        has_views: Whether there are views, if only older ones.
    """

    look: Look
    at_s: float
    failure: str = ""
    has_views: bool = True


def renewals(shown: Mapping[str, ShownViews], looks: Mapping[str, Look], now_s: float) -> tuple[list[str], list[str]]:
    """The topics whose views are to be dropped, and those whose are to be made.

    >>> shown = {
    ...     "a": ShownViews(Look(version=1), 0.0),
    ...     "b": ShownViews(Look(), 0.0),
    ...     "c": ShownViews(Look(), 0.0, "unreachable"),
    ... }
    >>> renewals(shown, {"a": Look(version=2), "c": Look(), "d": Look()}, 1.0)
    (['b'], ['a', 'd'])
    >>> renewals(shown, {"a": Look(version=1), "b": Look(), "c": Look()}, AGAIN_AFTER_S)
    ([], ['c'])
    """
    renewed = []
    for topic, look in sorted(looks.items()):
        before = shown.get(topic)
        if before is None:
            renewed.append(topic)
            continue
        age_s = now_s - before.at_s
        is_due = age_s >= AGAIN_AFTER_S if before.failure else look != before.look or age_s >= RENEWED_AFTER_S
        if is_due:
            renewed.append(topic)
    return sorted(shown.keys() - looks.keys()), renewed


def with_views(topics: Iterable[str]) -> tuple[list[str], list[str]]:
    """The topics that have views, and those that have none because they differ in case only, which Spark ignores.

    >>> with_views(["b", "a", "A", "__consumer_offsets"])
    (['b'], ['A', 'a'])
    """
    known = [each for each in topics if not each.startswith(INTERNAL_PREFIX)]
    same = Counter(each.lower() for each in known)
    return (
        sorted(each for each in known if same[each.lower()] == 1),
        sorted(each for each in known if same[each.lower()] > 1),
    )


def version_of(path: str) -> int | None:
    """The newest version of an archive's table; None without a table. Raises SeamError."""
    found = table_offsets(path)
    return None if found is None else found.version


class ForeignViews:
    """Keeps the views of a session, by a thread of its own from `start` to `stop`; only that thread changes views."""

    def __init__(
        self,
        spark: SparkSession,
        frames: ForeignFrames,
        topics: Callable[[], Iterable[str]],
        archives: Callable[[], Mapping[str, ArchivedTable]],
        version: Callable[[str], int | None] = version_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topics` lists the cluster's topics, `archives` their tables; both raise errors of their own."""
        self._spark = spark
        self._frames = frames
        self._topics = topics
        self._archives = archives
        self._version = version
        self._clock = clock
        self._shown: dict[str, ShownViews] = {}
        self._reported: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foreign-views", daemon=True)

    def start(self) -> None:
        """Make the views, as far as they can be made, and keep them from then on."""
        self._prepare()
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Views stay as they are."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    def _prepare(self) -> None:
        jvm.activate(self._spark)
        for schema in (LOG, LAKE):
            self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")

    def _run(self) -> None:
        jvm.activate(self._spark)
        took_s = 0.0
        while not self._ended.wait(max(LOOK_EVERY_S, took_s / LOOKING_SHARE_MAX)):
            began_s = self._clock()
            self.look()
            took_s = self._clock() - began_s

    def look(self) -> None:
        """One look: drop, make and replace what has changed. Reports failures, which leave the views as they are."""
        try:
            known, ambiguous = with_views(self._topics())
            archives = self._archives()
        except Exception as error:  # noqa: BLE001 - the listings' own; the next look asks again
            self._report("", f"topics cannot be listed: {first_line(error)}")
            return
        self._report("", f"no views for topics that differ in case only: {', '.join(ambiguous)}" if ambiguous else "")
        found = {topic: self._look_at(topic, archives.get(topic)) for topic in known}
        dropped, renewed = renewals(self._shown, found, self._clock())
        for topic in dropped:
            self._drop(topic)
        for topic in renewed:
            if self._ended.is_set():
                return
            self._renew(topic, found[topic])

    def _look_at(self, topic: str, archive: ArchivedTable | None) -> Look:
        if archive is None:
            return Look()
        try:
            return Look(archive, self._version(archive.path))
        except Exception as error:  # noqa: BLE001 - one bad table stops no other topic
            self._report(topic, f"the table of {topic} cannot be looked at: {first_line(error)}")
            before = self._shown.get(topic)
            return Look(archive) if before is None else before.look

    def _renew(self, topic: str, look: Look) -> None:
        before = self._shown.get(topic)
        try:
            self._put(topic, look)
            if before is not None and before.look.archive not in (None, look.archive):
                self._drop_lake(before.look)
            if look.version is None and before is not None:
                self._drop_lake(before.look)
        except Exception as error:  # noqa: BLE001 - one bad topic stops no other
            why = first_line(error)
            has_views = before is not None and before.has_views
            older = "; its views show an older state" if has_views else ""
            self._report(topic, f"the views of {topic} cannot be made: {why}{older}")
            kept = before.look if before is not None else look
            self._shown[topic] = ShownViews(kept, self._clock(), why, has_views)
            return
        self._report(topic, "")
        self._shown[topic] = ShownViews(look, self._clock())

    def _put(self, topic: str, look: Look) -> None:
        unified, log = self._frames.unified(topic), self._frames.log(topic)
        unified.createOrReplaceGlobalTempView(_quoted(topic))
        hidden = HIDDEN_PREFIX + topic
        log.createOrReplaceGlobalTempView(_quoted(hidden))
        statement = f"SELECT * FROM {TOPICS}.{_quoted(hidden)}"  # noqa: S608 - quoted
        jvm_servers.replace_view(self._spark, LOG, topic.lower(), statement, log, [(TOPICS, hidden)])
        if look.archive is not None and look.version is not None:
            statement = f"SELECT * FROM delta.{_quoted(look.archive.path)} VERSION AS OF {look.version}"  # noqa: S608 - quoted
            name = look.archive.name.lower()
            jvm_servers.replace_view(self._spark, LAKE, name, statement, self._spark.sql(statement))

    def _drop(self, topic: str) -> None:
        shown = self._shown.pop(topic)
        self._reported.pop(topic, None)
        jvm_servers.drop_view(self._spark, LOG, topic.lower())
        for name in (topic, HIDDEN_PREFIX + topic):
            self._spark.catalog.dropGlobalTempView(name)
        self._drop_lake(shown.look)

    def _drop_lake(self, look: Look) -> None:
        if look.archive is not None:
            jvm_servers.drop_view(self._spark, LAKE, look.archive.name.lower())

    def _report(self, topic: str, what: str) -> None:
        if what and self._reported.get(topic) != what:
            _log.warning("%s", what)
        self._reported[topic] = what


def _quoted(name: str) -> str:
    """A name as SQL has it.

    >>> _quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"
