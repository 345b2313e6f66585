"""Work of which only so much is done at a time: no client keeps the others waiting with its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final

#: Of the turns at one time, an owner's share is one part in so many, though at least one: others always find the rest.
OWNER_SHARE: Final = 2


class FairTurns:
    """Turns that owners have: so many at a time, each owner a share, and those that wait one after the other.

    Within one owner whoever came first is first. Used on one event loop. Invariant: where somebody waits, all turns are
    taken, or his owner has its share.

    Args:
        turns_max: Turns at one time.
        owner_max: Turns of one owner at one time; by default its share. Where turns are short it may have them all.
    """

    def __init__(self, turns_max: int, owner_max: int | None = None) -> None:
        self._free = turns_max
        self._share = max(1, turns_max // OWNER_SHARE) if owner_max is None else owner_max
        self._taken: dict[Hashable, int] = {}
        #: Those who wait, by owner; the owner that was served last stands last.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn of this owner, and have it."""
        await self._take(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    async def _take(self, owner: Hashable) -> None:
        if self._may_have(owner):
            self._count(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget_waiting(owner, turn)
            else:
                self._give_back(owner)
            raise

    def _give_back(self, owner: Hashable) -> None:
        self._free += 1
        taken = self._taken[owner] - 1
        if taken:
            self._taken[owner] = taken
        else:
            del self._taken[owner]
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while (owner := next((each for each in self._waiting if self._may_have(each)), None)) is not None:
            waiting = self._waiting.pop(owner)
            turn = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting  # behind all others
            if not turn.done():  # else it was cancelled, and the owner's next one is looked at
                self._count(owner)
                turn.set_result(None)

    def _may_have(self, owner: Hashable) -> bool:
        return self._free > 0 and self._taken.get(owner, 0) < self._share

    def _count(self, owner: Hashable) -> None:
        self._free -= 1
        self._taken[owner] = self._taken.get(owner, 0) + 1

    def _forget_waiting(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[owner]
