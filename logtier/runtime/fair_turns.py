"""Limits concurrent work fairly: the work of one client cannot occupy every turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final

#: An owner's share is the number of turns divided by this, at least one; the other owners always have the rest.
OWNER_SHARE: Final = 2


class FairTurns:
    """A limited number of concurrent turns, with a share for each owner; waiting owners are served in rotation.

    The turns of one owner are first in, first out, except for urgent ones, which come first. Used on one event loop.
    Invariant: if a task waits, all turns are taken or its owner has its share.

    Args:
        turns_max: Maximum number of concurrent turns.
        owner_max: Maximum number of concurrent turns of one owner; by default the share. With short turns an owner may
            have all of them.
    """

    def __init__(self, turns_max: int, owner_max: int | None = None) -> None:
        self._free = turns_max
        self._share = max(1, turns_max // OWNER_SHARE) if owner_max is None else owner_max
        self._taken: dict[Hashable, int] = {}
        #: Waiting tasks by owner; the owner served last comes last.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, owner: Hashable, *, is_urgent: bool = False) -> AsyncIterator[None]:
        """Wait for a turn of this owner and hold it. An urgent task waits for no other waiting task of the owner."""
        await self._take(owner, is_urgent)
        try:
            yield
        finally:
            self._give_back(owner)

    async def _take(self, owner: Hashable, is_urgent: bool) -> None:
        if self._may_have(owner):
            self._count(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(owner, deque())
        if is_urgent:
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
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
            if not turn.done():  # a cancelled task needs no turn; the owner's next task follows
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
