"""What can be wrong with a schema, and with a pair of them, in whichever language."""

from __future__ import annotations

from dataclasses import dataclass

DEPTH_MAX = 100
"""How deep a schema may nest. Deeper ones are attacks, and end in Python's own limit otherwise."""

PROBLEMS_MAX = 100
"""Incompatibilities told of one pair of schemas; whoever mends a hundred can ask again."""


class InvalidSchemaError(ValueError):
    """A text that is no schema of its type; the message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a reader does not understand what a writer wrote; `kind` has the name that Confluent uses."""

    kind: str
    path: str
    text: str

    def __str__(self) -> str:
        """Write it as Confluent's registry does."""
        return f"{{errorType:'{self.kind}', description:'{self.text}', path:'{self.path}'}}"
