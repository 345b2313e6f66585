"""Changes of arrays: positional items, additional items, and the number of items."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.api.registry.json_schema import content
from headwater.api.registry.json_schema.comparison import Comparison
from headwater.api.registry.json_schema.content import Content, Model
from headwater.api.registry.json_schema.nodes import Graph, Kind, Node
from headwater.api.registry.json_schema.objects import narrowed, rest
from headwater.api.registry.json_schema.scalars import lower_limit, upper_limit
from headwater.pipelines.schemas.errors import Problem


def compare(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    """Yield the ways in which the new array schema is narrower."""
    yield from _all_items(comparison, original, update)
    yield from _placed_items(comparison, original, update)
    if _rest_keyword(original) == _rest_keyword(update):
        yield from rest(comparison, original, update, _rest_keyword(update), "ADDITIONAL_ITEMS")
    yield from rest(comparison, original, update, "unevaluatedItems", "UNEVALUATED_ITEMS")
    yield from narrowed(comparison, original, update, "contains", "CONTAINS")
    yield from upper_limit(original, update, "maxContains", "MAX_CONTAINS")
    yield from lower_limit(original, update, "minContains", "MIN_CONTAINS")
    yield from upper_limit(original, update, "maxItems", "MAX_ITEMS")
    yield from lower_limit(original, update, "minItems", "MIN_ITEMS")
    if update.raw.get("uniqueItems") and not original.raw.get("uniqueItems"):
        yield Problem("UNIQUE_ITEMS_ADDED", "uniqueItems", "items must differ from each other now")


def _rest_keyword(node: Node) -> str:
    """Return the keyword for additional items: `items` since draft 2020-12, `additionalItems` before."""
    return "items" if "prefixItems" in node.raw else "additionalItems"


def _all(graph: Graph, node: Node) -> Node | None:
    return None if "prefixItems" in node.raw else graph.inner(node, "items")


def _placed(graph: Graph, node: Node) -> list[Node]:
    raw = node.raw.get("prefixItems", node.raw.get("items"))
    return [graph.node(inner) for inner in raw] if isinstance(raw, list) else []


def _all_items(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    before, after = _all(comparison.original, original), _all(comparison.update, update)
    if after is None or after.kind is Kind.ANYTHING:
        return
    if before is None:
        yield Problem("SCHEMA_ADDED", "items", "all items must fit a schema now")
    else:
        yield from comparison.under("items", before, after)


def _placed_items(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    written, read = _placed(comparison.original, original), _placed(comparison.update, update)
    before = content.of_array(comparison.original, original, _rest_keyword(original))
    after = content.of_array(comparison.update, update, _rest_keyword(update))
    for index, (one, other) in enumerate(zip(written, read, strict=False)):
        yield from comparison.under(f"items/{index}", one, other)
    for index in range(len(read), len(written)):
        yield from _removed(comparison, f"items/{index}", written[index], after)
    for index in range(len(written), len(read)):
        yield from _added(comparison, f"items/{index}", read[index], before)


def _removed(comparison: Comparison, path: str, node: Node, after: Content) -> Iterator[Problem]:
    if after.model is Model.OPEN:
        return
    if after.rest is not None:
        found = list(comparison.under(path, node, after.rest))
        yield from found
        if found:
            text = "the item was removed, and what is taken in its place does not fit"
            yield Problem("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, text)
    elif node.kind is not Kind.NOTHING:
        text = "the item was removed, and the array takes no others"
        yield Problem("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, text)


def _added(comparison: Comparison, path: str, node: Node, before: Content) -> Iterator[Problem]:
    if before.model is Model.OPEN:
        if node.kind is not Kind.ANYTHING:
            text = "the item was added, and the array took anything at this place before"
            yield Problem("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path, text)
    elif before.rest is not None:
        found = list(comparison.under(path, before.rest, node))
        yield from found
        if found:
            text = "the item was added, and what the array took at this place before does not fit"
            yield Problem("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, text)
