"""A client's copy of the cluster's metadata, in which no partition goes back to an older leader epoch. No I/O."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headwater.logtier.client.errors import UNKNOWN_TOPIC_OR_PARTITION

__all__ = ["NO_EPOCH", "NO_NODE", "ClientMetadata", "KnownLeader", "KnownTopic"]

NO_NODE: Final = -1
#: Of a broker that does not state epochs.
NO_EPOCH: Final = -1


class KnownLeader(NamedTuple):
    """The leader of a partition, NO_NODE while there is none, and its leader epoch."""

    node_id: int
    leader_epoch: int = NO_EPOCH


@dataclass(slots=True)
class KnownTopic:
    """A topic in a Metadata response."""

    error_code: int
    leaders: dict[int, KnownLeader]
    internal: bool = False
    topic_id: uuid.UUID | None = None


@dataclass(slots=True)
class _Memory:
    """The newest leader of each partition of one topic id, which outlives the topic's entry.

    Attributes:
        former_ids: Ids that this one has replaced: a broker that still names one of them is behind.
    """

    topic_id: uuid.UUID
    leaders: dict[int, KnownLeader] = field(default_factory=dict)
    former_ids: frozenset[uuid.UUID] = frozenset()


class ClientMetadata:
    """Brokers and topics of the responses so far.

    Invariant: a partition's leader epoch never decreases while its topic keeps its id, even if a broker that is behind
    answers (KIP-320). Topics without an id, of brokers before KIP-516, have no such memory: after their deletion the
    epochs of another topic would count as old.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, KnownTopic] = {}
        self.cluster_id: str | None = None
        self._memories: dict[str, _Memory] = {}
        self._hinted: set[str] = set()
        #: Responses in a row that do not know a topic.
        self._unknown_answers: dict[str, int] = {}

    def update(self, response: Any, *, is_complete: bool) -> bool:
        """Takes over a response; returns whether its broker is behind what is known already.

        Args:
            is_complete: Whether the response has all topics.
        """
        self.brokers = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in response.brokers}
        self.cluster_id = getattr(response, "cluster_id", None)
        if is_complete:
            self.topics.clear()
        is_behind = False
        for answer in response.topics:
            topic = _topic(answer)
            name = str(answer.name)
            is_current = self._remember(name, topic)
            is_behind = is_behind or not is_current
            self.topics[name] = topic
        return is_behind

    def _remember(self, name: str, topic: KnownTopic) -> bool:
        """Replaces what is older than the memory, and remembers the rest; returns whether all was up to date."""
        memory = self._memories.get(name)
        if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
            self._unknown_answers[name] = self._unknown_answers.get(name, 0) + 1
            return False
        self._unknown_answers.pop(name, None)
        topic_id = topic.topic_id
        if topic_id is None or not topic_id.int:
            return True
        if memory is None:
            self._memories[name] = _Memory(topic_id, dict(topic.leaders))
            return True
        if topic_id in memory.former_ids:
            topic.topic_id, topic.leaders = memory.topic_id, dict(memory.leaders)
            return False
        if topic_id != memory.topic_id:
            former_ids = memory.former_ids | {memory.topic_id}
            self._memories[name] = _Memory(topic_id, dict(topic.leaders), former_ids)
            return True
        return self._merge(memory, topic)

    @staticmethod
    def _merge(memory: _Memory, topic: KnownTopic) -> bool:
        is_current = True
        for partition, leader in topic.leaders.items():
            known = memory.leaders.get(partition)
            if known is not None and NO_EPOCH < leader.leader_epoch < known.leader_epoch:
                topic.leaders[partition] = known
                is_current = False
            else:
                memory.leaders[partition] = leader
        return is_current

    def is_gone(self, name: str) -> bool:
        """Whether a topic that the last response does not know does not exist.

        A broker that has just started or lags behind may not know a new topic: it counts as missing when as many
        responses in a row as there are brokers do not know it.
        """
        return self._unknown_answers.get(name, 0) >= len(self.brokers)

    def leader(self, name: str, partition: int) -> KnownLeader | None:
        """Returns a partition's leader in the present metadata; None if it must be requested."""
        topic = self.topics.get(name)
        if topic is None or topic.error_code:
            return None
        known = topic.leaders.get(partition)
        return known if known is not None and known.node_id in self.brokers else None

    def leader_epoch(self, name: str, partition: int) -> int:
        """Returns the newest known leader epoch of a partition; NO_EPOCH if none is known."""
        memory = self._memories.get(name)
        known = None if memory is None else memory.leaders.get(partition)
        return NO_EPOCH if known is None else known.leader_epoch

    def learn(self, name: str, partition: int, leader: KnownLeader) -> None:
        """Takes over a leader that another response than Metadata states, if its epoch is newer (KIP-951).

        With NO_NODE only the epoch is known: the metadata is requested again until a broker has this epoch.
        """
        topic, memory = self.topics.get(name), self._memories.get(name)
        if topic is None or memory is None or leader.leader_epoch <= self.leader_epoch(name, partition):
            return
        memory.leaders[partition] = topic.leaders[partition] = leader
        if leader.node_id in self.brokers:
            self._hinted.add(name)

    def forget(self, name: str) -> bool:
        """Drops a topic's entry after a response that shows it to be stale; returns whether it was dropped.

        A leader that the same response stated stays: no request is necessary.
        """
        if name in self._hinted:
            self._hinted.discard(name)
            return False
        self.topics.pop(name, None)
        return True

    def forget_all(self) -> None:
        """Drops the entries of all topics; the memory of their epochs stays."""
        self._hinted.clear()
        self.topics.clear()


def _topic(answer: Any) -> KnownTopic:
    leaders = {
        int(part.partition_index): KnownLeader(int(part.leader_id), int(getattr(part, "leader_epoch", NO_EPOCH)))
        for part in answer.partitions
    }
    return KnownTopic(int(answer.error_code), leaders, bool(answer.is_internal), getattr(answer, "topic_id", None))
