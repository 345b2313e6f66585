"""Analyses a statement, making the relations that it names; a command runs here, a query when its rows are fetched."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.errors import nearest
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.planned_offsets import planned_offsets, planned_text
from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.relations import (
    RelationError,
    Relations,
    StatementRelations,
    TakenError,
    TopicFrames,
    UnreadableRelationError,
)
from headwater.pipelines.sql.shared_views import LOG, TOPICS
from headwater.pipelines.sql.statement_errors import (
    StatementError,
    explained,
    is_mistake,
    missing_format,
    missing_relation,
    missing_relation_of_plan,
)
from headwater.pipelines.sql.table_locks import CHANGES, locked_tables
from headwater.pipelines.sql.topic_names import AmbiguousTopicError
from headwater.pipelines.sql_text import scanner
from headwater.pipelines.sql_text.scanner import Name, Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["analysed", "failed", "is_query", "names_once", "planned_lines", "suggestion"]

# Delta's parser, which Spark's extension installs, drops the values that Spark's own parser would put in. With this
# setting the analyser binds them, as in Spark 4.0.
PARAMETERS_CONF: Final = "spark.sql.legacy.parameterSubstitution.constantsOnly"
_QUERIES: Final = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES", "MAP", "REDUCE"})
#: Behind these words a relation may be scanned again that the text names once.
_HIDES_NAMES: Final = frozenset({"WITH", "IDENTIFIER", "EXECUTE"})
_EXPLAIN_MODES: Final = frozenset({"LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST"})
#: Relations of one statement that only Spark's errors name: each costs one more analysis.
MISSED_MAX: Final = 100


def analysed(
    spark: SparkSession,
    relations: Relations,
    statement: Statement,
    given: Mapping[str, Any] | None = None,
    *,
    narrows: bool = True,
    waits: Callable[[str], None] | None = None,
    frames: TopicFrames | None = None,
) -> DataFrame:
    """The frame of a statement; `given` are the values of its parameters.

    A statement that changes Delta tables on local disks holds their locks while it runs. `waits` is called with a table
    while another process holds its lock, and may raise.

    `frames` are those of an earlier statement that this one belongs to.

    With `narrows`, filters narrow the offsets to read, where the statement scans a topic once. The frame must then be
    used once, and as it is.

    Raises StatementError, and the errors of the function that lists topics.
    """
    asked = scanner.parameters(statement.text)
    values = {name: value for name, value in (given or {}).items() if name in asked}
    if values:
        spark.conf.set(PARAMETERS_CONF, "true")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked_tables(statement.text, relations.location, waits))
        except OSError as error:
            raise StatementError(f"the lock of a table cannot be held: {error}", is_users=False) from None
        return _analysed(spark, relations, statement, values, frames, narrows=narrows)


def _analysed(
    spark: SparkSession,
    relations: Relations,
    statement: Statement,
    values: dict[str, Any],
    frames: TopicFrames | None,
    *,
    narrows: bool,
) -> DataFrame:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    reads_later = is_query(statement.text)
    own = relations.begin(statement.text, frames)
    try:
        pushdown = narrows and (reads_later or (not own.users and names_once(statement.text)))
        relations.prepare(own, pushdown=pushdown)
        # A command scans what only Spark's errors name while it is analysed, and nobody knows how often.
        own.pushdown = pushdown and reads_later
        frame = _complete(spark, relations, own, statement, values)
        # A query is only analysed so far. Spark shares pushed filters between the scans of one relation.
        if pushdown and reads_later and jvm.shares_relations(frame):
            relations.make_again(own)
            frame = _complete(spark, relations, own, statement, values)
    except PySparkException as error:
        raise failed(error, relations, statement) from None
    except (AmbiguousTopicError, TakenError) as error:
        raise StatementError(str(error)) from None
    except UnreadableRelationError as error:
        raise StatementError(str(error), is_users=error.is_users) from None
    except Py4JJavaError as error:
        reason = missing_format(error)
        if reason is None:
            raise
        raise StatementError(reason) from None
    return frame


def planned_lines(
    spark: SparkSession, relations: Relations, statement: Statement, given: Mapping[str, Any] | None = None
) -> list[str]:
    """What the query behind EXPLAIN reads of topics and of their archives' tables; [] for other statements.

    First what was decided before any filter, then a line for each range of a log. Spark's own EXPLAIN shows neither.
    Raises as `analysed` does.
    """
    text = explained_query(statement.text)
    if text is None:
        return []
    frame = analysed(spark, relations, dataclasses.replace(statement, text=text), given)
    planned = [planned_text(part) for scan in planned_offsets(frame) for part in scan]
    return [*relations.frames.decided_lines(), *planned]


def explained_query(text: str) -> str | None:
    """The query behind EXPLAIN; None for another statement.

    >>> explained_query("EXPLAIN FORMATTED SELECT 1"), explained_query("EXPLAIN INSERT INTO t SELECT 1")
    ('SELECT 1', None)
    """
    seen = [token for token in scanner.tokens(text) if token.kind is not scanner.SqlTokenKind.COMMENT]
    if not seen or seen[0].text.upper() != "EXPLAIN":
        return None
    at = 2 if len(seen) > 1 and seen[1].text.upper() in _EXPLAIN_MODES else 1
    query = text[seen[at].start :] if len(seen) > at else ""
    return query if is_query(query) else None


def is_query(text: str) -> bool:
    """Whether a statement changes nothing, and is run when its rows are fetched.

    >>> is_query("(SELECT 1)"), is_query("WITH a AS (SELECT 1) INSERT INTO t TABLE a"), is_query("EXPLAIN SELECT 1")
    (True, False, False)
    """
    seen = scanner.words(text)
    return seen[:1] != [] and seen[0] in _QUERIES and not CHANGES & set(seen)


def names_once(text: str) -> bool:
    """Whether a command, which runs while it is analysed, certainly scans each relation once.

    >>> names_once("INSERT INTO t SELECT * FROM a"), names_once("INSERT INTO t SELECT * FROM a, IDENTIFIER('a')")
    (True, False)
    """
    seen = scanner.words(text)
    if _HIDES_NAMES & set(seen):
        return False
    names = [token.name.lower() for token in scanner.tokens(text) if token.kind is not scanner.SqlTokenKind.COMMENT]
    return all(names.count(name[-1].lower()) == 1 for name in scanner.names(text))


def _complete(
    spark: SparkSession, relations: Relations, own: StatementRelations, statement: Statement, values: dict[str, Any]
) -> DataFrame:
    """Analyse a statement, making the relations that Spark misses."""
    from pyspark.errors import PySparkException

    missed: set[Name] = set()
    while True:
        try:
            frame = spark.sql(statement.text, args=values or None)
        except PySparkException as error:
            name = missing_relation(error)
            if name is None or not _made(relations, own, name, missed, statement):
                raise
        else:
            name = _missed_by_explain(frame, statement)
            if name is None:
                return frame
            if not _made(relations, own, name, missed, statement):
                raise StatementError(_unknown(relations, name))


def _made(relations: Relations, own: StatementRelations, name: Name, missed: set[Name], statement: Statement) -> bool:
    """Make a relation that Spark misses, once; whether the statement may be analysed again."""
    if name in missed or len(missed) >= MISSED_MAX:
        return False
    missed.add(name)
    try:
        return relations.make(own, name)
    except (RelationError, AmbiguousTopicError) as error:
        at = statement.text.lower().find(name[-1].lower())
        is_users = not isinstance(error, UnreadableRelationError) or error.is_users
        raise StatementError(str(error), statement.place(at) if at >= 0 else None, is_users=is_users) from None


def _missed_by_explain(frame: DataFrame, statement: Statement) -> Name | None:
    """The relation that EXPLAIN misses: Spark returns the error as the command's row."""
    if scanner.words(statement.text)[:1] != ["EXPLAIN"] or frame.columns != ["plan"]:
        return None
    return missing_relation_of_plan("\n".join(row[0] for row in frame.collect()))


def failed(error: Any, relations: Relations, statement: Statement) -> StatementError:
    """Spark's error about a statement as a line with place and hint."""
    reason = relations.reason(error)
    if reason:
        return StatementError(reason, is_users=is_mistake(error))
    return explained(error, statement, lambda name: suggestion(relations, name))


def _unknown(relations: Relations, name: Name) -> str:
    hint = suggestion(relations, name)
    return f"there is no topic, table or view '{'.'.join(name)}'" + (f"; {hint}" if hint else "")


def suggestion(relations: Relations, name: Name) -> str:
    """The hint for an unknown relation; '' if nothing is near."""
    topics, whole = relations.topics, ".".join(name)
    with contextlib.suppress(Exception):  # the hint is less, and the error stands
        topics.all(anew=True)
    if len(name) > 1 and whole in topics.last():
        return f"a name with dots needs backquotes: `{whole}`"
    if name[-1] in relations.missing:
        return f"there is no Delta table at {relations.known.lake[name[-1]]} yet"
    first = name[0].lower()
    if len(name) == 2 and first == LAKE:
        return nearest(name[1], list(relations.known.lake))
    if len(name) == 2 and first in (LOG, TOPICS):
        return topics.near(name[1])
    tables = [*relations.known.tables, *relations.known.columns.tables]
    known = [each for each in topics.last() if not each.startswith("__")]
    hint = nearest(whole, [*known, *tables])
    return hint if hint.startswith("did you") else ""
