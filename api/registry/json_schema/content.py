"""Content models: what an object or an array accepts beyond its named properties or positional items."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headwater.api.registry.json_schema.nodes import Graph, Kind, Node

NAME_LENGTH_MAX: Final = 256
"""Length of names compared with patterns; longer names count as matched."""

_QUANTIFIER: Final = re.compile(r"[*+?}]")
_QUANTIFIERS_MAX: Final = 3


class Model(StrEnum):
    """How open a content model is."""

    OPEN = "open"
    PARTIALLY_OPEN = "partially open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Content:
    """Schemas of unnamed properties or additional items: `patterns` by name, then `rest`, else anything or nothing."""

    rest: Node | None
    patterns: dict[str, Node]
    closed: bool

    @property
    def model(self) -> Model:
        """The openness of the content model."""
        if not self.patterns and self.rest is None:
            return Model.CLOSED if self.closed else Model.OPEN
        return Model.PARTIALLY_OPEN

    def of(self, name: str) -> list[Node]:
        """Return the schemas that apply to an unnamed property; empty if none applies."""
        found = [node for pattern, node in self.patterns.items() if matches(pattern, name)]
        return found or ([self.rest] if self.rest is not None else [])


def of_object(graph: Graph, node: Node) -> Content:
    """Return the content model of an object."""
    rest, closed = _rest(graph, node, "additionalProperties", "unevaluatedProperties")
    return Content(rest, graph.inners(node, "patternProperties"), closed)


def of_array(graph: Graph, node: Node, keyword: str) -> Content:
    """Return the content model of an array; `keyword` is the keyword for additional items."""
    rest, closed = _rest(graph, node, keyword, "unevaluatedItems")
    return Content(rest, {}, closed)


def _rest(graph: Graph, node: Node, keyword: str, unevaluated: str) -> tuple[Node | None, bool]:
    said = graph.inner(node, keyword)
    if said is None:
        said = graph.inner(node, unevaluated)
    if said is None or said.kind is Kind.ANYTHING:
        return None, False
    if said.kind is Kind.NOTHING:
        return None, True
    return said, False


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name; a costly or unsupported pattern counts as a match.

    >>> matches("^S_", "S_1"), matches("^S_", "x"), matches("(a+)+$", "b")
    (True, False, True)
    """
    repeated_groups = re.search(r"\)[*+?{]", pattern)
    costly = repeated_groups or len(_QUANTIFIER.findall(pattern)) > _QUANTIFIERS_MAX or re.search(r"\\\d", pattern)
    if costly or len(name) > NAME_LENGTH_MAX:
        return True
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True
