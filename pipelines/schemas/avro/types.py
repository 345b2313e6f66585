"""Avro types as a graph; pure data.

Named types may contain themselves, so their parts are filled in after creation; a parsed schema never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

Props: TypeAlias = dict[str, Any]
"""Attributes beyond the specification's fields, logical types included, in order."""

ABSENT: Final = object()
"""Marks a missing default: null is a valid default."""


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a record, enum or fixed, and its namespace ("" if absent).

    >>> Name("Flight", "air").full
    'air.Flight'
    """

    simple: str
    space: str

    @property
    def full(self) -> str:
        """The name with its namespace."""
        return f"{self.space}.{self.simple}" if self.space else self.simple

    def within(self, space: str) -> str:
        """Return the reference to this name from inside a namespace.

        >>> (
        ...     Name("Flight", "air").within("air"),
        ...     Name("Flight", "air").within("sea"),
        ...     Name("string", "air").within("air"),
        ... )
        ('Flight', 'air.Flight', 'air.string')
        """
        return self.simple if self.space == space and self.simple not in PRIMITIVES else self.full


@dataclass(eq=False, slots=True)
class PrimitiveType:
    """One of the eight primitive types."""

    kind: str
    props: Props = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class ArrayType:
    """A sequence of items of one type."""

    items: AvroType
    props: Props
    kind: str = "array"


@dataclass(eq=False, slots=True)
class MapType:
    """A map from strings to values of one type."""

    values: AvroType
    props: Props
    kind: str = "map"


@dataclass(eq=False, slots=True)
class UnionType:
    """One of several types; no branch is a union, and no two unnamed branches have the same kind."""

    branches: list[AvroType]
    kind: str = "union"


@dataclass(eq=False, slots=True)
class EnumType:
    """One of several symbols."""

    name: Name
    aliases: list[Name]
    doc: str | None
    symbols: list[str]
    default: str | None
    props: Props
    kind: str = "enum"
    symbol_set: frozenset[str] = field(init=False)
    alias_set: frozenset[Name] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the set for membership tests."""
        self.symbol_set = frozenset(self.symbols)
        self.alias_set = frozenset(self.aliases)


@dataclass(eq=False, slots=True)
class FixedType:
    """A fixed number of bytes."""

    name: Name
    aliases: list[Name]
    doc: str | None
    size: int
    props: Props
    kind: str = "fixed"
    alias_set: frozenset[Name] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the set for membership tests."""
        self.alias_set = frozenset(self.aliases)


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record; a missing `default` is ABSENT."""

    name: str
    type: AvroType
    doc: str | None
    default: Any
    order: str
    aliases: list[str]
    props: Props


@dataclass(eq=False, slots=True)
class RecordType:
    """A sequence of fields."""

    name: Name
    aliases: list[Name]
    doc: str | None
    fields: list[Field]
    props: Props
    kind: str = "record"
    alias_set: frozenset[Name] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the set for membership tests."""
        self.alias_set = frozenset(self.aliases)


NamedType: TypeAlias = EnumType | FixedType | RecordType
AvroType: TypeAlias = PrimitiveType | ArrayType | MapType | UnionType | EnumType | FixedType | RecordType


def type_name(avro_type: AvroType) -> str:
    """Return the key of a union's branch: the full name of a named type, otherwise the kind."""
    return avro_type.name.full if isinstance(avro_type, EnumType | FixedType | RecordType) else avro_type.kind
