"""JSON Schema as a graph of nodes with one assertion each.

A schema may combine several assertions (a type, an enumeration, alternatives). Each assertion becomes a node; several
assertions become a combination of which all must hold. Confluent's checker uses the same model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from headwater.api.registry.json_schema import keywords
from headwater.api.registry.json_schema.document import Document, reference
from headwater.pipelines.schemas.errors import InvalidSchemaError


class Kind(StrEnum):
    """Kind of a node's assertion."""

    ANYTHING = "anything"
    NOTHING = "nothing"
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    ENUM = "enum"
    NOT = "not"
    COMBINED = "combined"
    CONDITIONAL = "conditional"


_KINDS: Final = {
    "null": Kind.NULL,
    "boolean": Kind.BOOLEAN,
    "object": Kind.OBJECT,
    "array": Kind.ARRAY,
    "number": Kind.NUMBER,
    "integer": Kind.NUMBER,
    "string": Kind.STRING,
}
_SNIFFED: Final = (
    (Kind.OBJECT, keywords.OF_OBJECTS),
    (Kind.ARRAY, keywords.OF_ARRAYS),
    (Kind.STRING, keywords.OF_STRINGS),
    (Kind.NUMBER, keywords.OF_NUMBERS),
)
_BESIDE: Final = frozenset({"$ref", "$dynamicRef", "$schema", "$id", "$defs", "definitions", "$comment", "$anchor"})


@dataclass(eq=False, slots=True)
class Node:
    """One assertion. `raw` is the schema that contains it; `parts` and `criterion` describe a combination."""

    kind: Kind
    raw: Mapping[str, Any] = field(default_factory=dict)
    integer: bool = False
    criterion: str = ""
    parts: list[Any] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Equal nodes have equal keys."""
        if self.kind is Kind.COMBINED and self.criterion == "allOf" and "allOf" not in self.raw:
            return f"all {_text(self.raw)}"
        return f"{self.kind} {self.criterion} {self.integer} {self.values} {_text(self.raw)}"


class Graph:
    """The nodes of a document, created on first use and cached, so cycles terminate."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes: dict[int, Node] = {}
        self._anything = Node(Kind.ANYTHING)
        self._nothing = Node(Kind.NOTHING)
        self._following: set[int] = set()
        self.root = self.node(document.root)
        for raw in document.references:
            self.node(raw)

    def node(self, raw: Any) -> Node:
        """Return the node of a raw schema; for a reference, the node of its target."""
        if isinstance(raw, bool):
            return self._anything if raw else self._nothing
        node = self._nodes.get(id(raw))
        if node is not None:
            return node
        if reference(raw) is not None:
            target = self._document.resolve(raw)
            beside = {name: value for name, value in raw.items() if name not in _BESIDE}
            if self._document.ignores_beside_references or not _statements(beside):
                return self._followed(raw, target)
            node = Node(Kind.COMBINED, raw, criterion="allOf", parts=[target, beside])
        else:
            node = _combined(_statements(raw), raw)
        self._nodes[id(raw)] = node
        return node

    def _followed(self, raw: Mapping[str, Any], target: Any) -> Node:
        if id(raw) in self._following:
            raise InvalidSchemaError(f"the reference {reference(raw)!r} leads to references only")
        self._following.add(id(raw))
        try:
            node = self.node(target)
        finally:
            self._following.discard(id(raw))
        self._nodes[id(raw)] = node
        return node

    def parts(self, node: Node) -> list[Node]:
        """Return the distinct nodes of a combination."""
        found: dict[str, Node] = {}
        for part in node.parts:
            inner = part if isinstance(part, Node) else self.node(part)
            found.setdefault(inner.key, inner)
        return list(found.values())

    def inner(self, node: Node, keyword: str) -> Node | None:
        """Return the node under a keyword of the schema that contains `node`."""
        raw = node.raw.get(keyword)
        return self.node(raw) if isinstance(raw, dict | bool) else None

    def inners(self, node: Node, keyword: str) -> dict[str, Node]:
        """Return the nodes under a keyword that maps names to schemas."""
        raw = node.raw.get(keyword)
        return {name: self.node(value) for name, value in raw.items()} if isinstance(raw, dict) else {}


def _combined(statements: list[Node], raw: Mapping[str, Any]) -> Node:
    if not statements:
        return Node(Kind.ANYTHING, raw)
    if len(statements) == 1:
        return statements[0]
    return Node(Kind.COMBINED, raw, criterion="allOf", parts=list(statements))


def _statements(raw: Mapping[str, Any]) -> list[Node]:
    statements = []
    if "enum" in raw:
        statements.append(Node(Kind.ENUM, raw, values=[_text(value) for value in raw["enum"]]))
    if "const" in raw:
        statements.append(Node(Kind.ENUM, raw, values=[_text(raw["const"])]))
    statements += [
        Node(Kind.COMBINED, raw, criterion=criterion, parts=list(raw[criterion]))
        for criterion in ("allOf", "anyOf", "oneOf")
        if criterion in raw
    ]
    if "not" in raw:
        statements.append(Node(Kind.NOT, raw))
    if "type" in raw:
        names = raw["type"] if isinstance(raw["type"], list) else [raw["type"]]
        typed: list[Any] = [Node(_KINDS[name], raw, integer=name == "integer") for name in names]
        statements.append(typed[0] if len(typed) == 1 else Node(Kind.COMBINED, raw, criterion="anyOf", parts=typed))
    else:
        statements += [Node(kind, raw) for kind, own in _SNIFFED if any(name in raw for name in own)]
    if "if" in raw and ("then" in raw or "else" in raw):
        statements.append(Node(Kind.CONDITIONAL, raw))
    return statements


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
