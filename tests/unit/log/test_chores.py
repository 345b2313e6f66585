"""What is due, where a chore fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.logtier.log.chores import Chore, Chores


def test_a_chore_that_fails_leaves_the_later_ones_due() -> None:
    ran: list[int] = []
    failures = [OSError(), None]

    def fails_once(_: int) -> None:
        if (error := failures.pop(0)) is not None:
            raise error

    chores: Chores[Callable[[int], None]] = Chores(Chore(fails_once), Chore(ran.append, lambda: 100))
    chores.begin(0)
    with pytest.raises(OSError):
        for do in chores.due(100):
            do(100)
    for do in chores.due(150):
        do(150)
    assert ran == [150]
