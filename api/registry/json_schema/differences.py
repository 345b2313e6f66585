"""Compatibility of JSON Schema changes: every way in which the new schema rejects data that the old one accepts.

The rules, and the names of the problems, are those of Confluent's registry in its strict policy. An object is open if
it accepts properties that it does not name, closed if it does not, and partially open if it accepts some. A property
may be added to an object that is not open, and removed from an object that is not closed. In addition to Confluent's
rules, changes of `patternProperties`, `propertyNames`, `contains` and `if` are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.api.registry.json_schema import arrays, objects, scalars
from headwater.api.registry.json_schema.comparison import Comparison, PairId
from headwater.api.registry.json_schema.nodes import Graph, Kind, Node
from headwater.pipelines.schemas.errors import PROBLEMS_MAX, InvalidSchemaError, Problem


def problems(original: Graph, update: Graph) -> list[Problem]:
    """Return why data valid under `original` may be invalid under `update`; empty if it is always valid.

    A pair that recurs inside itself is assumed to be compatible. If the assumption was wrong, the comparison is
    repeated with the pair's last result until a fixed point is reached.

    Raises:
        InvalidSchemaError: the schemas are too large to be compared.
    """
    known: dict[PairId, list[Problem]] = {}
    try:
        while True:
            comparison = Comparison(original, update, known, _compare)
            found = comparison.problems(original.root, update.root)
            bad = {pair: inner for pair, inner in comparison.results.items() if inner}
            if not comparison.assumed or bad.keys() == known.keys():
                return found[:PROBLEMS_MAX]
            known = bad
    except RecursionError:
        raise InvalidSchemaError("the references of the schemas nest too deeply to be compared") from None


def _compare(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    if original.kind is Kind.NOTHING or update.kind is Kind.ANYTHING:
        return
    if _one_part_fits(comparison, original, update):
        return
    if original.kind is not update.kind:
        if not _are_bytes(original, update):
            yield Problem("TYPE_CHANGED", "", f"it was {_described(original)} and is {_described(update)} now")
        return
    match original.kind:
        case Kind.STRING:
            yield from scalars.strings(original, update)
        case Kind.NUMBER:
            yield from scalars.numbers(original, update)
        case Kind.ENUM:
            yield from scalars.enums(original, update)
        case Kind.OBJECT:
            yield from objects.compare(comparison, original, update)
        case Kind.ARRAY:
            yield from arrays.compare(comparison, original, update)
        case Kind.COMBINED:
            yield from _combinations(comparison, original, update)
        case Kind.NOT:
            yield from _negations(comparison, original, update)
        case Kind.CONDITIONAL:
            yield from _conditions(comparison, original, update)


def _one_part_fits(comparison: Comparison, original: Node, update: Node) -> bool:
    """Return whether one matching part of a combination on one side alone makes the pair compatible."""
    if update.kind is Kind.COMBINED and original.kind is not Kind.COMBINED:
        parts = comparison.update.parts(update)
        if len(parts) == 1 or update.criterion != "allOf":
            return any(comparison.fits(original, part) for part in parts)
    elif original.kind is Kind.COMBINED and update.kind is not Kind.COMBINED:
        parts = comparison.original.parts(original)
        if len(parts) == 1 or original.criterion == "allOf":
            return any(comparison.fits(part, update) for part in parts)
    return False


def _combinations(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    written, read = comparison.original.parts(original), comparison.update.parts(update)
    may_choose = update.criterion == "anyOf" or len(read) == 1
    if (
        original.criterion == "allOf"
        and may_choose
        and any(comparison.fits(one, other) for one in written for other in read)
    ):
        return
    if not _criterion_may_change(original.criterion, update.criterion, len(written), len(read)):
        text = f"{original.criterion} became {update.criterion}"
        yield Problem("COMBINED_TYPE_CHANGED", "", text)
        return
    if update.criterion == "allOf" and len(written) < len(read):
        text = f"{len(read)} schemas must hold now, {len(written)} before"
        yield Problem("PRODUCT_TYPE_EXTENDED", "", text)
    if update.criterion != "allOf" and len(written) > len(read):
        yield Problem("SUM_TYPE_NARROWED", "", f"{len(read)} of the {len(written)} alternatives are left")
    edges = [[index for index, after in enumerate(read) if comparison.fits(before, after)] for before in written]
    if _matching_size(edges, len(read)) < min(len(written), len(read)):
        text = f"there is no schema in {update.criterion} for each of {original.criterion}"
        yield Problem("COMBINED_TYPE_SUBSCHEMAS_CHANGED", "", text)


def _negations(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    before, after = comparison.original.inner(original, "not"), comparison.update.inner(update, "not")
    assert before is not None
    assert after is not None
    # What must not match may become narrower: the comparison runs the other way.
    if not comparison.fits_reversed(before, after):
        yield Problem("NOT_TYPE_EXTENDED", "not", "more than before must not match")


def _conditions(comparison: Comparison, original: Node, update: Node) -> Iterator[Problem]:
    for keyword in ("if", "then", "else"):
        before, after = comparison.original.inner(original, keyword), comparison.update.inner(update, keyword)
        if (before.key if before else "") != (after.key if after else ""):
            yield Problem("CONDITION_CHANGED", keyword, "a condition has to stay as it is")


def _described(node: Node) -> str:
    if node.kind is Kind.COMBINED:
        return node.criterion
    return "integer" if node.integer else node.kind.value


def _are_bytes(original: Node, update: Node) -> bool:
    # Connect's JSON converter has changed how it writes decimals, and calls both "bytes".
    return original.raw.get("connect.type") == "bytes" and update.raw.get("connect.type") == "bytes"


def _criterion_may_change(original: str, update: str, original_size: int, update_size: int) -> bool:
    if original == update or update == "anyOf":
        return True
    if update == "oneOf":
        return original_size == 1
    return original_size == 1 and update_size == 1


def _matching_size(edges: list[list[int]], right_size: int) -> int:
    """Return the size of a maximum bipartite matching (Kuhn's algorithm); `edges` lists the neighbours on the right.

    >>> _matching_size([[0, 1], [0], []], 2)
    2
    """
    owner: list[int | None] = [None] * right_size

    def place(left: int, tried: set[int]) -> bool:
        for right in edges[left]:
            if right in tried:
                continue
            tried.add(right)
            held_by = owner[right]
            if held_by is None or place(held_by, tried):
                owner[right] = left
                return True
        return False

    return sum(place(left, set()) for left in range(len(edges)))
