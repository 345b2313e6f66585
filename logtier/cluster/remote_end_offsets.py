"""End offsets of partitions that other brokers lead: what to request of which leader, and how long an answer counts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.peers.leader_requests import ListedOffset
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

PARTITIONS_PER_REQUEST_MAX: Final = 1_000
"""Partitions of one request, whose encoding and decoding block the event loop for a few milliseconds each."""

VALID_MS: Final = 60_000
"""Time for which an end offset counts without a newer answer. Elections and restarts of brokers take less."""


class EndQuestion(NamedTuple):
    """A partition as of the request: a recreated topic has another id, another leader another epoch."""

    topic_partition: TopicPartition
    topic_id: UUID
    leader_epoch: int


class EndQuestions:
    """The partitions whose end offsets other brokers know, by leader; filled one partition at a time.

    Invariant: each partition is in it once, with its leader in `image`.
    """

    def __init__(self, broker_id: int, image: MetadataImage) -> None:
        """`broker_id` is this broker, which knows the ends of what it leads."""
        self._broker_id = broker_id
        self._image = image
        self._added: set[TopicPartition] = set()
        self._by_leader: dict[int, list[EndQuestion]] = {}

    def add(self, topic_partition: TopicPartition) -> None:
        """Add a partition, unless it does not exist, has no leader, or this broker leads it."""
        if topic_partition in self._added:
            return
        self._added.add(topic_partition)
        topic = self._image.topic(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return
        state = topic.partitions[topic_partition.partition]
        if state.leader not in (self._broker_id, NO_BROKER):
            question = EndQuestion(topic_partition, topic.topic_id, state.leader_epoch)
            self._by_leader.setdefault(state.leader, []).append(question)

    def leaders(self) -> list[int]:
        """Return the brokers to ask."""
        return list(self._by_leader)

    def batches(self, leader_id: int) -> Iterator[Sequence[EndQuestion]]:
        """Yield the partitions of each request to a leader."""
        questions = self._by_leader.get(leader_id, [])
        for first in range(0, len(questions), PARTITIONS_PER_REQUEST_MAX):
            yield questions[first : first + PARTITIONS_PER_REQUEST_MAX]


class _KnownEnd(NamedTuple):
    topic_id: UUID
    end_offset: int
    answered_ms: int


class RemoteEndOffsets:
    """The high watermarks in the last answers of leaders, each for VALID_MS."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, _KnownEnd] = {}

    def __len__(self) -> int:
        return len(self._known)

    def answered(
        self,
        questions: Sequence[EndQuestion],
        answers: Mapping[TopicPartition, ListedOffset],
        image: MetadataImage,
        now_ms: int,
    ) -> None:
        """Apply a leader's answers.

        An answer does not count if the topic was deleted, or the leader epoch ended, since the question: after an
        unclean election the log may be shorter. Without an answer, or after an error, the last one counts on.
        """
        for question in questions:
            answer = answers.get(question.topic_partition)
            if answer is None or answer.error_code != ErrorCode.none or answer.offset < 0:
                continue
            if _is_present(question, image):
                end = _KnownEnd(question.topic_id, answer.offset, now_ms)
                self._known[question.topic_partition] = end

    def end_offset(self, topic_partition: TopicPartition, topic_id: UUID, now_ms: int) -> int | None:
        """Return the last known end offset of a topic's partition; None if there is none, or it is too old."""
        known = self._known.get(topic_partition)
        if known is None or known.topic_id != topic_id or _is_expired(known, now_ms):
            return None
        return known.end_offset

    def expire(self, now_ms: int) -> None:
        """Remove what is too old, such as the ends of partitions of which no group has offsets any longer."""
        expired = [key for key, known in self._known.items() if _is_expired(known, now_ms)]
        for key in expired:
            del self._known[key]


def _is_expired(known: _KnownEnd, now_ms: int) -> bool:
    return now_ms - known.answered_ms > VALID_MS


def _is_present(question: EndQuestion, image: MetadataImage) -> bool:
    """Whether the topic and the leader epoch are those of the question."""
    topic = image.topic(question.topic_partition.topic)
    if topic is None or topic.topic_id != question.topic_id:
        return False
    # The number of partitions never falls.
    return topic.partitions[question.topic_partition.partition].leader_epoch == question.leader_epoch
