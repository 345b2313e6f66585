"""Shrinks a list that makes a run fail to a part that still does (delta debugging); pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shrink(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return a part of `items`, in their order, that fails and of which no single item can be left out.

    >>> shrink(range(20), lambda part: 3 in part and 11 in part)
    [3, 11]
    >>> shrink([1, 2, 3], lambda part: True)
    []
    """
    left = list(items)
    parts = 2
    while left:
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if fails(rest):
                left = rest
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(left), 2 * parts)
    return left
