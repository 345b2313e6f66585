"""The memory budget of requests being received (`queued.max.request.bytes`) and its fair sharing; pure.

The budget counts the bytes received and the next growth step of the buffer. An announced length does not count, so that
a client that announces much and sends little takes no memory from others.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

#: An owner's share of the budget is the budget divided by this; the rest is always left to other owners.
OWNER_SHARE: Final = 2
#: A request without the turn gets at most the budget divided by this.
CONNECTION_SHARE: Final = 4
#: Budget of all requests before authentication. Tokens that exceed a connection's first buffer are rare, and none
#: exceeds `sasl.server.max.receive.size`.
BEFORE_LOGIN_BYTES_MAX: Final = 8 << 20


class Holder:
    """The memory of one request, being received or kept until it is read.

    Attributes:
        owner: Owner of the share in which the request counts; changes only without granted or wanted bytes.
        held_bytes: Granted bytes.
        wanted_bytes: Bytes to be granted if the request waits; otherwise 0.
        when_granted: Called when a waiting request is granted its memory.
    """

    __slots__ = ("held_bytes", "owner", "wanted_bytes", "when_granted")

    def __init__(self, owner: Hashable, when_granted: Callable[[], None]) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.wanted_bytes = 0
        self.when_granted = when_granted


class RequestMemory:
    """A memory budget shared by many connections.

    A request is granted memory step by step while it arrives. To prevent a deadlock, one of the waiting requests has
    the turn: it is granted all it needs, even beyond the budget, until it is whole (`socket.request.max.bytes` bounds
    it). Owners take turns. A request behind one that is still being answered neither gets the turn nor waits: when
    whole, it would keep the turn until that answer, whose time the client controls.

    Invariants: memory granted without the turn is within the budget and the shares; if a request waits, some request
    has the turn.

    Args:
        bytes_max: The budget; -1 for none.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._used_by_owner: dict[Hashable, int] = {}
        #: Waiting requests by owner; the owner served last comes last.
        self._waiting: dict[Hashable, deque[Holder]] = {}
        self._turn: Holder | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes granted and not yet released."""
        return self._used_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait for memory."""
        return bool(self._waiting)

    def has_turn(self, holder: Holder) -> bool:
        """Whether the request has the turn, so that other requests may wait for it."""
        return self._turn is holder

    def grant(self, holder: Holder, size: int) -> bool:
        """Raise a request's memory to `size` bytes; False if it has to wait, and `when_granted` is called later.

        Only for a request that is answered as soon as it is whole, since it keeps the turn until then.
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
        """Raise a request's memory to `size` bytes if that needs no turn; otherwise return False without waiting."""
        assert size > holder.held_bytes
        assert not holder.wanted_bytes, "the request waits already"
        if not self._may_have(holder, size):
            return False
        self._count(holder, size - holder.held_bytes)
        return True

    def release(self, holder: Holder) -> None:
        """Release all memory of a request that is whole or read, or whose connection ended; it no longer waits."""
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
        """Grant what fits, and the turn to the first remaining request; then call `when_granted` of these requests."""
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
