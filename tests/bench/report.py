"""Figures to tables: minimum, median and maximum of the rounds, and the ratio of medians."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

# figure -> system -> one value a round
Figures = dict[str, dict[str, list[float]]]
Table = str


def number(value: float) -> str:
    """Three significant digits or so.

    >>> [number(x) for x in (1234567.8, 123.4, 12.34, 1.234, 0.0567)]
    ['1,234,568', '123', '12.3', '1.23', '0.057']
    """
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def spread(values: Sequence[float]) -> str:
    """Median, and the extremes beside it.

    >>> spread([3.0, 1.0, 2.0])
    '2.00 (1.00..3.00)'
    >>> spread([5.0])
    '5.00'
    """
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}..{number(max(values))})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "long"]]))
    | a | b    |
    |---|------|
    | 1 | long |
    """
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in [head, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def comparison(title: str, figures: Figures, reference: str, ours: str) -> Table:
    """Both systems side by side, and ours divided by the reference.

    >>> print(comparison("T", {"speed": {"A": [1.0, 2.0, 3.0], "B": [4.0]}}, "A", "B"))
    T
    <BLANKLINE>
    | median (min..max) | A                 | B    | B / A |
    |-------------------|-------------------|------|-------|
    | speed             | 2.00 (1.00..3.00) | 4.00 | 2.00  |
    """
    rows = []
    for figure, systems in figures.items():
        a, b = systems[reference], systems[ours]
        ratio = statistics.median(b) / statistics.median(a) if statistics.median(a) else float("nan")
        rows.append([figure, spread(a), spread(b), f"{ratio:.2f}"])
    return f"{title}\n\n" + table(["median (min..max)", reference, ours, f"{ours} / {reference}"], rows)


def listing(title: str, figures: dict[str, list[float]]) -> Table:
    """Figures of one system alone.

    >>> print(listing("T", {"x, s": [1.0]}))
    T
    <BLANKLINE>
    | median (min..max) |      |
    |-------------------|------|
    | x, s              | 1.00 |
    """
    return f"{title}\n\n" + table(["median (min..max)", ""], [[name, spread(v)] for name, v in figures.items()])


def ratios(title: str, figures: dict[str, Figures], reference: str, ours: str) -> Table:
    """One row a combination: medians of ours, and ours divided by the reference, for each figure.

    >>> print(ratios("T", {"lz4": {"speed": {"A": [2.0], "B": [4.0]}}}, "A", "B"))
    T
    <BLANKLINE>
    | B (B / A) | speed       |
    |-----------|-------------|
    | lz4       | 4.00 (2.00) |
    """
    names = list(next(iter(figures.values())))
    rows = []
    for combination, measured in figures.items():
        row = [combination]
        for name in names:
            a, b = (statistics.median(measured[name][system]) for system in (reference, ours))
            row.append(f"{number(b)} ({b / a if a else float('nan'):.2f})")
        rows.append(row)
    return f"{title}\n\n" + table([f"{ours} ({ours} / {reference})", *names], rows)
