"""Regular expressions over topic names and transactional ids, in RE2's syntax (KIP-848, KIP-1152).

google-re2 matches in time linear in the name. A backtracking engine could hold up the broker for hours with one
expression (docs/adr/0023).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

#: RE2 parses an expression before it checks the program's size; a byte of an expression takes up to 14 KB meanwhile.
REGEX_BYTES_MAX: Final = 4096
#: Memory of one compiled expression: its program of at most about 8,000 instructions, and the states of its automaton.
#: RE2 matches without the automaton when the states do not fit.
MEMORY_BYTES_MAX: Final = 128 << 10
#: Names in one turn of the event loop, at most.
NAMES_PER_TURN: Final = 500
#: Product of the program's instructions and the characters of names in one turn, at most. RE2 without its automaton
#: takes up to 6 ns for each: a turn takes 15 ms.
STEPS_PER_TURN: Final = 2_500_000
#: Error of RE2 for a program that exceeds its memory limit; any other error names the faulty part after a colon.
_TOO_LARGE: Final = "pattern too large"


class InvalidRegexError(ValueError):
    """An expression outside RE2's syntax or above a limit; the text is the reason, for the author of the expression."""


class NameRegex:
    """A compiled expression; matches whole names.

    google-re2 caches the 128 expressions that were compiled last.

    >>> NameRegex("(eu|us)-[a-z]+").matches("eu-orders"), NameRegex("(eu|us)-[a-z]+").matches("eu-orders-2")
    (True, False)

    Attributes:
        text: The expression.
        size: Number of instructions of RE2's program, which bounds the time for each byte of a name.

    Raises:
        InvalidRegexError: (constructor) the expression is not in RE2's syntax or exceeds a limit.
    """

    def __init__(self, text: str) -> None:
        # Imported with the first expression: few brokers get any, and the import takes 2 MB of a process.
        import re2

        encoded = text.encode()
        if len(encoded) > REGEX_BYTES_MAX:
            raise InvalidRegexError(f"it has {len(encoded)} bytes, and at most {REGEX_BYTES_MAX} are allowed")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MEMORY_BYTES_MAX
        # RE2 matches without submatches by its automaton alone.
        options.never_capture = True
        try:
            compiled = re2.compile(encoded, options)
        except re2.error as error:
            raise InvalidRegexError(_reason(error.args[0].decode(errors="replace"))) from None
        self.text = text
        self.size: int = compiled.programsize
        self._match = compiled.fullmatch

    def matches(self, name: str) -> bool:
        """Return whether the expression matches the whole name."""
        # Bytes: google-re2 counts the characters of a string for the positions of a match.
        return self._match(name.encode()) is not None

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match."""
        return frozenset(name for name in names if self.matches(name))

    def turns(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the names in parts that are matched in one turn of the event loop each.

        >>> [len(part) for part in NameRegex("t.*").turns(["t"] * 1200)]
        [500, 500, 200]
        """
        start = steps = 0
        for position, name in enumerate(names):
            steps += self.size * len(name)
            if position > start and (steps > STEPS_PER_TURN or position - start == NAMES_PER_TURN):
                yield names[start:position]
                start, steps = position, self.size * len(name)
        if start < len(names):
            yield names[start:]


def _reason(message: str) -> str:
    """The reason in an error message of RE2.

    >>> _reason("missing ]: [a-z")
    'missing ] in `[a-z`'
    """
    if message.startswith(_TOO_LARGE):
        return f"its program needs more than {MEMORY_BYTES_MAX >> 10} KiB; repeat fewer times or use fewer classes"
    reason, colon, part = message.partition(": ")
    return f"{reason} in `{part}`" if colon else reason
