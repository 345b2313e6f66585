"""What a follower asks one leader next: positions, the fetch session, pauses after failures. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.fetch_session import INITIAL_EPOCH, NO_SESSION
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition

#: Interval, in ms, at which the positions of all partitions are read again: retention moves log start offsets, which
#: no answer tells. Positions that answers move are read for the next request.
REFRESH_MS: Final = 500

POSITIONS_MAX: Final = 5_000
"""Positions in one request, and partitions that leave the session by one: leaders refuse requests of more than 20,000
elements, and each may be of another topic. The next requests take the others."""

_EPOCH_MAX: Final = 2**31 - 1

PositionOf = Callable[[FollowedPartition], ReplicaFetchPartition | int | None]
"""Returns the position of a partition; a pause in ms, or None for one of the usual length, if it cannot be fetched."""

_SessionKey = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class PlannedFetch:
    """One request: positions that the leader does not know yet, and partitions that leave the session."""

    positions: dict[UUID, list[ReplicaFetchPartition]]
    forgotten: dict[UUID, list[int]]
    session_id: int
    session_epoch: int
    #: Whether it has no room for all positions that the leader does not know: the next request has others.
    is_full: bool = False


class FetchPlan:
    """The partitions fetched from one leader over one connection, and the session with it (KIP-227).

    One request is under way at a time: `next` plans it, `asked` tells which question an answer belongs to. Invariants:

    - `_told` is what the leader's session holds after the last planned request.
    - A partition that pauses is not in `_told`.
    - After a lost answer or a refused session the next request is a full one, which begins another session.
    - What a request has no room for stays before all others in `_touched`.
    """

    def __init__(self, backoff_ms: Callable[[], int]) -> None:
        self._backoff_ms = backoff_ms
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._told: dict[_SessionKey, tuple[FollowedPartition, ReplicaFetchPartition]] = {}
        #: Partitions whose position may differ from the one told.
        self._touched: dict[TopicPartition, None] = {}
        #: Times at which the pauses of partitions end.
        self._paused_until_ms: dict[TopicPartition, int] = {}
        #: Partitions that wait for something else than time.
        self._held: set[TopicPartition] = set()
        #: Partitions that left since the last request.
        self._gone: dict[_SessionKey, None] = {}
        self._resumes_ms = 0
        self._refreshed_ms = 0
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def __len__(self) -> int:
        return len(self._followed)

    # -- events

    def follow(self, followed: FollowedPartition) -> None:
        """Fetch a partition from now on; without a pause, since another leader epoch ends the reason of an old one."""
        key = followed.topic_partition
        self.unfollow(key)
        self._followed[key] = followed
        self._touched[key] = None

    def unfollow(self, key: TopicPartition) -> None:
        """Fetch a partition no longer; one that is not fetched is ignored."""
        followed = self._followed.pop(key, None)
        self._touched.pop(key, None)
        self._paused_until_ms.pop(key, None)
        self._held.discard(key)
        if followed is not None:
            self._forget(followed)

    def touch(self, followed: FollowedPartition) -> None:
        """Note that the position of a partition may have moved."""
        if self._is_current(followed):
            self._touched[followed.topic_partition] = None

    def hold(self, followed: FollowedPartition) -> None:
        """Leave a partition out of the fetches until it is released."""
        if self._is_current(followed):
            self._held.add(followed.topic_partition)
            self._touched[followed.topic_partition] = None

    def release(self, key: TopicPartition) -> None:
        """Fetch a partition again that was held or pauses."""
        if key in self._followed:
            self._held.discard(key)
            self._paused_until_ms.pop(key, None)
            self._touched[key] = None

    def back_off(self, followed: FollowedPartition, now_ms: int) -> None:
        """Pause the fetches of a partition after a failure; a held one is released."""
        if self._is_current(followed):
            key = followed.topic_partition
            self._held.discard(key)
            self._touched[key] = None
            self._paused_until_ms[key] = now_ms + self._backoff_ms()

    def failed(self, now_ms: int) -> None:
        """Pause all fetches after a request without an answer; its session may be anywhere."""
        self.restart()
        self._resumes_ms = now_ms + self._backoff_ms()

    def leader_returned(self) -> None:
        """End all pauses: the leader's broker registered again."""
        self._resumes_ms = 0
        for key in list(self._paused_until_ms):
            self.release(key)

    def restart(self) -> None:
        """Begin another session with the next request, in which the leader tells everything anew."""
        self._epoch = INITIAL_EPOCH

    def answered(self, session_id: int) -> None:
        """Note the session of an answer; a leader without room for one gets full requests."""
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        else:
            self._session_id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    # -- questions

    def is_told(self, key: TopicPartition) -> bool:
        """Whether the last planned request asks for a partition that is followed."""
        told = self._told.get(_session_key(self._followed[key]))
        return told is not None and self._is_current(told[0])

    def asked(self, topic_id: UUID, index: int) -> tuple[FollowedPartition, ReplicaFetchPartition] | None:
        """Return the question of an answer; None if nobody waits for it any more."""
        told = self._told.get((topic_id, index))
        return told if told is not None and self._is_current(told[0]) else None

    def next(self, now_ms: int, position_of: PositionOf) -> PlannedFetch | None:
        """Plan the next request; None if there is nothing to ask until an event or the end of `wait_ms`."""
        if now_ms < self._resumes_ms:
            return None
        for key in [key for key, until_ms in self._paused_until_ms.items() if until_ms <= now_ms]:
            del self._paused_until_ms[key]
            self._touched[key] = None
        if len(self._gone) > POSITIONS_MAX or self._has_returned():
            self.restart()
        if self._epoch == INITIAL_EPOCH:
            self._told.clear()
            self._gone.clear()
        if self._epoch == INITIAL_EPOCH or now_ms - self._refreshed_ms >= REFRESH_MS:
            self._refreshed_ms = now_ms
            self._touched.update(dict.fromkeys(self._followed))
        changed: dict[UUID, list[ReplicaFetchPartition]] = {}
        room = POSITIONS_MAX
        for key in list(self._touched):
            if not room:
                break
            del self._touched[key]
            room -= self._plan(self._followed[key], now_ms, position_of, changed)
        if not self._told:
            return None
        gone: dict[UUID, list[int]] = {}
        for topic_id, index in self._gone:
            gone.setdefault(topic_id, []).append(index)
        self._gone.clear()
        return PlannedFetch(changed, gone, self._session_id, self._epoch, bool(self._touched))

    def wait_ms(self, now_ms: int) -> int | None:
        """Time until a pause ends, None without one."""
        if now_ms < self._resumes_ms:
            return self._resumes_ms - now_ms
        return max(0, min(self._paused_until_ms.values()) - now_ms) if self._paused_until_ms else None

    def is_held(self, followed: FollowedPartition) -> bool:
        """Whether a partition is left out of the fetches until it is released."""
        return self._is_current(followed) and followed.topic_partition in self._held

    def _has_returned(self) -> bool:
        """Whether a partition is asked for again before the leader has heard that it left the session.

        One request cannot both end and begin it, and what the leader has told it would not tell again.
        """
        return bool(self._gone) and any(_session_key(self._followed[key]) in self._gone for key in self._touched)

    def _is_current(self, followed: FollowedPartition) -> bool:
        return self._followed.get(followed.topic_partition) is followed

    def _plan(
        self,
        followed: FollowedPartition,
        now_ms: int,
        position_of: PositionOf,
        changed: dict[UUID, list[ReplicaFetchPartition]],
    ) -> bool:
        """Put a partition into the session, change its position there, or take it out; return whether it is told."""
        key = followed.topic_partition
        position = None
        if key not in self._held and key not in self._paused_until_ms:
            found = position_of(followed)
            if isinstance(found, ReplicaFetchPartition):
                position = found
            else:
                # Such as a log that is not created yet; nothing tells when it is.
                self._paused_until_ms[key] = now_ms + (self._backoff_ms() if found is None else found)
        if position is None:
            self._forget(followed)
            return False
        session_key = _session_key(followed)
        told = self._told.get(session_key)
        if told is None or told[0] is not followed or told[1] != position:
            self._told[session_key] = (followed, position)
            changed.setdefault(followed.topic_id, []).append(position)
            return True
        return False

    def _forget(self, followed: FollowedPartition) -> None:
        session_key = _session_key(followed)
        if self._told.pop(session_key, None) is not None:
            self._gone[session_key] = None


def _session_key(followed: FollowedPartition) -> _SessionKey:
    return followed.topic_id, followed.topic_partition.partition
