"""Committed offsets of a group, and their expiry."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from headwater.logtier.group.classic.core import GroupCore
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.events import GroupState
from headwater.logtier.protocol.topic_partition import TopicPartition

NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of one partition.

    Attributes:
        metadata: Any text of the client.
        leader_epoch: Epoch of the last consumed record; a consumer detects truncation by it (KIP-320).
        expire_timestamp_ms: Set only for a commit with a retention of its own (OffsetCommit versions 2 to 4).
        topic_id: Id of the topic at the commit: a recreated topic of the same name has another id.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    topic_id: UUID | None = None


class GroupOffsets:
    """The committed offsets of one group.

    Invariant: an offset is replaced only by a later one in the log, in whatever order the writes complete.
    """

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        #: topic-partition -> (committed offset, its record's offset in `__consumer_offsets`)
        self._offsets: dict[TopicPartition, tuple[CommittedOffset, int]] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._offsets))

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._offsets

    def get(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of a partition, if any."""
        found = self._offsets.get(topic_partition)
        return None if found is None else found[0]

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Return all partitions with their committed offsets, by topic and partition."""
        return ((key, self._offsets[key][0]) for key in sorted(self._offsets))

    def put(self, topic_partition: TopicPartition, committed: CommittedOffset, log_offset: int) -> None:
        """Apply a commit, in the log at `log_offset`."""
        found = self._offsets.get(topic_partition)
        if found is None or found[1] < log_offset:
            self._offsets[topic_partition] = (committed, log_offset)

    def remove(self, topic_partitions: Iterable[TopicPartition], log_offset: int) -> None:
        """Remove commits whose tombstones are in the log at `log_offset` or before; later commits remain."""
        for key in topic_partitions:
            found = self._offsets.get(key)
            if found is not None and found[1] <= log_offset:
                del self._offsets[key]


def expired_offsets(
    group: GroupCore | ConsumerGroup, offsets: GroupOffsets, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Return the partitions whose offsets are past their retention (KIP-211).

    Offsets of a group without members expire `retention_ms` after the group became empty. In an active group of
    consumers, offsets of topics without subscription expire. Offsets committed without group management, or by a group
    of the consumer protocol, expire by their own age.
    """
    in_use: frozenset[str] = frozenset()
    if isinstance(group, ConsumerGroup):
        since_empty_ms = None
        in_use = group.state.subscribed_topics()
    elif group.protocol_type is None:
        since_empty_ms = None
    elif group.state is GroupState.EMPTY:
        since_empty_ms = group.current_state_timestamp_ms if group.current_state_timestamp_ms >= 0 else None
    elif group.state is GroupState.STABLE and group.subscribed_topics is not None:
        since_empty_ms = None
        in_use = group.subscribed_topics
    else:
        return []
    expired = []
    for key, committed in offsets.items():
        if key.topic in in_use:
            continue
        if committed.expire_timestamp_ms is not None:
            is_due = committed.expire_timestamp_ms <= now_ms
        else:
            base_ms = committed.commit_timestamp_ms if since_empty_ms is None else since_empty_ms
            is_due = now_ms - base_ms >= retention_ms
        if is_due:
            expired.append(key)
    return expired
