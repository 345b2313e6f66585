"""Changes of objects: properties, required properties, and the content model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.api.registry.json_schema import content
from headwater.api.registry.json_schema.comparison import Comparison
from headwater.api.registry.json_schema.content import Content, Model, matches
from headwater.api.registry.json_schema.nodes import Kind, Node
from headwater.api.registry.json_schema.scalars import lower_limit, upper_limit
from headwater.pipelines.schemas.errors import Problem


def compare(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    """Yield the ways in which the new object schema is narrower."""
    before, after = content.of_object(comparison.original, original), content.of_object(comparison.update, update)
    yield from _required(comparison, original, update)
    yield from _properties(comparison, original, update, before, after)
    yield from _patterns(comparison, comparison.original.inners(original, "properties"), before, after)
    yield from _dependencies(comparison, original, update)
    for keyword, name in (
        ("additionalProperties", "ADDITIONAL_PROPERTIES"),
        ("unevaluatedProperties", "UNEVALUATED_PROPERTIES"),
    ):
        yield from rest(comparison, original, update, keyword, name)
    yield from narrowed(comparison, original, update, "propertyNames", "PROPERTY_NAMES")
    yield from upper_limit(original, update, "maxProperties", "MAX_PROPERTIES")
    yield from lower_limit(original, update, "minProperties", "MIN_PROPERTIES")


def rest(comparison: Comparison, original: Node, update: Node, keyword: str, name: str) -> Iterator[Problem]:
    """Yield how the keyword for unnamed properties or additional items became narrower."""
    before = comparison.original.inner(original, keyword)
    after = comparison.update.inner(update, keyword)
    was_open = before is None or before.kind is Kind.ANYTHING
    if after is None or after.kind is Kind.ANYTHING or (before is not None and before.kind is Kind.NOTHING):
        return
    if after.kind is Kind.NOTHING:
        yield Problem(f"{name}_REMOVED", keyword, "nothing else is taken any more")
    elif was_open:
        yield Problem(f"{name}_NARROWED", keyword, "whatever else there is must fit a schema now")
    elif before is not None:
        yield from comparison.under(keyword, before, after)


def narrowed(comparison: Comparison, original: Node, update: Node, keyword: str, name: str) -> Iterator[Problem]:
    """Yield how a schema that must hold in addition became narrower."""
    before = comparison.original.inner(original, keyword)
    after = comparison.update.inner(update, keyword)
    if after is None or after.kind is Kind.ANYTHING:
        return
    if before is None:
        yield Problem(f"{name}_ADDED", keyword, f"{keyword} demands more than before")
    else:
        yield from comparison.under(keyword, before, after)


def _required_names(node: Node) -> set[str]:
    names = node.raw.get("required")
    return set(names) if isinstance(names, list) else set()


def _required(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    before, after = comparison.original.inners(original, "properties"), comparison.update.inners(update, "properties")
    for name in sorted(_required_names(update) - _required_names(original)):
        told_as_added = name in after and name not in before
        if not told_as_added and not (name in after and _has_default(update, name)):
            yield Problem("REQUIRED_ATTRIBUTE_ADDED", f"required/{name}", f"{name} is required now, without a default")


def _has_default(node: Node, name: str) -> bool:
    raw: Any = node.raw["properties"][name]
    return isinstance(raw, dict) and "default" in raw


def _properties(
    comparison: Comparison, original: Node, update: Node, before: Content, after: Content
) -> Iterator[Problem]:
    written = comparison.original.inners(original, "properties")
    read = comparison.update.inners(update, "properties")
    for name, node in written.items():
        path = f"properties/{name}"
        if name in read:
            yield from comparison.under(path, node, read[name])
        else:
            yield from _removed(comparison, path, name, node, after)
    for name, node in read.items():
        if name not in written:
            yield from _added(comparison, f"properties/{name}", name, node, update, before)


def _removed(comparison: Comparison, path: str, name: str, node: Node, after: Content) -> Iterator[Problem]:
    if after.model is Model.OPEN:
        return
    covers = after.of(name)
    if covers:
        found = [problem for cover in covers for problem in comparison.under(path, node, cover)]
        yield from found
        if found:
            text = f"{name} was removed, and what is taken in its place does not fit"
            yield Problem("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, text)
    elif node.kind is not Kind.NOTHING and after.closed:
        text = f"{name} was removed, and the object takes no other properties"
        yield Problem("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, text)


def _added(
    comparison: Comparison, path: str, name: str, node: Node, update: Node, before: Content
) -> Iterator[Problem]:
    required = name in _required_names(update)
    covers = before.of(name)
    if not covers and not before.closed:
        if node.kind is not Kind.ANYTHING or (required and not _has_default(update, name)):
            kind = "OPTIONAL" if not required else "REQUIRED"
            kind += "_PROPERTY_WITH_DEFAULT" if required and _has_default(update, name) else "_PROPERTY"
            text = f"{name} was added, and the object took any property of this name before"
            yield Problem(f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", path, text)
        return
    if covers:
        # Values had to fit all of them: one that is enough will do.
        found = min((list(comparison.under(path, cover, node)) for cover in covers), key=len)
        yield from found
        if found:
            text = f"{name} was added, and what the object took of this name before does not fit"
            yield Problem("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, text)
    if required and not _has_default(update, name):
        text = f"{name} was added and is required, without a default"
        yield Problem("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path, text)


def _patterns(comparison: Comparison, named: Mapping[str, Node], before: Content, after: Content) -> Iterator[Problem]:
    for pattern, node in after.patterns.items():
        path = f"patternProperties/{pattern}"
        if pattern in before.patterns:
            yield from comparison.under(path, before.patterns[pattern], node)
            continue
        # A name may match several patterns, and one that is named may match some.
        applied = [*before.patterns.values(), *(inner for name, inner in named.items() if matches(pattern, name))]
        if before.rest is not None:
            applied.append(before.rest)
        for earlier in applied:
            yield from comparison.under(path, earlier, node)
        if before.rest is None and not before.closed and node.kind is not Kind.ANYTHING:
            text = "properties that match must fit a schema now"
            yield Problem("PATTERN_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", path, text)
    for pattern, node in before.patterns.items():
        path = f"patternProperties/{pattern}"
        if pattern in after.patterns:
            continue
        if after.rest is not None:
            yield from comparison.under(path, node, after.rest)
        elif after.closed and node.kind is not Kind.NOTHING:
            text = "properties that match are not taken any more"
            yield Problem("PATTERN_PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, text)


def _dependencies(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    before, after = _demanded(original), _demanded(update)
    for name, demanded in after.items():
        path = f"dependencies/{name}"
        if name not in before:
            text = f"with {name} there must be {', '.join(sorted(demanded))} now"
            yield Problem("DEPENDENCY_ARRAY_ADDED", path, text)
        elif not demanded <= before[name]:
            kind = "DEPENDENCY_ARRAY_EXTENDED" if before[name] <= demanded else "DEPENDENCY_ARRAY_CHANGED"
            text = f"with {name} there must be {', '.join(sorted(demanded - before[name]))} too"
            yield Problem(kind, path, text)
    for keyword in ("dependencies", "dependentSchemas"):
        written = _schemas_by_name(comparison.original.inners, original, keyword)
        for name, node in _schemas_by_name(comparison.update.inners, update, keyword).items():
            path = f"{keyword}/{name}"
            if name in written:
                yield from comparison.under(path, written[name], node)
            elif node.kind is not Kind.ANYTHING:
                yield Problem("DEPENDENCY_SCHEMA_ADDED", path, f"with {name} the object must fit a schema now")


def _demanded(node: Node) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for keyword in ("dependencies", "dependentRequired"):
        for name, value in node.raw.get(keyword, {}).items():
            if isinstance(value, list):
                found[name] = set(value)
    return found


def _schemas_by_name(inners: Any, node: Node, keyword: str) -> dict[str, Node]:
    values = node.raw.get(keyword)
    if not isinstance(values, dict) or any(isinstance(value, list) for value in values.values()):
        values = {name: value for name, value in (values or {}).items() if not isinstance(value, list)}
        return dict(inners(Node(node.kind, {keyword: values}), keyword))
    return dict(inners(node, keyword))
