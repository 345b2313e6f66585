"""The comparison of two schema graphs, pair by pair: results of compared pairs, and pairs in progress.

Rules decide how the nodes of a pair may differ, and request the comparison of inner pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from headwater.api.registry.json_schema.nodes import Graph, Node
from headwater.pipelines.schemas.errors import PROBLEMS_MAX, InvalidSchemaError, Problem

PAIRS_MAX: Final = 100_000
"""Pairs of schemas in one comparison: combinations multiply."""

PairId: TypeAlias = tuple[int, int]
Rules: TypeAlias = "Callable[[Comparison, Node, Node], Iterator[Problem]]"


class Comparison:
    """One pass over a pair of graphs. A problem's path is relative to the pair that has the problem."""

    def __init__(self, original: Graph, update: Graph, known: dict[PairId, list[Problem]], rules: Rules) -> None:
        self._graphs = (original, update)
        self._rules = rules
        self._known = known
        self._under_way: set[PairId] = set()
        self._flipped = False
        self.assumed = False
        self.results: dict[PairId, list[Problem]] = {}

    @property
    def original(self) -> Graph:
        """The graph of the writer's schema."""
        return self._graphs[1] if self._flipped else self._graphs[0]

    @property
    def update(self) -> Graph:
        """The graph of the reader's schema."""
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
        found = list(self._rules(self, original, update))[:PROBLEMS_MAX]
        self._under_way.discard(pair)
        self.results[pair] = found
        return found

    def under(self, path: str, original: Node, update: Node) -> Iterator[Problem]:
        """Yield the problems of an inner pair, with `path` prepended to each problem's path."""
        for problem in self.problems(original, update):
            yield Problem(problem.kind, f"{path}/{problem.path}" if problem.path else path, problem.text)

    def fits(self, original: Node, update: Node) -> bool:
        """Return whether a pair has no problems."""
        return not self.problems(original, update)

    def fits_reversed(self, original: Node, update: Node) -> bool:
        """Return whether a pair has no problems with writer and reader exchanged."""
        self._flipped = not self._flipped
        fits = self.fits(update, original)
        self._flipped = not self._flipped
        return fits
