"""The way of an event time column through a SELECT, up to the first operator that keeps state. Pure.

Spark drops a row at a stateful operator by the event time among its columns: the column of the watermark itself, or a
window of it. `followed` gives the SELECT without its grouping: the rows that reach the operator, each with the record
that it was made of and with this event time. Conditions and joins stay as they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines.sql_text.shape import group_keys, parsed_query, sql_shape

if TYPE_CHECKING:
    from sqlglot import Token, exp

__all__ = ["EVENT_TIME", "RECORD", "Followed", "NotFollowedError", "followed"]

RECORD: Final = "_headwater_record"
"""Column with the record that a row was made of."""
EVENT_TIME: Final = "_headwater_event_time"
"""Column with the event time by which an operator drops a row: a moment, or a window."""

_WINDOWS: Final = ("window", "session_window")


class NotFollowedError(Exception):
    """The event time cannot be followed through a SELECT; the message says why."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A SELECT with `RECORD` among its columns.

    For an operator that keeps state, `text` is without the grouping and has the columns `RECORD` and `EVENT_TIME`.
    Otherwise `names` are the columns that hold the event time afterwards, in lower case.
    """

    text: str
    keeps_state: bool
    names: frozenset[str]


def followed(text: str, views: Collection[str], names: Collection[str]) -> Followed:
    """Follow the event time, which the columns `names` of the stream hold, through a text. Raises NotFollowedError.

    `views` are the names under which the text reads the stream.

    >>> followed("SELECT window(at, '1 hour') AS w, count(*) FROM t WHERE x > 1 GROUP BY 1", ["t"], ["at"]).text
    "SELECT `_headwater_record`, window(`at`, '1 hour') AS `_headwater_event_time` FROM t WHERE x > 1"
    >>> passed = followed("SELECT id, at AS t0 FROM t", ["t"], ["at"])
    >>> passed.text, passed.names
    ('SELECT id, at AS t0\\n, `_headwater_record` FROM t', frozenset({'t0'}))
    """
    select, stream = _select(text, views)
    start, end = _from_clause(text)
    kinds = {operator["kind"] for operator in sql_shape(text, views).operators}
    if kinds - {"aggregate"}:
        raise NotFollowedError(f"it has a {' and a '.join(sorted(kinds - {'aggregate'}))} over the stream")
    if kinds:
        by = _event_time_key(select, stream, names)
        made = f"SELECT `{RECORD}`, {by} AS `{EVENT_TIME}` {text[start:end].strip()}"
        found = Followed(made, keeps_state=True, names=frozenset())
    else:
        passes = any(_is_star_of(column, stream) for column in select.expressions)
        made = text[:end] if passes else f"{text[:start].rstrip()}\n, `{RECORD}` {text[start:end]}"
        found = Followed(made.strip(), keeps_state=False, names=frozenset(_passed(select, stream, names)))
    _assert_same_rows(select, found.text)
    return found


def _select(text: str, views: Collection[str]) -> tuple[exp.Select, str]:
    """The text's only SELECT over the stream, and the stream's name in it."""
    from sqlglot import exp

    tree = parsed_query(text)
    if tree is None:
        raise NotFollowedError("sqlglot cannot read it")
    if not isinstance(tree, exp.Select) or tree.args.get("with_"):
        raise NotFollowedError("it is more than one SELECT")
    first = tree.args.get("from_")
    joins = [join.this for join in tree.args.get("joins") or ()]
    wanted = {view.lower() for view in views}
    read = [table for table in tree.find_all(exp.Table) if not table.db and table.name in wanted]
    direct = [source for source in (first.this if first is not None else None, *joins) if source in read]
    if len(read) != 1 or len(direct) != 1:
        how = {0: "it does not read the stream", 1: "it reads the stream in a subquery"}
        raise NotFollowedError(how.get(len(read), "it reads the stream twice"))
    refused = (exp.Pivot, exp.TableSample, exp.Limit, exp.Offset, exp.MatchRecognize)
    if (other := tree.find(*refused)) is not None:
        raise NotFollowedError(f"it has a {other.key.upper()}")
    return tree, read[0].alias_or_name


def _from_clause(text: str) -> tuple[int, int]:
    """Where FROM begins, and where its joins and conditions end: before GROUP BY and all that follows."""
    from sqlglot import TokenType

    # What follows the rows of a SELECT, in any order.
    closing = {
        TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.SORT_BY, TokenType.CLUSTER_BY,
        TokenType.DISTRIBUTE_BY, TokenType.WINDOW, TokenType.SEMICOLON
    }  # fmt: skip
    start = -1
    before: Token | None = None
    for token in _outermost(text):
        if start < 0 and token.token_type is TokenType.FROM:
            if before is None or before.token_type is not TokenType.DISTINCT:  # IS DISTINCT FROM
                start = token.start
        elif start >= 0 and token.token_type in closing:
            return start, token.start
        before = token
    if start < 0:
        raise NotFollowedError("it has no FROM")
    return start, len(text)


def _outermost(text: str) -> Iterator[Token]:
    """The tokens that stand in no parentheses."""
    import sqlglot
    from sqlglot import TokenType

    depth = 0
    for token in sqlglot.Dialect.get_or_raise("spark").tokenize(text):
        if token.token_type is TokenType.L_PAREN:
            depth += 1
        elif token.token_type is TokenType.R_PAREN:
            depth -= 1
        elif depth == 0:
            yield token


def _event_time_key(select: exp.Select, stream: str, names: Collection[str]) -> str:
    """The one key of the groups that holds the event time, as SQL."""
    from sqlglot import exp

    keys = group_keys(select)
    if any(isinstance(key, exp.Group | exp.Cube | exp.Rollup | exp.GroupingSets) for key in keys):
        raise NotFollowedError("it groups by CUBE, ROLLUP or GROUPING SETS")
    found = dict.fromkeys(by for key in keys if (by := _as_event_time(key, stream, names)) is not None)
    if not found:
        raise NotFollowedError("its groups have no event time, and Spark drops no rows of theirs")
    if len(found) > 1:
        raise NotFollowedError(f"its groups have several event times ({', '.join(found)})")
    return next(iter(found))


def _as_event_time(key: exp.Expr, stream: str, names: Collection[str]) -> str | None:
    """A key that is the event time or a window of it, as SQL; None for any other. Raises NotFollowedError."""
    from sqlglot import exp

    key = key.unnest()
    if _is_event_time(key, stream, names):
        return key.sql("spark", identify=True)
    is_window = isinstance(key, exp.Anonymous) and key.name.lower() in _WINDOWS
    if not is_window or not key.expressions or not _is_event_time(key.expressions[0], stream, names):
        return None
    name = key.name.lower()
    at, *others = key.expressions
    if not all(isinstance(part, exp.Literal) and part.is_string for part in others):
        raise NotFollowedError(f"the length of its {name} is no text such as '10 minutes'")
    return f"{name}({', '.join([at.sql('spark', identify=True), *(part.sql('spark') for part in others)])})"


def _is_event_time(node: exp.Expr, stream: str, names: Collection[str]) -> bool:
    from sqlglot import exp

    return (
        isinstance(node, exp.Column) and node.name in names and not node.args.get("db") and node.table in ("", stream)
    )


def _passed(select: exp.Select, stream: str, names: Collection[str]) -> Iterator[str]:
    from sqlglot import exp

    for column in select.expressions:
        if _is_star_of(column, stream):
            star = column.this if isinstance(column, exp.Column) else column
            left_out = {each.name.lower() for each in star.args.get("except_") or ()}
            yield from (name for name in names if name not in left_out)
        elif _is_event_time(column.unalias(), stream, names):
            yield column.alias_or_name


def _is_star_of(column: exp.Expr, stream: str) -> bool:
    """Whether a column is `*`, or `stream.*`."""
    from sqlglot import exp

    if isinstance(column, exp.Column):
        return isinstance(column.this, exp.Star) and column.table == stream
    return isinstance(column, exp.Star)


def _assert_same_rows(select: exp.Select, made: str) -> None:
    """The made SELECT has the sources and conditions of the one that it was made of. Raises NotFollowedError."""
    again = parsed_query(made)
    parts = ("from_", "joins", "where", "laterals")
    if again is None or any(repr(select.args.get(part)) != repr(again.args.get(part)) for part in parts):
        raise NotFollowedError("sqlglot cannot tell its sources and conditions from its columns")
