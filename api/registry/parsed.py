"""What the three languages of schemas have in common, so that the rest need not know which one it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from api.registry.model import SchemaType

DEPTH_MAX = 100
"""How deep a schema may nest. Deeper ones are attacks, and end in Python's own limit otherwise."""

PROBLEMS_MAX = 100
"""Incompatibilities told of one pair of schemas; whoever mends a hundred can ask again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a reader does not understand what a writer wrote; `kind` has the name that Confluent uses."""

    kind: str
    path: str
    text: str

    def __str__(self) -> str:
        """Write it as Confluent's registry does."""
        return f"{{errorType:'{self.kind}', description:'{self.text}', path:'{self.path}'}}"


class ParsedSchema(Protocol):
    """A schema that was understood."""

    @property
    def schema_type(self) -> SchemaType:
        """Its language."""

    @property
    def canonical(self) -> str:
        """Its text, written in the one way that does not depend on layout."""

    def normalized(self) -> str:
        """Its text without what makes no difference, such as the order of its parts."""

    def formatted(self, form: str) -> str:
        """Its text in another form, which the language names; the canonical one for a name it does not know."""

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why a reader with this schema does not understand data of the other one; empty when it does."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A schema that another one uses, under the name by which it is used."""

    name: str
    parsed: ParsedSchema


Dependencies = Sequence[Dependency]
"""Everything that a schema uses, directly or not; what is used stands before what uses it."""
