"""Layout of a graph's boxes in columns from left to right, in the direction of the data. Pure, deterministic.

Longest paths determine the columns. Edges across several columns get a point in each, so that they do not cross boxes.
Sweeps that put each box at the median of its neighbours determine the order within columns. Finally, boxes move towards
their neighbours as far as the order permits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

COLUMN_GAP: Final = 72.0
ROW_GAP: Final = 22.0
MARGIN: Final = 24.0
SWEEPS: Final = 12  # few graphs change after the fourth sweep
_POINT_HEIGHT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Box:
    """A placed box; x and y are its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        """Return whether two boxes share more than an edge."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes by node, the points of each edge from box to box, and the total size."""

    boxes: Mapping[str, Box]
    paths: Mapping[tuple[str, str], tuple[tuple[float, float], ...]]
    width: float
    height: float


def columns_of(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each node: one more than its predecessors' maximum. Edges that close a cycle are ignored.

    >>> columns_of(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])
    {'a': 0, 'b': 1, 'c': 2}
    """
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        if source != target:
            after[source].append(target)
    order: list[str] = []
    state: dict[str, int] = {}
    forward: set[tuple[str, str]] = set()
    for start in nodes:
        if start in state:
            continue
        state[start] = 1
        path = [(start, iter(after[start]))]
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                order.append(node)
                path.pop()
            elif state.get(following) != 1:  # else it closes a cycle
                forward.add((node, following))
                if following not in state:
                    state[following] = 1
                    path.append((following, iter(after[following])))
    found = dict.fromkeys(nodes, 0)
    for node in reversed(order):
        for target in after[node]:
            if (node, target) in forward:
                found[target] = max(found[target], found[node] + 1)
    return _pulled(nodes, forward, found)


def _pulled(nodes: Sequence[str], edges: set[tuple[str, str]], found: dict[str, int]) -> dict[str, int]:
    """Move nodes without predecessors next to their successors: a table beside its stage, not at the far left."""
    for node in nodes:
        targets = [found[target] for source, target in edges if source == node]
        if targets and not any(target == node for _, target in edges):
            found[node] = min(targets) - 1
    return found


def lay_out(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> Layout:
    """Place boxes of these sizes (width, height), given in the order of the file."""
    if not sizes:
        return Layout({}, {}, 2 * MARGIN, 2 * MARGIN)
    columns = columns_of(list(sizes), edges)
    rows: list[list[str]] = [[] for _ in range(max(columns.values()) + 1)]
    for node in sizes:
        rows[columns[node]].append(node)
    heights = {node: size[1] for node, size in sizes.items()}
    links: list[tuple[str, str]] = []
    chains: dict[tuple[str, str], list[str]] = {}
    for source, target in edges:
        chain = _chain(source, target, columns, rows, heights)
        chains[source, target] = chain
        links += pairwise(chain)
    _sort(rows, links)
    y = _place_rows(rows, links, heights)
    lefts, width = _lefts(rows, sizes)
    boxes = {node: Box(lefts[columns[node]], y[node], *size) for node, size in sizes.items()}
    top = min(y.values()) - MARGIN
    boxes = {node: Box(box.x, box.y - top, box.width, box.height) for node, box in boxes.items()}
    middles = {node: y[node] - top + heights[node] / 2 for node in y}
    paths = {edge: _path(chain, boxes, middles, columns, lefts, rows, sizes) for edge, chain in chains.items()}
    height = max(y[node] - top + heights[node] for node in y) + MARGIN
    return Layout(boxes, paths, width, height)


def _chain(
    source: str, target: str, columns: dict[str, int], rows: list[list[str]], heights: dict[str, float]
) -> list[str]:
    """Return the nodes of an edge: its ends, and a point in each column between them."""
    first, last = columns[source], columns[target]
    step = 1 if last >= first else -1
    chain = [source]
    for column in range(first + step, last, step):
        point = f"\0{source}\0{target}\0{column}"
        columns[point] = column
        heights[point] = _POINT_HEIGHT
        rows[column].append(point)
        chain.append(point)
    return [*chain, target]


def _sort(rows: list[list[str]], links: Sequence[tuple[str, str]]) -> None:
    """Order each column by the medians of its neighbours, from left to right and back; keeps the best of all sweeps."""
    column = {node: number for number, row in enumerate(rows) for node in row}
    beside: dict[str, list[str]] = {node: [] for node in column}
    for one, other in links:
        beside[one].append(other)
        beside[other].append(one)
    best, fewest = [list(row) for row in rows], _crossings(rows, links)
    for sweep in range(SWEEPS):
        numbers = range(1, len(rows)) if sweep % 2 == 0 else range(len(rows) - 2, -1, -1)
        for number in numbers:
            neighbour = number - 1 if sweep % 2 == 0 else number + 1
            place = {node: i for i, node in enumerate(rows[neighbour])}
            own = {node: i for i, node in enumerate(rows[number])}
            keys = {}
            for node in rows[number]:
                near = sorted(place[other] for other in beside[node] if other in place)
                keys[node] = float(own[node]) if not near else (near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2
            rows[number].sort(key=lambda node, keys=keys, own=own: (keys[node], own[node]))  # type: ignore[misc]
        count = _crossings(rows, links)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    rows[:] = best


def _crossings(rows: Sequence[Sequence[str]], links: Sequence[tuple[str, str]]) -> int:
    place = {node: (number, i) for number, row in enumerate(rows) for i, node in enumerate(row)}
    gaps: dict[int, list[tuple[int, int]]] = {}
    for one, other in links:
        (left, i), (right, j) = sorted((place[one], place[other]))
        if left != right:
            gaps.setdefault(left, []).append((i, j))
    return sum(
        1
        for pairs in gaps.values()
        for n, (a, b) in enumerate(pairs)
        for c, d in pairs[n + 1 :]
        if (a - c) * (b - d) < 0
    )


def _place_rows(
    rows: Sequence[Sequence[str]], links: Sequence[tuple[str, str]], heights: Mapping[str, float]
) -> dict[str, float]:
    """Return each node's upper edge: columns are stacked, then moved towards their neighbours in unchanged order."""
    y: dict[str, float] = {}
    for row in rows:
        top = 0.0
        for node in row:
            y[node] = top
            top += heights[node] + ROW_GAP
        shift = (top - ROW_GAP) / 2
        for node in row:
            y[node] -= shift
    beside: dict[str, list[str]] = {node: [] for node in y}
    for one, other in links:
        beside[one].append(other)
        beside[other].append(one)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {}
            for node in row:
                near = beside[node]
                middle = sum(y[n] + heights[n] / 2 for n in near) / len(near) if near else y[node] + heights[node] / 2
                wanted[node] = middle - heights[node] / 2
            _settle(row, wanted, heights, y)
    return y


def _settle(row: Sequence[str], wanted: Mapping[str, float], heights: Mapping[str, float], y: dict[str, float]) -> None:
    """Put a column's nodes as near to their wanted positions as their order and the gaps permit.

    Nodes that would overlap become a block, placed at the mean of its nodes' wanted positions.
    """
    blocks: list[tuple[float, float, list[str]]] = []  # (sum of wanted tops of the block, height with gaps, nodes)
    for node in row:
        total, size, nodes = wanted[node], heights[node] + ROW_GAP, [node]
        while blocks and blocks[-1][0] / len(blocks[-1][2]) + blocks[-1][1] > total / len(nodes):
            before_total, before_size, before = blocks.pop()
            # The later nodes' wanted positions are relative to the top of the block.
            total = before_total + total - before_size * len(nodes)
            nodes = [*before, *nodes]
            size += before_size
        blocks.append((total, size, nodes))
    for total, _, nodes in blocks:
        top = total / len(nodes)
        for node in nodes:
            y[node] = top
            top += heights[node] + ROW_GAP


def _lefts(rows: Sequence[Sequence[str]], sizes: Mapping[str, tuple[float, float]]) -> tuple[list[float], float]:
    lefts, x = [], MARGIN
    for row in rows:
        lefts.append(x)
        x += max((sizes[node][0] for node in row if node in sizes), default=0.0) + COLUMN_GAP
    return lefts, x - COLUMN_GAP + MARGIN


def _path(
    chain: Sequence[str],
    boxes: Mapping[str, Box],
    middles: Mapping[str, float],
    columns: Mapping[str, int],
    lefts: Sequence[float],
    rows: Sequence[Sequence[str]],
    sizes: Mapping[str, tuple[float, float]],
) -> tuple[tuple[float, float], ...]:
    """Return the points from the first box's right side to the last box's left side, straight through each column."""
    source, target = boxes[chain[0]], boxes[chain[-1]]
    points = [(source.x + source.width, middles[chain[0]])]
    for point in chain[1:-1]:
        left = lefts[columns[point]]
        right = left + max((sizes[node][0] for node in rows[columns[point]] if node in sizes), default=0.0)
        ends = [(left, middles[point]), (right, middles[point])]
        points += ends if columns[chain[-1]] >= columns[chain[0]] else ends[::-1]
    return (*points, (target.x, middles[chain[-1]]))
