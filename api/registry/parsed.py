"""What the three languages of schemas have in common, so that the rest need not know which one it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.api.registry.model import SchemaType
from headwater.pipelines.schemas.errors import Problem


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
