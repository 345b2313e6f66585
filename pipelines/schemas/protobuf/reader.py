"""Reads the tokens of a `.proto` file in sequence, and parses the grammar shared by all elements."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import descriptor_pb2

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf import literals
from headwater.pipelines.schemas.protobuf.lexer import Comment, Kind, Token, tokens
from headwater.pipelines.schemas.protobuf.options import Option, Value

FIELD_NUMBER_MAX = 2**29 - 1


class Reader:
    """A position in a file: `token` is the next token.

    Comments are attached to the location of the element that they precede or follow.
    """

    def __init__(self, source: str) -> None:
        self._tokens = tokens(source)
        self.token = next(self._tokens)
        self._taken_trailing = False
        self.info = descriptor_pb2.SourceCodeInfo()

    def fail(self, expected: str) -> InvalidSchemaError:
        """Return the error for an unexpected token."""
        token = self.token
        found = repr(token.text[:60]) if token.text else f"the {token.kind.value}"
        return InvalidSchemaError(f"{token.place}: expected {expected}, found {found}")

    def next(self) -> Token:
        """Take the next token."""
        token = self.token
        if token.kind is not Kind.END:
            self.token = next(self._tokens)
            self._taken_trailing = False
        return token

    def at(self, text: str) -> bool:
        """Return whether the next token has this text."""
        return self.token.text == text and self.token.kind is not Kind.TEXT

    def skip(self, text: str) -> bool:
        """Take the next token if it has this text; returns whether it did."""
        if self.at(text):
            self.next()
            return True
        return False

    def take(self, text: str) -> None:
        """Take the next token, which must have this text. Raises the error for an unexpected token otherwise."""
        if not self.skip(text):
            raise self.fail(repr(text))

    def name(self) -> str:
        """Take a name without dots."""
        if self.token.kind is not Kind.NAME:
            raise self.fail("a name")
        return self.next().text

    def type_name(self) -> str:
        """Take a name with dots; a leading dot is allowed."""
        found = "." if self.skip(".") else ""
        found += self.name()
        while self.skip("."):
            found += "." + self.name()
        return found

    def whole(self) -> int:
        """Take an integer; a minus sign is allowed."""
        negative = self.skip("-")
        if self.token.kind is not Kind.INTEGER:
            raise self.fail("a whole number")
        token = self.next()
        try:
            number = literals.integer(token.text)
        except ValueError:
            raise InvalidSchemaError(f"{token.place}: {token.text[:60]!r} is no number") from None
        return -number if negative else number

    def text(self) -> bytes:
        """Take a quoted text; adjacent texts are concatenated."""
        if self.token.kind is not Kind.TEXT:
            raise self.fail("a text in quotes")
        found = b""
        while True:
            token = self.token
            if token.kind is not Kind.TEXT:
                return found
            self.next()
            try:
                found += literals.unquote(token.text)
            except ValueError as error:
                raise InvalidSchemaError(f"{token.place}: {error}") from None

    def string(self) -> str:
        """Take a quoted text that must be UTF-8."""
        place = self.token.place
        try:
            return self.text().decode()
        except UnicodeDecodeError:
            raise InvalidSchemaError(f"{place}: the text is not UTF-8") from None

    def option_name(self) -> tuple[tuple[str, bool], ...]:
        """Take the name of an option."""
        parts = []
        while True:
            if self.skip("("):
                parts.append((self.type_name(), True))
                self.take(")")
            else:
                parts.append((self.name(), False))
            if not self.skip("."):
                return tuple(parts)

    def option(self) -> Option:
        """Take `name = value`."""
        place = self.token.place
        parts = self.option_name()
        self.take("=")
        return Option(parts, self.value(), place)

    def value(self) -> Value:
        """Take the value of an option."""
        if self.at("{"):
            return Value(aggregate=self._aggregate())
        if self.token.kind is Kind.TEXT:
            return Value(text=self.text())
        negative = self.skip("-")
        if not negative:
            self.skip("+")
        sign = -1 if negative else 1
        token = self.token
        if token.kind is Kind.FLOAT or (token.kind is Kind.NAME and negative):
            self.next()
            try:
                return Value(floating=sign * float(token.text.rstrip("fF") if token.kind is Kind.FLOAT else token.text))
            except ValueError:
                raise InvalidSchemaError(f"{token.place}: {token.text!r} is no number") from None
        if token.kind is Kind.INTEGER:
            return Value(whole=sign * self.whole())
        return Value(name=self.name())

    def _aggregate(self) -> str:
        self.take("{")
        depth, words = 1, []
        while depth:
            token = self.next()
            if token.kind is Kind.END:
                raise self.fail("'}'")
            depth += (token.text == "{") - (token.text == "}")
            if depth:
                words.append(token.text)
        return " ".join(words).replace(" . ", ".")

    def compact_options(self) -> Iterator[Option]:
        """Take the options in brackets, if present."""
        if not self.skip("["):
            return
        while True:
            yield self.option()
            if not self.skip(","):
                break
        self.take("]")

    def ranges(self, maximum: int) -> Iterator[tuple[int, int]]:
        """Take numbers and ranges of numbers; a range includes both ends."""
        while True:
            first = self.whole()
            last = first
            if self.skip("to"):
                last = maximum if self.skip("max") else self.whole()
            if last < first:
                raise InvalidSchemaError(f"{self.token.place}: the range from {first} to {last} is empty")
            yield first, last
            if not self.skip(","):
                return

    def leading_comments(self) -> tuple[Comment, ...]:
        """Return the comments before the next token, without those that trail the previous token."""
        comments = self.token.comments
        return comments[1:] if comments and comments[0].trailing else comments

    def located(self, path: tuple[int, ...], comments: tuple[Comment, ...]) -> None:
        """Attach comments to the element that was just read, or whose brace was just opened."""
        behind = self.token.comments[:1]
        trailing = behind[0].text if behind and behind[0].trailing and not self._taken_trailing else ""
        self._taken_trailing = self._taken_trailing or bool(trailing)
        if comments or trailing:
            location = self.info.location.add(path=path)
            if comments:
                location.leading_comments = "\n".join(comment.text for comment in comments)
            if trailing:
                location.trailing_comments = trailing
