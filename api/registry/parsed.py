"""The common interface of the three schema languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.api.registry.model import SchemaType
from headwater.pipelines.schemas.errors import Problem


class ParsedSchema(Protocol):
    """A parsed schema."""

    @property
    def schema_type(self) -> SchemaType:
        """The schema's language."""

    @property
    def canonical(self) -> str:
        """The text in the canonical form, which does not depend on layout."""

    def normalized(self) -> str:
        """Return the text without insignificant differences, such as the order of its parts."""

    def formatted(self, form: str) -> str:
        """Return the text in a form of the language; an unknown form gives the canonical text."""

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why a reader with this schema cannot read data written with `written`; empty if it can."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A referenced schema with its name in the referring schema."""

    name: str
    parsed: ParsedSchema


Dependencies = Sequence[Dependency]
"""All direct and indirect references of a schema, dependencies first."""
