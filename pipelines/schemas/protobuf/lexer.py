"""The tokens of a `.proto` file, each with its preceding comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from headwater.pipelines.schemas.errors import InvalidSchemaError


class Kind(StrEnum):
    """The kind of a token."""

    NAME = "name"
    INTEGER = "integer"
    FLOAT = "float"
    TEXT = "text"
    SYMBOL = "symbol"
    END = "end of the file"


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment without its delimiters; `trailing` if it is on the previous token's line."""

    text: str
    trailing: bool


class Token(NamedTuple):
    """A token, its position, and the comments between the previous token and this one."""

    kind: Kind
    text: str
    line: int
    column: int
    comments: tuple[Comment, ...] = ()

    @property
    def place(self) -> str:
        """The token's position for messages."""
        return f"line {self.line}:{self.column}"


_PATTERN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<line_comment>//[^\n]*)
      | (?P<block_comment>/\*.*?\*/)
      | (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|\d+[eE][+-]?\d+[fF]?|\d+[fF]\b)
      | (?P<integer>0[xX][0-9a-fA-F]+|\d+)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<symbol>[;{}()\[\]<>=,.:/+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_KINDS: Final = {kind.value: kind for kind in (Kind.NAME, Kind.INTEGER, Kind.FLOAT, Kind.TEXT, Kind.SYMBOL)}


def tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of a file; the last is the end token.

    >>> [token.text for token in tokens("string name = 1; // whose")]
    ['string', 'name', '=', '1', ';', '']

    Raises:
        InvalidSchemaError: the source contains an invalid token.
    """
    comments: list[Comment] = []
    position, line, line_start, last_line = 0, 1, 0, 0
    source = source.removeprefix("\ufeff")
    while position < len(source):
        match = _PATTERN.match(source, position)
        column = position - line_start + 1
        if match is None:
            raise InvalidSchemaError(f"line {line}:{column}: unexpected {source[position : position + 20]!r}")
        kind, text = str(match.lastgroup), match.group()
        if kind.endswith("_comment"):
            comments.append(Comment(_uncommented(text), line == last_line))
        elif kind != "space":
            yield Token(_KINDS[kind], text, line, column, tuple(comments))
            if comments:
                comments = []
            last_line = line
        if newlines := text.count("\n"):
            line += newlines
            line_start = position + text.rindex("\n") + 1
        position = match.end()
    yield Token(Kind.END, "", line, position - line_start + 1, tuple(comments))


def _uncommented(text: str) -> str:
    r"""Return a comment's text.

    >>> _uncommented("// a"), _uncommented("/* a\n * b */")
    ('a', 'a\nb')
    """
    if text.startswith("//"):
        return text[2:].strip()
    lines = [line.strip().removeprefix("*").strip() for line in text[2:-2].splitlines()]
    return "\n".join(lines).strip()
