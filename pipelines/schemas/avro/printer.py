"""Prints Avro types as JSON: the canonical text, attribute by attribute like Avro's Java library, and a normal form.

Java's attribute order matters because texts are compared: a schema registered by a Java client and the same schema from
another language must produce equal texts, which also equal the text stored by a Confluent registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headwater.pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    Name,
    NamedType,
    PrimitiveType,
    Props,
    RecordType,
    UnionType,
)


def canonical(avro_type: AvroType, known: Iterable[str]) -> str:
    """Print a schema in Java's form; types with a name in `known` become references."""
    return _dump(_Printer(set(known), normal=False).node(avro_type, ""))


def normalized(avro_type: AvroType, known: Iterable[str]) -> str:
    """Print a schema with full names; attributes unknown to the specification are sorted."""
    return _dump(_Printer(set(known), normal=True).node(avro_type, ""))


def _dump(node: Any) -> str:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"))


class _Printer:
    """One pass; `written` contains the full names of types that are already printed."""

    def __init__(self, written: set[str], normal: bool) -> None:
        self._written = written
        self._normal = normal

    def node(self, avro_type: AvroType, space: str) -> Any:
        """Return the JSON of one type inside a namespace."""
        match avro_type:
            case PrimitiveType(kind, props):
                return {"type": kind} | self._props(props) if props else kind
            case UnionType(branches):
                return [self.node(branch, space) for branch in branches]
            case ArrayType(items, props):
                return {"type": "array", "items": self.node(items, space)} | self._props(props)
            case MapType(values, props):
                return {"type": "map", "values": self.node(values, space)} | self._props(props)
            case EnumType() | FixedType() | RecordType():
                return self._named(avro_type, space)

    def _named(self, named: NamedType, space: str) -> Any:
        if named.name.full in self._written:
            return named.name.full if self._normal else named.name.within(space)
        self._written.add(named.name.full)
        node: dict[str, Any] = {"type": named.kind} | self._name(named.name, space)
        if named.doc is not None:
            node["doc"] = named.doc
        match named:
            case EnumType():
                node["symbols"] = named.symbols
                if named.default is not None:
                    node["default"] = named.default
            case FixedType():
                node["size"] = named.size
            case RecordType():
                node["fields"] = [self._field(field, named.name.space) for field in named.fields]
        node |= self._props(named.props)
        if named.aliases:
            aliases = [alias.full if self._normal else alias.within(named.name.space) for alias in named.aliases]
            node["aliases"] = sorted(aliases) if self._normal else aliases
        return node

    def _name(self, name: Name, space: str) -> dict[str, str]:
        if self._normal:
            return {"name": name.full}
        if name.space == space:
            return {"name": name.simple}
        return {"name": name.simple, "namespace": name.space}

    def _field(self, field: Field, space: str) -> dict[str, Any]:
        node: dict[str, Any] = {"name": field.name, "type": self.node(field.type, space)}
        if field.doc is not None:
            node["doc"] = field.doc
        if field.default is not ABSENT:
            node["default"] = field.default
        if field.order != "ascending":
            node["order"] = field.order
        if field.aliases:
            node["aliases"] = sorted(field.aliases) if self._normal else field.aliases
        return node | self._props(field.props)

    def _props(self, props: Props) -> Props:
        return {name: props[name] for name in sorted(props)} if self._normal else props
