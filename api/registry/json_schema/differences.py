"""What a change of a JSON Schema means to readers: every way in which the new one refuses what the old one took.

The rules, and the names of the problems, are those of Confluent's registry in its strict policy. An object is open when
it takes properties that it does not name, closed when it does not, partially open when it takes some: a property may be
added to what is not open, and removed from what is not closed. Beyond Confluent's rules, changes of
`patternProperties`, `propertyNames`, `contains` and `if` are looked at too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from headwater.api.registry.json_schema import arrays, objects, scalars
from headwater.api.registry.json_schema.nodes import Graph, Kind, Node
from headwater.pipelines.schemas.errors import PROBLEMS_MAX, InvalidSchemaError, Problem

PAIRS_MAX: Final = 100_000
"""Pairs of schemas in one comparison: combinations multiply."""

_PairId: TypeAlias = tuple[int, int]


def problems(original: Graph, update: Graph) -> list[Problem]:
    """Return why data that `original` takes may not be taken by `update`; empty when it always is.

    A pair that is under way inside itself counts as fine. Where that was wrong, the comparison is repeated with what is
    known of the pair by then, until nothing changes.

    Raises:
        InvalidSchemaError: the schemas are too large to be compared.
    """
    known: dict[_PairId, list[Problem]] = {}
    try:
        while True:
            comparison = Comparison(original, update, known)
            found = comparison.problems(original.root, update.root)
            bad = {pair: inner for pair, inner in comparison.results.items() if inner}
            if not comparison.assumed or bad.keys() == known.keys():
                return found[:PROBLEMS_MAX]
            known = bad
    except RecursionError:
        raise InvalidSchemaError("the references of the schemas nest too deeply to be compared") from None


class Comparison:
    """One pass over a pair of graphs. Paths of problems are relative to the pair that they were found in."""

    def __init__(self, original: Graph, update: Graph, known: dict[_PairId, list[Problem]]) -> None:
        self._graphs = (original, update)
        self._known = known
        self._under_way: set[_PairId] = set()
        self._flipped = False
        self.assumed = False
        self.results: dict[_PairId, list[Problem]] = {}

    @property
    def original(self) -> Graph:
        """The graph of what data was written with."""
        return self._graphs[1] if self._flipped else self._graphs[0]

    @property
    def update(self) -> Graph:
        """The graph of what it is read with."""
        return self._graphs[0] if self._flipped else self._graphs[1]

    def problems(self, original: Node, update: Node) -> list[Problem]:
        """Return the problems of a pair of nodes."""
        pair = (id(original), id(update))
        if pair in self.results:
            return self.results[pair]
        if pair in self._under_way:
            if pair in self._known:
                return self._known[pair]
            self.assumed = True
            return []
        if len(self.results) > PAIRS_MAX:
            raise InvalidSchemaError(f"comparing the two schemas takes more than {PAIRS_MAX} comparisons of parts")
        self._under_way.add(pair)
        found = list(self._compare(original, update))[:PROBLEMS_MAX]
        self._under_way.discard(pair)
        self.results[pair] = found
        return found

    def under(self, path: str, original: Node, update: Node) -> Iterator[Problem]:
        """Yield the problems of a pair that stands at a place inside the one at hand."""
        for problem in self.problems(original, update):
            yield Problem(problem.kind, f"{path}/{problem.path}" if problem.path else path, problem.text)

    def fits(self, original: Node, update: Node) -> bool:
        """Tell whether a pair has no problem."""
        return not self.problems(original, update)

    def _compare(self, original: Node, update: Node) -> Iterator[Problem]:
        if original.kind is Kind.NOTHING or update.kind is Kind.ANYTHING:
            return
        if self._one_part_fits(original, update):
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
                yield from objects.compare(self, original, update)
            case Kind.ARRAY:
                yield from arrays.compare(self, original, update)
            case Kind.COMBINED:
                yield from self._combinations(original, update)
            case Kind.NOT:
                yield from self._negations(original, update)
            case Kind.CONDITIONAL:
                yield from self._conditions(original, update)

    def _one_part_fits(self, original: Node, update: Node) -> bool:
        """Tell whether one part of a combination on one side alone is enough to make the pair fit."""
        if update.kind is Kind.COMBINED and original.kind is not Kind.COMBINED:
            parts = self.update.parts(update)
            if len(parts) == 1 or update.criterion != "allOf":
                return any(self.fits(original, part) for part in parts)
        elif original.kind is Kind.COMBINED and update.kind is not Kind.COMBINED:
            parts = self.original.parts(original)
            if len(parts) == 1 or original.criterion == "allOf":
                return any(self.fits(part, update) for part in parts)
        return False

    def _combinations(self, original: Node, update: Node) -> Iterator[Problem]:
        written, read = self.original.parts(original), self.update.parts(update)
        may_choose = update.criterion == "anyOf" or len(read) == 1
        if (
            original.criterion == "allOf"
            and may_choose
            and any(self.fits(one, other) for one in written for other in read)
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
        edges = [[index for index, after in enumerate(read) if self.fits(before, after)] for before in written]
        if _matching_size(edges, len(read)) < min(len(written), len(read)):
            text = f"there is no schema in {update.criterion} for each of {original.criterion}"
            yield Problem("COMBINED_TYPE_SUBSCHEMAS_CHANGED", "", text)

    def _negations(self, original: Node, update: Node) -> Iterator[Problem]:
        before, after = self.original.inner(original, "not"), self.update.inner(update, "not")
        assert before is not None
        assert after is not None
        # What must not match may become narrower: the comparison runs the other way.
        self._flipped = not self._flipped
        fits = self.fits(after, before)
        self._flipped = not self._flipped
        if not fits:
            yield Problem("NOT_TYPE_EXTENDED", "not", "more than before must not match")

    def _conditions(self, original: Node, update: Node) -> Iterator[Problem]:
        for keyword in ("if", "then", "else"):
            before, after = self.original.inner(original, keyword), self.update.inner(update, keyword)
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
    """Return how many on the left can each have one on the right of their own (Kuhn's algorithm).

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
