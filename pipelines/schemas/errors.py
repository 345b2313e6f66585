"""Errors of a schema, and incompatibilities between two schemas, in any language."""

from __future__ import annotations

from dataclasses import dataclass

DEPTH_MAX = 100
"""Maximum nesting of a schema. A deeper schema counts as an attack, and would reach Python's recursion limit."""

PROBLEMS_MAX = 100
"""Incompatibilities reported for one pair of schemas."""


class InvalidSchemaError(ValueError):
    """A text is not a valid schema of its type; the message names the fault and its position."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a reader cannot read a writer's values; `kind` is Confluent's name of the reason."""

    kind: str
    path: str
    text: str

    def __str__(self) -> str:
        """The incompatibility in the form of Confluent's registry."""
        return f"{{errorType:'{self.kind}', description:'{self.text}', path:'{self.path}'}}"
