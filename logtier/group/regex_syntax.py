"""RE2's syntax of regular expressions, read into a tree. Pure.

Only what concerns whether a text matches: groups do not capture, lazy repetition is repetition. What needs backtracking
(back references, look-around) is not in RE2's syntax and refused. Texts are topic names, so a set of characters is a
bit mask over ASCII; line breaks do not occur, so the flags `m` and `s` mean nothing.
"""

import enum
import unicodedata
from dataclasses import dataclass
from typing import Final

#: RE2's limit of one counted repetition.
REPEAT_MAX: Final = 1000
#: Groups within groups.
NESTING_MAX: Final = 100

ASCII: Final = (1 << 128) - 1


class InvalidRegexError(ValueError):
    """Why an expression is refused, to be shown to whoever wrote it."""


class Assertion(enum.Enum):
    """What holds between two characters."""

    BEGIN = enum.auto()
    END = enum.auto()
    WORD_BOUNDARY = enum.auto()
    NO_WORD_BOUNDARY = enum.auto()


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set; bit n of the mask stands for the character of code n."""

    mask: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of them."""

    choices: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """At least `least` times, at most `most` times (None: any number)."""

    body: "Node"
    least: int
    most: int | None


Node = Characters | Sequence | Alternatives | Repetition | Assertion


def mask_of(characters: str) -> int:
    """The mask of a few characters; those that no topic name has are left out."""
    return sum({1 << ord(each) for each in characters if ord(each) < 128})


def _span(first: str, last: str) -> int:
    return sum(1 << code for code in range(ord(first), min(ord(last), 127) + 1))


_DIGIT: Final = _span("0", "9")
_LOWER: Final = _span("a", "z")
_UPPER: Final = _span("A", "Z")
WORD: Final = _DIGIT | _LOWER | _UPPER | mask_of("_")
_PERL: Final = {"d": _DIGIT, "s": mask_of("\t\n\f\r "), "w": WORD}
_POSIX: Final = {
    "alnum": _DIGIT | _LOWER | _UPPER,
    "alpha": _LOWER | _UPPER,
    "ascii": ASCII,
    "blank": mask_of("\t "),
    "cntrl": _span("\0", "\x1f") | mask_of("\x7f"),
    "digit": _DIGIT,
    "graph": _span("!", "~"),
    "lower": _LOWER,
    "print": _span(" ", "~"),
    "punct": _span("!", "/") | _span(":", "@") | _span("[", "`") | _span("{", "~"),
    "space": mask_of("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": WORD,
    "xdigit": _DIGIT | _span("A", "F") | _span("a", "f"),
}
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS: Final = {
    "A": Assertion.BEGIN,
    "z": Assertion.END,
    "b": Assertion.WORD_BOUNDARY,
    "B": Assertion.NO_WORD_BOUNDARY,
}
_FLAGS: Final = "imsU"


def parse_regex(text: str) -> Node:
    """Read an expression.

    Raises:
        InvalidRegexError: it is none of RE2's syntax, or repeats or nests too much.
    """
    parser = _Parser(text)
    node = parser.alternatives(0)
    if parser.rest():
        raise InvalidRegexError("unexpected )")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignores_case = False

    def rest(self) -> str:
        return self._text[self._at :]

    def alternatives(self, depth: int) -> Node:
        """Up to the end or to a closing parenthesis."""
        if depth > NESTING_MAX:
            raise InvalidRegexError(f"more than {NESTING_MAX} groups within each other")
        choices = [self._sequence(depth)]
        while self._skip("|"):
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else Alternatives(tuple(choices))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            atom = self._atom(depth)
            if atom is None:
                continue
            parts.extend(self._literal_run(atom) if isinstance(atom, str) else [self._repeated(atom)])
        return Sequence(tuple(parts))

    def _literal_run(self, text: str) -> list[Node]:
        """The characters of a quoted text; a repetition behind it is of the last one."""
        nodes: list[Node] = [Characters(self._fold(mask_of(each))) for each in text]
        if nodes:
            nodes[-1] = self._repeated(nodes[-1])
        return nodes

    def _repeated(self, body: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return body
        least, most = bounds
        self._skip("?")
        if self._bounds() is not None:
            raise InvalidRegexError("invalid nested repetition operator")
        return Repetition(body, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(operator):
                return bounds
        if not self._text.startswith("{", self._at):
            return None
        end = self._text.find("}", self._at)
        first, comma, last = self._text[self._at + 1 : max(end, self._at + 1)].partition(",")
        numbers = [each for each in (first, last) if each]
        if end < 0 or not first or not all(each.isascii() and each.isdigit() for each in numbers):
            return None  # an ordinary brace
        least = int(first) if len(first) < 6 else REPEAT_MAX + 1
        most = least if not comma else None if not last else int(last) if len(last) < 6 else REPEAT_MAX + 1
        if least > REPEAT_MAX or (most is not None and (most > REPEAT_MAX or most < least)):
            raise InvalidRegexError("invalid repeat count")
        self._at = end + 1
        return least, most

    def _atom(self, depth: int) -> Node | str | None:
        """One thing that can be repeated; a quoted text; or None for what only sets flags."""
        letter = self._next()
        match letter:
            case "(":
                return self._group(depth)
            case "[":
                return Characters(self._class())
            case ".":
                return Characters(ASCII)
            case "^":
                return Assertion.BEGIN
            case "$":
                return Assertion.END
            case "{":
                self._at -= 1
                if self._bounds() is not None:
                    raise InvalidRegexError("missing argument to repetition operator")
                self._at += 1
                return Characters(self._fold(mask_of(letter)))
            case "*" | "+" | "?":
                raise InvalidRegexError("missing argument to repetition operator")
            case "\\":
                return self._escape()
            case _:
                return Characters(self._fold(mask_of(letter)))

    def _group(self, depth: int) -> Node | None:
        outer = self._ignores_case
        if self._skip("?"):
            if self._skip("P<") or (self.rest()[:1] == "<" and self.rest()[1:2] not in "=!" and self._skip("<")):
                name, closed, _ = self.rest().partition(">")
                if not closed or not name or not all(each.isalnum() or each == "_" for each in name):
                    raise InvalidRegexError("invalid named capture")
                self._at += len(name) + 1
            elif self._flags():
                return None
        node = self.alternatives(depth + 1)
        if not self._skip(")"):
            raise InvalidRegexError("missing closing )")
        self._ignores_case = outer
        return node

    def _flags(self) -> bool:
        """Read `i-s:` or `i)`; True for the second, which holds for the rest of the group around it."""
        sets = True
        while self._at < len(self._text):
            letter = self._next()
            if letter == "-" and sets:
                sets = False
            elif letter in _FLAGS:
                self._ignores_case = sets if letter == "i" else self._ignores_case
            elif letter in ":)":
                return letter == ")"
            else:
                break
        raise InvalidRegexError("invalid or unsupported Perl syntax")

    def _escape(self) -> Node | str:
        if self._at == len(self._text):
            raise InvalidRegexError("trailing backslash at end of expression")
        letter = self._next()
        if letter in _ASSERTIONS:
            return _ASSERTIONS[letter]
        if letter == "Q":
            quoted, _, _ = self.rest().partition("\\E")
            self._at = min(self._at + len(quoted) + 2, len(self._text))
            return quoted
        return Characters(self._escaped_set(letter))

    def _escaped_set(self, letter: str) -> int:
        """What an escape stands for, in a class and outside of it."""
        if letter.lower() in _PERL:
            mask = _PERL[letter.lower()]
            return mask if letter.islower() else ASCII & ~mask
        if letter in "pP":
            return self._unicode_class(negated=letter == "P")
        return self._fold(mask_of(self._escaped_character(letter)))

    def _escaped_character(self, letter: str) -> str:
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter == "x":
            return self._hexadecimal()
        if letter in "01234567":
            digits = letter + self.rest()[:2]
            digits = digits[: next((i for i, each in enumerate(digits) if each not in "01234567"), len(digits))]
            if letter == "0" or len(digits) > 1:
                self._at += len(digits) - 1
                return chr(int(digits, 8))
        if letter.isalnum():
            raise InvalidRegexError("invalid escape sequence")
        return letter

    def _hexadecimal(self) -> str:
        if self._skip("{"):
            digits, closed, _ = self.rest().partition("}")
            taken = len(digits) + 1
        else:
            digits, closed, taken = self.rest()[:2], "}", 2
            digits = digits if len(digits) == 2 else ""
        if not closed or not 0 < len(digits) <= 6 or not all(each in "0123456789abcdefABCDEF" for each in digits):
            raise InvalidRegexError("invalid escape sequence")
        self._at += taken
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise InvalidRegexError("invalid escape sequence")
        return chr(code)

    def _unicode_class(self, *, negated: bool) -> int:
        if self._skip("{"):
            name, closed, _ = self.rest().partition("}")
            self._at += len(name) + 1
        else:
            name, closed = self.rest()[:1], "}"
            self._at += 1
        inverted = name.startswith("^")
        name = name.removeprefix("^")
        if not closed or not (name in ("Any", "Latin", "Common") or (0 < len(name) <= 2 and name[0] in "LMNPSZC")):
            raise InvalidRegexError("invalid character class range")
        if name == "Any":
            mask = ASCII
        elif name in ("Latin", "Common"):
            mask = _LOWER | _UPPER if name == "Latin" else ASCII & ~(_LOWER | _UPPER)
        else:
            mask = sum(1 << code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
        return ASCII & ~mask if negated != inverted else mask

    def _class(self) -> int:
        negated = self._skip("^")
        mask, is_first = 0, True
        while is_first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise InvalidRegexError("missing closing ]")
            is_first = False
            posix = self._posix_class()
            mask |= self._class_item() if posix is None else posix
        self._at += 1
        mask = self._fold(mask)
        return ASCII & ~mask if negated else mask

    def _posix_class(self) -> int | None:
        if not self._text.startswith("[:", self._at):
            return None
        end = self._text.find(":]", self._at + 2)
        if end < 0:
            return None
        name = self._text[self._at + 2 : end]
        if name.removeprefix("^") not in _POSIX:
            raise InvalidRegexError("invalid character class range")
        self._at = end + 2
        mask = _POSIX[name.removeprefix("^")]
        return ASCII & ~mask if name.startswith("^") else mask

    def _class_item(self) -> int:
        """A character, a range, or an escape for several."""
        letter = self._next()
        if letter == "\\":
            if self._at >= len(self._text):
                raise InvalidRegexError("missing closing ]")
            escape = self._next()
            if escape.lower() in _PERL or escape in "pP":
                return self._escaped_set(escape)
            letter = self._escaped_character(escape)
        if not self.rest().startswith("-") or self.rest()[1:2] in ("]", ""):
            return mask_of(letter)
        self._at += 1
        last = self._next()
        if last == "\\" and self._at < len(self._text):
            last = self._escaped_character(self._next())
        if last < letter:
            raise InvalidRegexError("invalid character class range")
        return _span(letter, last)

    def _fold(self, mask: int) -> int:
        if self._ignores_case:
            mask |= (mask & _LOWER) >> 32 | (mask & _UPPER) << 32
        return mask

    def _next(self) -> str:
        letter = self._text[self._at]
        self._at += 1
        return letter

    def _skip(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False
