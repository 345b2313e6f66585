"""The bytes of requests that are being received, in all (`queued.max.request.bytes`), and who may have how many; pure.

What is counted is what has arrived, and the next piece of buffer for it. A length that is announced counts nothing, so
whoever announces much and sends little takes nothing from others.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

#: Of the budget, one owner may have one part in so many: others always find the rest.
OWNER_SHARE: Final = 2
#: Of the budget, the request of one connection may have one part in so many, while it does not have the turn.
CONNECTION_SHARE: Final = 4
#: Requests of those who have not logged in, in all. Tokens that exceed a connection's first buffer are rare, and none
#: exceeds `sasl.server.max.receive.size`.
BEFORE_LOGIN_BYTES_MAX: Final = 8 << 20


class Holder:
    """A request of one connection, as the budget sees it: one that is being received, or kept until it is read.

    Attributes:
        owner: Whose share it counts in; changes only while nothing is held and nothing waited for.
        held_bytes: What is granted.
        wanted_bytes: What is to be granted, if it waits; else 0.
    """

    __slots__ = ("held_bytes", "owner", "wanted_bytes", "when_granted")

    def __init__(self, owner: Hashable, when_granted: Callable[[], None]) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.wanted_bytes = 0
        self.when_granted = when_granted


class RequestMemory:
    """A budget that many connections share.

    A request is granted its memory piece by piece, as it arrives. So that requests never wait for each other in a
    circle, one of those that wait has the turn: it is granted whatever it still needs (`socket.request.max.bytes`
    bounds it), whether that fits or not, until it is whole. Owners take turns. A request behind one that is still being
    answered gets neither the turn nor a place among those that wait: whole, it would keep the turn for as long as that
    answer takes, and its client decides how long that is.

    Invariant: what is granted without the turn is within the budget and within each share; where somebody waits,
    somebody has the turn.

    Args:
        bytes_max: The budget; -1 for none.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._used_by_owner: dict[Hashable, int] = {}
        #: Those who wait, by owner; the owner that was served last stands last.
        self._waiting: dict[Hashable, deque[Holder]] = {}
        self._turn: Holder | None = None

    @property
    def used_bytes(self) -> int:
        """What is granted and not yet released."""
        return self._used_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait for others to be received."""
        return bool(self._waiting)

    def has_turn(self, holder: Holder) -> bool:
        """Whether requests of others may wait for this one."""
        return self._turn is holder

    def grant(self, holder: Holder, size: int) -> bool:
        """Raise what a request holds to `size` bytes: now, or later, of which the holder is told.

        Only for a request that is answered as soon as it is whole: whoever has the turn keeps it until then.
        """
        if self.grant_if_it_fits(holder, size):
            return True
        if self._turn is None:
            self._turn = holder
            self._count(holder, size - holder.held_bytes)
            return True
        holder.wanted_bytes = size
        self._waiting.setdefault(holder.owner, deque()).append(holder)
        return False

    def grant_if_it_fits(self, holder: Holder, size: int) -> bool:
        """Raise what a request holds to `size` bytes, unless that takes the turn; it does not wait for it."""
        assert size > holder.held_bytes
        assert not holder.wanted_bytes, "it waits already"
        if not self._may_have(holder, size):
            return False
        self._count(holder, size - holder.held_bytes)
        return True

    def release(self, holder: Holder) -> None:
        """The request is whole, or read, or its connection is gone: it holds nothing more and waits no more."""
        if holder.wanted_bytes:
            holder.wanted_bytes = 0
            self._forget_waiting(holder)
        elif not holder.held_bytes:
            return
        self._count(holder, -holder.held_bytes)
        if self._turn is holder:
            self._turn = None
        self._serve_waiting()

    def _may_have(self, holder: Holder, size: int) -> bool:
        if self._bytes_max < 0 or self._turn is holder:
            return True
        more = size - holder.held_bytes
        of_owner = self._used_by_owner.get(holder.owner, 0)
        return (
            self._used_bytes + more <= self._bytes_max
            and of_owner + more <= self._bytes_max // OWNER_SHARE
            and size <= self._bytes_max // CONNECTION_SHARE
        )

    def _count(self, holder: Holder, more: int) -> None:
        holder.held_bytes += more
        self._used_bytes += more
        of_owner = self._used_by_owner.get(holder.owner, 0) + more
        if of_owner:
            self._used_by_owner[holder.owner] = of_owner
        else:
            self._used_by_owner.pop(holder.owner, None)

    def _forget_waiting(self, holder: Holder) -> None:
        waiting = self._waiting[holder.owner]
        waiting.remove(holder)
        if not waiting:
            del self._waiting[holder.owner]

    def _serve_waiting(self) -> None:
        """Grant what fits, and the turn to the first of the rest; tell the holders when all is settled."""
        granted: list[Holder] = []
        for owner in list(self._waiting):
            waiting = self._waiting[owner]
            while waiting and self._may_have(waiting[0], waiting[0].wanted_bytes):
                granted.append(self._grant_first(owner))
        if self._turn is None and self._waiting:
            owner = next(iter(self._waiting))
            self._turn = self._waiting[owner][0]
            granted.append(self._grant_first(owner))
        for holder in granted:
            holder.when_granted()

    def _grant_first(self, owner: Hashable) -> Holder:
        waiting = self._waiting.pop(owner)
        holder = waiting.popleft()
        if waiting:
            self._waiting[owner] = waiting  # behind all others
        self._count(holder, holder.wanted_bytes - holder.held_bytes)
        holder.wanted_bytes = 0
        return holder
