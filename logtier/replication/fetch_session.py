"""Incremental fetch sessions (KIP-227). Pure: who asks for what is kept here, reading is the replica manager's.

A client that follows many partitions names them once. From then on it sends what changed of them, and is answered with
what changed in them: records, a moved high watermark or log start, an error.

A session's partitions are read in turn: whatever got records goes to the end, so that none starves under a byte budget.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from headwater.logtier.protocol.errors import ErrorCode

#: Epochs that are no place in a session: with the one a session is asked for, with the other none is wanted any more.
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0

#: A session may be taken from its owner when it was not used, or has existed, for so long (as in Kafka).
EVICTION_MS: Final = 120_000

#: A client that follows more is answered in full every time: what a session holds is memory of the broker.
SESSION_PARTITIONS_MAX: Final = 100_000

_EPOCH_MAX: Final = 2**31 - 1
_NOTHING_TOLD: Final = -1

#: A topic, by id or (before version 13) by name, and a partition of it.
PartitionKey = tuple[UUID | str | None, int]


class Answered(Protocol):
    """What a session compares of a partition's answer."""

    @property
    def error_code(self) -> ErrorCode:
        """Why there are no records."""

    @property
    def high_watermark(self) -> int:
        """Up to where consumers read."""

    @property
    def log_start_offset(self) -> int:
        """Where the log begins."""

    @property
    def size(self) -> int:
        """Bytes of records."""


WantedT = TypeVar("WantedT")


@dataclass(slots=True)
class SessionPartition(Generic[WantedT]):
    """One partition of a session: what is asked of it, and what its client was told last."""

    wanted: WantedT
    high_watermark: int = _NOTHING_TOLD
    log_start_offset: int = _NOTHING_TOLD

    def must_tell(self, answer: Answered) -> bool:
        """Whether the answer has news, which count as told from now on; an error is told again and again."""
        has_news = (
            answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or bool(answer.error_code)
            or answer.size > 0
        )
        # Of an error the client is told no watermark: whatever comes after it is news.
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return has_news


#: Who is evicted first: consumers before replicas, small sessions before large ones.
_EvictableKey = tuple[bool, int, int]


@dataclass(slots=True)
class FetchSession(Generic[WantedT]):
    """The partitions that one client follows, in the order in which they are read next.

    Attributes:
        epoch: What the session's next request has to carry.
        by_topic_id: Whether its partitions are named by topic id; a request that names them otherwise is refused.
        is_privileged: Whether it belongs to a replica.
    """

    id: int
    by_topic_id: bool
    is_privileged: bool
    created_ms: int
    used_ms: int
    partitions: dict[PartitionKey, SessionPartition[WantedT]]
    epoch: int = 1
    #: What the wanted partitions were made with: a metadata image, and the isolation level.
    metadata: object = None
    is_read_committed: bool = False
    _listed_as: _EvictableKey | None = field(default=None, repr=False)

    def update(self, wanted: Sequence[tuple[PartitionKey, WantedT]], forgotten: Collection[PartitionKey]) -> None:
        """Take over what a request changed."""
        partitions = self.partitions
        for key, each in wanted:
            known = partitions.get(key)
            if known is None:
                partitions[key] = SessionPartition(each)
            else:
                known.wanted = each
        for key in forgotten:
            partitions.pop(key, None)

    def wanted(self) -> list[WantedT]:
        """What is to be read, in this order."""
        return [partition.wanted for partition in self.partitions.values()]

    def replace_wanted(self, replace: Callable[[WantedT], WantedT]) -> None:
        """Put something else in the place of each wanted partition (the metadata changed)."""
        for partition in self.partitions.values():
            partition.wanted = replace(partition.wanted)

    def news(self, answers: Sequence[Answered]) -> Iterator[int]:
        """Yield the index of every answer that must be told, `answers` being in the order of `wanted`.

        Those with records go to the end of the order, before the next request is read.
        """
        served: list[PartitionKey] = []
        for index, (key, partition) in enumerate(self.partitions.items()):
            answer = answers[index]
            if partition.must_tell(answer):
                if answer.size > 0:
                    served.append(key)
                yield index
        if len(served) < len(self.partitions):
            for key in served:
                self.partitions[key] = self.partitions.pop(key)

    def advance(self) -> int:
        """Expect the next epoch; they wrap to 1, since 0 asks for a new session."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        return self.epoch


class FetchSessionCache(Generic[WantedT]):
    """The sessions of a broker, at most `slots_max` (`max.incremental.fetch.session.cache.slots`).

    A client that gets no slot is answered in full every time, which is right and only slower. To make room, a session
    goes that was not used for EVICTION_MS; else one that has existed for that long and is worth less than the new one:
    a consumer's before a replica's, and of two of a kind the one of fewer partitions. A replica may take the slot of a
    consumer at any time.
    """

    def __init__(self, slots_max: int, prng: random.Random) -> None:
        self._slots_max = slots_max
        self._prng = prng
        #: The least recently used one first.
        self._sessions: dict[int, FetchSession[WantedT]] = {}
        #: Those that had their time, the one to go first in front.
        self._evictable: list[_EvictableKey] = []

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def get(self, session_id: int) -> FetchSession[WantedT] | None:
        """The session of an id."""
        return self._sessions.get(session_id)

    def find(self, session_id: int, epoch: int, *, by_topic_id: bool) -> FetchSession[WantedT] | ErrorCode:
        """The session that a request goes on with, or why it cannot."""
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
        """Begin a session, if there is room or room can be made."""
        partitions = {key: SessionPartition(each) for key, each in wanted}
        if len(partitions) > SESSION_PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots_max and not self._evict(len(partitions), is_privileged, now_ms):
            return None
        session = FetchSession(self._draw_id(), by_topic_id, is_privileged, now_ms, now_ms, partitions)
        self._sessions[session.id] = session
        return session

    def touch(self, session: FetchSession[WantedT], now_ms: int) -> None:
        """Note that a session was used, after its partitions changed."""
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
        """End a session, if there is one of this id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._unlist(session)

    def _unlist(self, session: FetchSession[WantedT]) -> None:
        if session._listed_as is not None:
            del self._evictable[bisect_left(self._evictable, session._listed_as)]
            session._listed_as = None

    def _evict(self, size: int, is_privileged: bool, now_ms: int) -> bool:
        """Make room for a session of so many partitions; whether that worked."""
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
