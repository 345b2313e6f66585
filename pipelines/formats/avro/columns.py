"""Maps Avro schemas to columns. Pure.

Each part of the schema becomes a `Node`: programs write to its slot, and Arrow's arrays are built from it. A column
cannot contain itself, and has one type beside null; any other schema is refused with the path of the part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.columns import quoted
from headwater.pipelines.schemas.avro.parser import parse
from headwater.pipelines.schemas.avro.types import (
    AvroType,
    EnumType,
    FixedType,
    MapType,
    NamedType,
    PrimitiveType,
    RecordType,
    UnionType,
)
from headwater.pipelines.schemas.errors import InvalidSchemaError

NESTING_MAX: Final = 20  # Spark's own plans become slow long before
NODES_MAX: Final = 10_000  # of one schema: types that are used again and again multiply

_PLAIN: Final = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BINARY",
    "string": "STRING",
}  # fmt: skip
_LOGICAL: Final = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "timestamp-nanos"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-nanos"): "TIMESTAMP_NTZ",
}
DECIMAL_PRECISION_MAX: Final = 38  # Spark's
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


@dataclass(slots=True)
class Node:
    """A part of a schema as a column: `sql` is the first word of its SQL type, `slot` its number, `type` its Avro type.

    `type` excludes null. `null_branch` and `value_branch` are positions in the union, -1 if the schema has no union.
    """

    name: str
    path: str
    type: AvroType
    sql: str
    slot: int
    nullable: bool = False
    children: list[Node] = field(default_factory=list)
    precision: int = 0
    scale: int = 0
    null_branch: int = -1
    value_branch: int = -1

    @property
    def ddl(self) -> str:
        """The column's type in SQL."""
        match self.sql:
            case "STRUCT":
                return f"STRUCT<{', '.join(f'{quoted(child.name)}: {child.ddl}' for child in self.children)}>"
            case "ARRAY":
                return f"ARRAY<{self.children[0].ddl}>"
            case "MAP":
                return f"MAP<STRING, {self.children[1].ddl}>"
            case "DECIMAL":
                return f"DECIMAL({self.precision}, {self.scale})"
            case other:
                return other

    def all(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, by slot."""
        yield self
        for child in self.children:
            yield from child.all()

    def nulls(self) -> list[int]:
        """Return the slots that get an entry when this node is null; entries of lists do not belong to a row."""
        found = [self.slot]
        if self.sql == "STRUCT":
            for child in self.children:
                found += child.nulls()
        return found


def columns_ddl(root: Node) -> str:
    """Return the columns of a record as DDL. Raises ValueError for other types.

    >>> from headwater.pipelines.schemas.avro.parser import parse
    >>> text = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "string"]}]}'
    >>> columns_ddl(columns(parse(text, {}, check_defaults=True)[0]))
    '`n` STRING'
    """
    if root.sql != "STRUCT":
        raise ValueError("the schema of rows is a record")
    return ", ".join(f"{quoted(child.name)} {child.ddl}" for child in root.children)


def columns(schema: AvroType) -> Node:
    """Map a schema to columns. Raises ValueError with the path of a part that does not map to a column."""
    return _Builder().node(schema, "", "$", (), 0)


def branch(union: UnionType, path: str) -> tuple[AvroType, int]:
    """Return a union's single type beside null, and its branch; numbers of unlike width give the wider (branch -1)."""
    others = [(part, index) for index, part in enumerate(union.branches) if part.kind != "null"]
    if len(others) == 1:
        return others[0]
    kinds = frozenset(part.kind for part, _ in others)
    if len(kinds) == len(others) and kinds in _WIDER:
        return next((part, index) for part, index in others if part.kind == _WIDER[kinds])
    raise ValueError(f"{path}: a union of several types cannot be a column")


def logical(kind: AvroType) -> str:
    """Return the logical type, '' if absent."""
    props: Any = getattr(kind, "props", {})
    found = props.get("logicalType", "")
    return found if isinstance(found, str) else ""


def decimal_of(kind: AvroType) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; None for other types and for invalid decimals, which are plain bytes."""
    if logical(kind) != "decimal" or not isinstance(kind, PrimitiveType | FixedType) or kind.kind == "string":
        return None
    precision, scale = kind.props.get("precision"), kind.props.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None
    if isinstance(kind, FixedType) and precision > math.floor((8 * kind.size - 1) * math.log10(2) if kind.size else 0):
        return None
    return precision, scale


def parsed(text: str, references: Iterable[tuple[str, str]] = (), *, new: bool = False) -> AvroType:
    """Parse a schema with its referenced schemas. Raises InvalidSchemaError."""
    known: dict[str, NamedType] = {}
    try:
        for _, other in references:
            _, names = parse(other, known, check_defaults=False)
            known.update(names)
        return parse(text, known, check_defaults=new)[0]
    except RecursionError:
        raise InvalidSchemaError("the schema nests too deeply") from None


def record_name(schema: AvroType) -> str:
    """Return the full name of a record, '' for other types."""
    return schema.name.full if isinstance(schema, RecordType) else ""


class _Builder:
    """One pass over a schema; numbers the nodes in the order of `Node.all`."""

    def __init__(self) -> None:
        self._count = 0

    def node(self, kind: AvroType, name: str, path: str, around: tuple[RecordType, ...], depth: int) -> Node:
        """Build the node of a part. `around` contains the enclosing records."""
        if depth > NESTING_MAX:
            raise ValueError(f"{path}: nested deeper than {NESTING_MAX} levels")
        if self._count == NODES_MAX:
            raise ValueError(f"the schema has more than {NODES_MAX} fields")
        found = Node(name, path, kind, "", self._count)
        self._count += 1
        if isinstance(kind, UnionType):
            found.type, found.value_branch = branch(kind, path)
            found.null_branch = next((i for i, part in enumerate(kind.branches) if part.kind == "null"), -1)
            found.nullable = found.null_branch >= 0
        self._fill(found, around, depth)
        return found

    def _fill(self, node: Node, around: tuple[RecordType, ...], depth: int) -> None:
        kind, path = node.type, node.path
        decimal = decimal_of(kind)
        if decimal is not None:
            node.sql, (node.precision, node.scale) = "DECIMAL", decimal
            if node.precision > DECIMAL_PRECISION_MAX:
                raise ValueError(f"{path}: a decimal of {node.precision} digits; {DECIMAL_PRECISION_MAX} are possible")
        elif isinstance(kind, PrimitiveType):
            if kind.kind not in _PLAIN:
                raise ValueError(f"{path}: the type {kind.kind} cannot be a column")
            node.sql = _LOGICAL.get((kind.kind, logical(kind)), _PLAIN[kind.kind])
        elif isinstance(kind, EnumType):
            node.sql = "STRING"
        elif isinstance(kind, FixedType):
            node.sql = "BINARY"
        elif isinstance(kind, RecordType):
            if kind in around:
                raise ValueError(f"{path}: the record {kind.name.full} holds itself, which no column can")
            node.sql = "STRUCT"
            folded: set[str] = set()
            for part in kind.fields:
                where = f"{path}.{part.name}"
                if part.name.lower() in folded:
                    raise ValueError(f"{where}: another field differs by case only, which SQL does not see")
                folded.add(part.name.lower())
                node.children.append(self.node(part.type, part.name, where, (*around, kind), depth + 1))
        elif isinstance(kind, MapType):
            node.sql = "MAP"
            node.children.append(self.node(PrimitiveType("string"), "key", f"{path}.key", around, depth + 1))
            node.children.append(self.node(kind.values, "value", f"{path}.*", around, depth + 1))
        else:
            assert not isinstance(kind, UnionType), "a union directly in a union is no schema"
            node.sql = "ARRAY"
            node.children.append(self.node(kind.items, "element", f"{path}[]", around, depth + 1))
