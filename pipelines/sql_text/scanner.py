"""Divides SQL text into statements, names and parameters by Spark's lexical rules. Pure; never fails.

Strings (`'…'`, `"…"`, with a backslash as escape unless the string is raw, `r'…'`), backquoted names, nested `/* … */`
and comments from `--` to the end of the line (one that ends with a backslash goes on) hide what they contain. SQL
scripts (`BEGIN … END`) are not recognised.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "Name",
    "SqlToken",
    "SqlTokenKind",
    "Statement",
    "names",
    "parameters",
    "statements",
    "target_of_view",
    "tokens",
    "words",
]

_WORD: Final = re.compile(r"\w+")
_SPACE: Final = re.compile(r"\s+")
_LINE_COMMENT: Final = re.compile(r"--(?:\\\n|[^\r\n])*")  # a backslash at the line's end continues it
#: Tokens before the name of a relation. A name elsewhere, such as in parentheses, is found when Spark misses it.
_BEFORE_RELATIONS: Final = frozenset({
    "FROM", "JOIN", "INTO", "TABLE", "USING", "DESCRIBE", "DESC", "EXTENDED", "FORMATTED", "UPDATE", "IN", "VIEW",
    "OPTIMIZE", "VACUUM", "HISTORY", "DETAIL", "OVERWRITE", ",",
})  # fmt: skip
_STATEMENT_END: Final = ";"


class SqlTokenKind(enum.Enum):
    """Kind of a token."""

    WORD = "word"
    QUOTED = "quoted"
    STRING = "string"
    COMMENT = "comment"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A token's text as written, and its position; `is_open` is true if the text ends before the token does."""

    kind: SqlTokenKind
    text: str
    start: int
    is_open: bool = False

    @property
    def end(self) -> int:
        """The position behind the token."""
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """The name that a word or a backquoted text stands for."""
        if self.kind is SqlTokenKind.QUOTED:
            return self.text[1 : None if self.is_open else -1].replace("``", "`")
        return self.text


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without its semicolon, and where it begins: line and column, both from 1.

    `is_ended` is false if neither a semicolon follows nor the text may end here: a string or comment is still open.
    """

    text: str
    line: int
    column: int
    is_ended: bool

    def place(self, index: int) -> tuple[int, int]:
        r"""Return line and column, in the whole text, of a position in the statement.

        >>> Statement("SELECT\n  a", 3, 5, True).place(9), Statement("SELECT a", 3, 5, True).place(7)
        ((4, 3), (3, 12))
        """
        before = self.text[: max(index, 0)]
        line = before.count("\n")
        if line:
            return self.line + line, len(before) - before.rfind("\n")
        return self.line, self.column + len(before)


Name = tuple[str, ...]
"""The parts of a name, such as `("log", "flights")`."""


def tokens(text: str) -> Iterator[SqlToken]:
    """Yield the tokens of a text.

    >>> [token.text for token in tokens("SELECT 'a;b' -- c\\n FROM `x``y`")]
    ['SELECT', "'a;b'", '-- c', 'FROM', '`x``y`']
    """
    at = 0
    while at < len(text):
        space = _SPACE.match(text, at)
        if space:
            at = space.end()
            continue
        token = _token(text, at)
        yield token
        at = token.end


def _token(text: str, at: int) -> SqlToken:
    two = text[at : at + 2]
    if two == "--":
        line = _LINE_COMMENT.match(text, at)
        return SqlToken(SqlTokenKind.COMMENT, line[0] if line else two, at)
    if two == "/*":
        return _comment(text, at)
    if text[at] in "'\"":
        return _string(text, at, at, is_raw=False)
    if two[:1] in "rR" and two[1:] and two[1] in "'\"":
        return _string(text, at, at + 1, is_raw=True)
    if text[at] == "`":
        return _quoted(text, at)
    word = _WORD.match(text, at)
    if word:
        return SqlToken(SqlTokenKind.WORD, word[0], at)
    return SqlToken(SqlTokenKind.SYMBOL, text[at], at)


def _comment(text: str, start: int) -> SqlToken:
    depth, at = 0, start
    while at < len(text):
        two = text[at : at + 2]
        if two == "/*":
            depth, at = depth + 1, at + 2
        elif two == "*/":
            depth, at = depth - 1, at + 2
            if depth == 0:
                return SqlToken(SqlTokenKind.COMMENT, text[start:at], start)
        else:
            at += 1
    return SqlToken(SqlTokenKind.COMMENT, text[start:], start, is_open=True)


def _string(text: str, start: int, quote_at: int, *, is_raw: bool) -> SqlToken:
    quote, at = text[quote_at], quote_at + 1
    while at < len(text):
        if text[at] == "\\" and not is_raw:
            at += 2
        elif text[at] == quote:
            return SqlToken(SqlTokenKind.STRING, text[start : at + 1], start)
        else:
            at += 1
    return SqlToken(SqlTokenKind.STRING, text[start:], start, is_open=True)


def _quoted(text: str, start: int) -> SqlToken:
    at = start + 1
    while at < len(text):
        if text[at] != "`":
            at += 1
        elif text[at : at + 2] == "``":
            at += 2
        else:
            return SqlToken(SqlTokenKind.QUOTED, text[start : at + 1], start)
    return SqlToken(SqlTokenKind.QUOTED, text[start:], start, is_open=True)


def statements(text: str) -> list[Statement]:
    r"""Divide a text into its statements; one that holds only comments is left out.

    >>> [(each.text, each.line, each.column) for each in statements("SELECT ';' ;\n-- none;\n  SELECT 2")]
    [("SELECT ';'", 1, 1), ('SELECT 2', 3, 3)]
    >>> [each.is_ended for each in statements("SELECT 1; SELECT 'a")]
    [True, False]
    """
    found: list[Statement] = []
    part: list[SqlToken] = []
    for token in tokens(text):
        if token.text == _STATEMENT_END and token.kind is SqlTokenKind.SYMBOL:
            _add(found, text, part, is_ended=True)
            part = []
        else:
            part.append(token)
    _add(found, text, part, is_ended=False)
    return found


def _add(found: list[Statement], text: str, part: Sequence[SqlToken], *, is_ended: bool) -> None:
    """Add the statement of these tokens, from its first token that is no comment on."""
    first = next((token for token in part if token.kind is not SqlTokenKind.COMMENT or token.is_open), None)
    if first is None:
        return
    # A hint is a comment in the middle; comments at the end stay, and do no harm.
    last = part[-1]
    before = text[: first.start]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    found.append(Statement(text[first.start : last.end], line, column, is_ended))


def words(text: str) -> list[str]:
    """Return the words of a statement in capitals, without names in backquotes, strings and comments.

    >>> words("Insert into `from` /* x */ VALUES ('y')")
    ['INSERT', 'INTO', 'VALUES']
    """
    return [token.text.upper() for token in tokens(text) if token.kind is SqlTokenKind.WORD]


def names(text: str) -> list[Name]:
    """Return the names that stand where a statement names relations, with some that are none: columns behind a comma.

    >>> names("WITH a AS (SELECT x FROM log.`t.1`) SELECT 'FROM z' FROM a JOIN b AS c USING (k), d")
    [('log', 't.1'), ('a',), ('b',), ('d',)]
    >>> names("DESCRIBE flights"), names("SELECT 1")
    ([('flights',)], [])
    """
    found: dict[Name, None] = {}
    seen = [token for token in tokens(text) if token.kind is not SqlTokenKind.COMMENT]
    for position, token in enumerate(seen):
        before = token.text.upper() if token.kind in (SqlTokenKind.WORD, SqlTokenKind.SYMBOL) else ""
        if before in _BEFORE_RELATIONS and not (position and seen[position - 1].text == "."):
            name = _name_at(seen, position + 1)
            if name and name[0].upper() not in _BEFORE_RELATIONS:
                found[name] = None
    return list(found)


def _name_at(seen: Sequence[SqlToken], position: int) -> Name:
    """Return the name that begins with a token; `()` if none does."""
    parts: list[str] = []
    while position < len(seen) and seen[position].kind in (SqlTokenKind.WORD, SqlTokenKind.QUOTED):
        parts.append(seen[position].name)
        if position + 1 >= len(seen) or seen[position + 1].text != ".":
            break
        position += 2
    return tuple(parts)


def parameters(text: str) -> list[str]:
    """Return the names of the parameters in a statement.

    >>> parameters("SELECT :a, x::int, ':b' FROM t WHERE y = :c")
    ['a', 'c']
    """
    seen = [token for token in tokens(text) if token.kind is not SqlTokenKind.COMMENT]
    return [
        token.text
        for position, token in enumerate(seen)
        if token.kind is SqlTokenKind.WORD
        and position
        and seen[position - 1].text == ":"
        and seen[position - 1].end == token.start
        and not (position > 1 and _joins(seen[position - 2], seen[position - 1]))
    ]


def _joins(left: SqlToken, colon: SqlToken) -> bool:
    """Whether a colon belongs to what stands before it: `x::int`, `variant:field`."""
    return left.end == colon.start and (left.text == ":" or left.kind is not SqlTokenKind.SYMBOL or left.text in ")]")


def target_of_view(text: str, global_schema: str) -> Name | None:
    """Return the name, in lower case, of the view that a statement creates or drops; None for other statements.

    That of a global temporary view begins with `global_schema`. A persistent view is a table of the catalog.

    >>> target_of_view("create or replace temp view `A` AS SELECT 1", "g"), target_of_view("DROP VIEW IF EXISTS b", "g")
    (('a',), ('b',))
    >>> target_of_view("CREATE GLOBAL TEMPORARY VIEW a AS SELECT 1", "g"), target_of_view("SELECT * FROM view", "g")
    (('g', 'a'), None)
    """
    seen = [token for token in tokens(text) if token.kind is not SqlTokenKind.COMMENT]
    if not seen or seen[0].text.upper() not in ("CREATE", "DROP"):
        return None
    at = next((i for i, token in enumerate(seen[:6]) if token.text.upper() == "VIEW"), None)
    if at is None:
        return None
    between = {token.text.upper() for token in seen[1:at]}
    at += 1
    while at < len(seen) and seen[at].text.upper() in ("IF", "NOT", "EXISTS"):
        at += 1
    name = tuple(part.lower() for part in _name_at(seen, at))
    return (global_schema, *name) if name and "GLOBAL" in between else name or None
