"""The frames of a session's names where archives are declared: an archived topic's name is its unified table.

A statement's frames decide the state of each topic once (`unified_offsets`), before Spark plans anything: all its scans
of the topic, whichever halves they read, agree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.archived_columns import archived_columns, columns_may_change
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.rows import table_columns
from headwater.pipelines.archive.table_modes import mode_of_new_table
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.log_state import log_state
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.seam.marks import APPEND, UPSERT
from headwater.pipelines.seam.table_offsets import SeamError, TableOffsets
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.relations import PresentFrames, UnreadableRelationError
from headwater.pipelines.unified.newest_offsets import newest_offsets
from headwater.pipelines.unified.unified_offsets import UnifiedOffsets, decide
from headwater.pipelines.unified.unified_rows import unified_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["UnifiedFrames", "present_offsets", "refusals_of"]

#: Looks at table and log that do not fit together: the archive commits, retention runs, leaders change between them.
LOOKS_MAX: Final = 4
LOOK_AGAIN_S: Final = 0.25
#: What Spark, Delta and Hadoop say of a file that is gone.
_GONE: Final = ("FILE_NOT_EXIST", "FileNotFoundException", "DELTA_FILE_NOT_FOUND", "does not exist")
#: Delta's condition for a version, older than the files that VACUUM keeps, that is not the newest one any more.
_OUTDATED: Final = "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"
#: What Spark and Delta say of a statement that changes what it can only read.
_NOT_WRITABLE: Final = ("UNSUPPORTED_INSERT", "DELTA_FAILED_SCAN_WITH_HISTORICAL_VERSION", "DELTA_UNSUPPORTED_SOURCE")


def present_offsets(
    spec: TopicArchiveSpec,
    table: Callable[[], TableOffsets | None],
    log: Callable[[], LogState],
    pause: Callable[[float], None] = time.sleep,
    new_mode: Callable[[], str] = lambda: APPEND,
) -> UnifiedOffsets:
    """The state of an archived topic now. The table is asked before the log, which is then at least as far.

    Where there is no table, `new_mode` is asked for the mode that it will have.

    Where the log begins behind the table, retention may have followed a commit between the two looks: a newer version
    has what the log has lost.

    Raises what `decide`, `table` and `log` do, and ArchiveFailed if both change all the time.
    """
    for look in range(1, LOOKS_MAX + 1):
        asked, known = table(), log()
        ends = {} if asked is None else asked.ends
        if any(first > ends.get(partition, 0) for partition, first in known.first.items()) and table() != asked:
            continue
        try:
            return decide(spec, asked, known, new_mode() if asked is None else APPEND)
        except ArchiveFailed:
            if look == LOOKS_MAX:
                raise
            pause(LOOK_AGAIN_S)
    raise ArchiveFailed(overtaken(spec.table))


def overtaken(table: str) -> str:
    """What is said of a table that changes all the time."""
    return f"the table {table} got a new version at each of {LOOKS_MAX} looks: run the statement again"


@contextmanager
def refusals_of(spec: TopicArchiveSpec) -> Iterator[None]:
    """Report why a topic and its table cannot be read as one. Raises UnreadableRelationError."""
    try:
        yield
    except (ArchiveError, LoadError, SeamError, SourceError) as error:
        raise UnreadableRelationError(_refused(spec, str(error))) from None
    except PipelineError as error:
        raise UnreadableRelationError(_refused(spec, str(error.problems[0]))) from None
    except (ArchiveFailed, LoadFailed) as error:
        raise UnreadableRelationError(_refused(spec, str(error)), is_users=False) from None


def _refused(spec: TopicArchiveSpec, why: str) -> str:
    topic = spec.topic
    name = topic if re.fullmatch(r"\w+", topic) else f"`{topic}`"
    lake = re.sub(r"\W", "_", topic)
    return (
        f"{topic} and its table {spec.table} cannot be read as one: {why}; log.{name} has the log alone, "
        f"lake.{lake} the table"
    )


class UnifiedFrames:
    """See the module, and `TopicFrames`. Topics without an archive have the frames of `PresentFrames`."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        archives: Mapping[str, TopicArchiveSpec],
        loaded: Loaded,
        *,
        is_kept: bool = False,
    ) -> None:
        """`loaded` declares the archives' topics.

        With `is_kept`, frames become views: version and offsets of the table are those of now, and the log's end is
        asked for by each statement. The end of a table by key is that of now, too, as its records are read twice.
        """
        self.spark = spark
        self.brokers = brokers
        self.archives = archives
        self.is_kept = is_kept
        self.present = PresentFrames(spark, brokers, is_kept=is_kept)
        self._loaded = loaded
        self._columns: dict[str, tuple[KnownColumns, StructType]] = {}

    def of_statement(self) -> StatementFrames:
        """The frames of one statement."""
        return StatementFrames(self)

    def columns(self, spec: TopicArchiveSpec) -> tuple[KnownColumns, StructType]:
        """The columns of a topic, and those of its rows. A registry is asked each time, as by the archive's rounds.

        Raises PipelineError and ArchiveError.
        """
        topic = spec.topic
        found = self._columns.get(topic)
        if found is None or columns_may_change(self._loaded, topic):
            known = archived_columns(self.spark, self._loaded, topic, self.brokers)
            schema = table_columns(self.spark, known, topic, keeps_value=spec.raw, headers=spec.headers)
            found = self._columns[topic] = known, schema
        return found


class StatementFrames:
    """The frames of one statement, used by one thread at a time."""

    def __init__(self, session: UnifiedFrames) -> None:
        self._session = session
        self._present = session.present.of_statement()
        self._decided: dict[str, UnifiedOffsets] = {}
        #: Of tables by key, whose tail is read when the frame is made.
        self._by_key: dict[str, DataFrame] = {}

    def of_statement(self) -> StatementFrames:
        """The frames of another statement."""
        return StatementFrames(self._session)

    def log(self, topic: str, *, pushdown: bool) -> DataFrame:
        """`log.NAME`."""
        return self._present.log(topic, pushdown=pushdown)

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`. Raises UnreadableRelationError."""
        from pyspark.errors import PySparkException

        spec = self._session.archives.get(topic)
        if spec is None:
            return self._present.rows(topic, known, pushdown=pushdown)
        with refusals_of(spec):
            if topic in self._by_key:
                return self._by_key[topic]
            was_decided = topic in self._decided  # and stays so: a scan may have been made
            for _ in range(1 if was_decided else LOOKS_MAX):
                if not was_decided:
                    self._decided[topic] = self._decide(spec)
                try:
                    return self._rows(spec, self._decided[topic], pushdown=pushdown)
                except PySparkException as error:
                    if error.getCondition() != _OUTDATED:
                        raise
            raise ArchiveFailed(overtaken(spec.table))

    def _decide(self, spec: TopicArchiveSpec) -> UnifiedOffsets:
        session = self._session
        return present_offsets(
            spec,
            lambda: newest_offsets(session.spark, spec.table),
            lambda: log_state(session.brokers, spec.topic),
            new_mode=lambda: mode_of_new_table(spec, session.brokers),
        )

    def _rows(self, spec: TopicArchiveSpec, offsets: UnifiedOffsets, *, pushdown: bool) -> DataFrame:
        session = self._session
        # After the offsets: a schema that was registered for one of their records is known then.
        own, schema = session.columns(spec)
        rows = unified_rows(
            session.spark,
            session.brokers,
            spec,
            offsets,
            own,
            schema,
            pushdown=pushdown and not session.is_kept,
            is_kept=session.is_kept,
        )
        if offsets.mode == UPSERT:
            self._by_key[spec.topic] = rows
        return rows

    def decided_lines(self) -> list[str]:
        """What was decided, as lines of EXPLAIN."""
        return [line for _, offsets in sorted(self._decided.items()) for line in offsets.lines()]

    def reason(self, error: Exception, statement: str) -> str:
        """Why a statement of these frames failed, where Spark's error does not tell; '' if it does."""
        text = str(error)
        for topic, offsets in self._decided.items():
            target = rf"\b(?:INTO|OVERWRITE|UPDATE|FROM)\s+(?:TABLE\s+)?`?{re.escape(topic)}(?![\w.-])"
            if any(code in text for code in _NOT_WRITABLE) and re.search(target, statement, re.IGNORECASE):
                return f"{topic} is a topic and its archive's table, which statements only read: produce to the topic"
            if offsets.version >= 0 and offsets.table in text and any(word in text for word in _GONE):
                ends = ", ".join(f"{p}: {start}" for p, start in sorted(offsets.starts.items()))
                return (
                    f"version {offsets.version} of the table {offsets.table}, up to the offsets {{{ends}}}, lost files "
                    "while the statement read it (VACUUM with too short a retention?): run the statement again "
                    f"({first_line(error)[:200]})"
                )
        return ""
