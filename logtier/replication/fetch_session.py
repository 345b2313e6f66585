"""Incremental fetch sessions (KIP-227). Pure: sessions hold the requested partitions, the replica manager reads them.

A client of many partitions lists them once. Later requests contain only changed partitions, and responses only
partitions with changes: records, another high watermark or log start offset, an error.

A fetch reads the partitions that are due; the others stand: since their last answer nothing of them has changed. Due
partitions are read in rotation: those that returned records move to the end, so that none starves under a byte limit.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.fetch_response import TaggedPartition

#: Epochs outside a session: the first requests a new session, the second ends it.
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0

#: Idle time or age, in ms, after which a session may be evicted (as in Kafka).
EVICTION_MS: Final = 120_000

#: A client of more partitions gets no session, only full responses: sessions occupy the broker's memory.
SESSION_PARTITIONS_MAX: Final = 100_000

_EPOCH_MAX: Final = 2**31 - 1
_NOTHING_TOLD: Final = -1

#: A topic, by id or (before version 13) by name, and a partition of it.
PartitionKey = tuple[UUID | str | None, int]


class Answered(Protocol):
    """The fields of a partition's response that a session compares."""

    @property
    def error_code(self) -> ErrorCode:
        """The error of the partition."""

    @property
    def high_watermark(self) -> int:
        """The end of the records visible to consumers."""

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log."""

    @property
    def size(self) -> int:
        """Bytes of records."""


class Moves(Protocol):
    """Follows the changes of a session's partitions."""

    def close(self) -> None:
        """End that: the session is over."""


WantedT = TypeVar("WantedT")
AnsweredT = TypeVar("AnsweredT", bound=Answered)


@dataclass(slots=True)
class SessionPartition(Generic[WantedT]):
    """One partition of a session: the request, and the values in the last response."""

    wanted: WantedT
    high_watermark: int = _NOTHING_TOLD
    log_start_offset: int = _NOTHING_TOLD

    def must_tell(self, answer: Answered) -> bool:
        """Whether the response must include the partition; records its values.

        An error and a divergence, which have no watermark, and another replica to ask are included every time.
        """
        has_news = (
            answer.high_watermark != self.high_watermark
            or answer.high_watermark == _NOTHING_TOLD
            or answer.log_start_offset != self.log_start_offset
            or bool(answer.error_code)
            or answer.size > 0
            or isinstance(answer, TaggedPartition)
        )
        # A response with an error has no watermark: the next one is always included.
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return has_news


#: Order of eviction: consumers before replicas, small sessions before large ones.
_EvictableKey = tuple[bool, int, int]


@dataclass(slots=True)
class FetchSession(Generic[WantedT]):
    """The partitions of one client.

    Invariant: a partition that is not due has been answered, and was then as it had been told; `move` makes it due.

    Attributes:
        due: The partitions to read, in the order in which they are read next.
        read_ms: When all were last due at once, on the monotonic clock.
        moves: Makes partitions due when they change.
        epoch: Epoch expected in the session's next request.
        by_topic_id: Whether partitions are identified by topic id; a request that identifies them otherwise is
            rejected.
        is_privileged: Whether the session belongs to a replica.
    """

    id: int
    by_topic_id: bool
    is_privileged: bool
    created_ms: int
    used_ms: int
    partitions: dict[PartitionKey, SessionPartition[WantedT]]
    due: dict[PartitionKey, None]
    epoch: int = 1
    read_ms: int = 0
    moves: "Moves | None" = None
    #: The metadata image and isolation level from which the wanted partitions were built.
    metadata: object = None
    is_read_committed: bool = False
    _listed_as: _EvictableKey | None = field(default=None, repr=False)

    def update(self, wanted: Sequence[tuple[PartitionKey, WantedT]], forgotten: Collection[PartitionKey]) -> None:
        """Apply the changes of a request."""
        partitions = self.partitions
        for key, each in wanted:
            known = partitions.get(key)
            if known is None:
                partitions[key] = SessionPartition(each)
            else:
                known.wanted = each
            self.due[key] = None
        for key in forgotten:
            partitions.pop(key, None)
            self.due.pop(key, None)

    def move(self, key: PartitionKey) -> None:
        """Note a change of a partition: the next fetch reads it."""
        if key in self.partitions:
            self.due[key] = None

    def read_all(self, now_ms: int) -> None:
        """Let the next fetch read all partitions, those that are due first."""
        self.due.update(dict.fromkeys(self.partitions))
        self.read_ms = now_ms

    def wanted(self) -> list[WantedT]:
        """Return the partitions to read, in order."""
        partitions = self.partitions
        return [partitions[key].wanted for key in self.due]

    def replace_wanted(self, replace: Callable[[WantedT], WantedT]) -> None:
        """Replace each wanted partition (after a change of the metadata)."""
        for partition in self.partitions.values():
            partition.wanted = replace(partition.wanted)

    def news(
        self,
        read: Sequence[PartitionKey],
        answers: Sequence[AnsweredT],
        stands: Callable[[PartitionKey, WantedT, AnsweredT], bool],
    ) -> list[int]:
        """Return the indexes of the partitions to include in the response; `answers` is in the order of `read`.

        Partitions with records move to the end of the order for the next request.

        Args:
            stands: Whether a partition without records is now as its answer tells it.
        """
        told: list[int] = []
        due = self.due
        for index, key in enumerate(read):
            partition, answer = self.partitions[key], answers[index]
            if partition.must_tell(answer):
                told.append(index)
            if answer.size > 0:
                due.pop(key, None)
                due[key] = None
            elif stands(key, partition.wanted, answer):
                due.pop(key, None)
        return told

    def advance(self) -> int:
        """Return the next epoch; epochs wrap to 1, since 0 requests a new session."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        return self.epoch


class FetchSessionCache(Generic[WantedT]):
    """The sessions of a broker, at most `slots_max` (`max.incremental.fetch.session.cache.slots`).

    A client without a session gets full responses, which is correct and only slower. A new session evicts one not used
    for EVICTION_MS; or else one older than EVICTION_MS with a lower priority: consumers rank below replicas, and among
    equals sessions with fewer partitions rank lower. A replica may evict a consumer's session at any time.
    """

    def __init__(self, slots_max: int, prng: random.Random) -> None:
        self._slots_max = slots_max
        self._prng = prng
        #: By id, the least recently used session first.
        self._sessions: dict[int, FetchSession[WantedT]] = {}
        #: Sessions older than EVICTION_MS in the order of eviction.
        self._evictable: list[_EvictableKey] = []

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Total number of partitions of all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def get(self, session_id: int) -> FetchSession[WantedT] | None:
        """Return a session by id, or None."""
        return self._sessions.get(session_id)

    def find(self, session_id: int, epoch: int, *, by_topic_id: bool) -> FetchSession[WantedT] | ErrorCode:
        """Return the session that a request continues, or the error code."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if session.epoch != epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.by_topic_id != by_topic_id:
            return ErrorCode.fetch_session_topic_id_error
        return session

    def create(
        self,
        wanted: Sequence[tuple[PartitionKey, WantedT]],
        *,
        by_topic_id: bool,
        is_privileged: bool,
        now_ms: int,
    ) -> FetchSession[WantedT] | None:
        """Begin a session; None if there is no room and no session can be evicted."""
        partitions = {key: SessionPartition(each) for key, each in wanted}
        if len(partitions) > SESSION_PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots_max and not self._evict(len(partitions), is_privileged, now_ms):
            return None
        due = dict.fromkeys(partitions)
        session = FetchSession(self._draw_id(), by_topic_id, is_privileged, now_ms, now_ms, partitions, due)
        self._sessions[session.id] = session
        return session

    def touch(self, session: FetchSession[WantedT], now_ms: int) -> None:
        """Record the use of a session, after its partitions changed."""
        session.used_ms = now_ms
        sessions = self._sessions
        del sessions[session.id]
        sessions[session.id] = session
        if now_ms - session.created_ms > EVICTION_MS:
            listed_as = session._listed_as
            if listed_as is None or listed_as[1] != len(session.partitions):
                self._unlist(session)
                session._listed_as = (session.is_privileged, len(session.partitions), session.id)
                insort(self._evictable, session._listed_as)

    def remove(self, session_id: int) -> None:
        """End a session; an unknown id is ignored."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._unlist(session)
            if session.moves is not None:
                session.moves.close()

    def _unlist(self, session: FetchSession[WantedT]) -> None:
        if session._listed_as is not None:
            del self._evictable[bisect_left(self._evictable, session._listed_as)]
            session._listed_as = None

    def _evict(self, size: int, is_privileged: bool, now_ms: int) -> bool:
        """Make room for a session of `size` partitions; return whether that succeeded."""
        least_recent = next(iter(self._sessions.values()), None)
        if least_recent is None:
            return False
        if now_ms - least_recent.used_ms > EVICTION_MS:
            self.remove(least_recent.id)
            return True
        if self._evictable and self._evictable[0] <= (is_privileged, size, 0):
            self.remove(self._evictable[0][2])
            return True
        if is_privileged:
            consumers = [session for session in self._sessions.values() if not session.is_privileged]
            if consumers:
                self.remove(min(consumers, key=lambda session: (len(session.partitions), session.id)).id)
                return True
        return False

    def _draw_id(self) -> int:
        while True:
            session_id = self._prng.randint(1, 2**31 - 1)
            if session_id not in self._sessions:
                return session_id
