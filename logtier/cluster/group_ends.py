"""Requests the ends of the partitions of this broker's groups from their leaders, for the lag in the metrics."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from headwater.logtier.client.errors import ClientError
from headwater.logtier.cluster.remote_end_offsets import EndQuestion, EndQuestions, RemoteEndOffsets
from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.group.registry import AnyGroup
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.peers.leader_requests import ListedOffset, list_offsets_request
from headwater.logtier.peers.peers import SendToBroker
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.state_topic.turns import Turns

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
"""Time from one round of requests to the next: Prometheus usually scrapes every 15 to 60 seconds."""
TIMEOUT_MS: Final = 5_000
"""Time limit of one request, also for the connection."""

#: A consumer's request is answered with the high watermark, a follower's with the log end.
_CONSUMER: Final = -1
_LATEST: Final = -1


class CoordinatedGroups(Protocol):
    """The groups that this broker coordinates; see `GroupCoordinator`."""

    def loaded_groups(self) -> Sequence[AnyGroup]:
        """Return the groups of the partitions that are loaded."""

    def committed(self, group_id: str) -> GroupOffsets:
        """Return the committed offsets of a group; KafkaError if another broker coordinates it."""


class GroupEnds:
    """The end offsets of partitions that other brokers lead, and of which groups of this broker have offsets.

    In each round every such leader receives one request, or one after another for many partitions; leaders do not wait
    for each other. A round begins after the end of the one before, so answers are never out of order.
    """

    def __init__(
        self, broker_id: int, send: SendToBroker, groups: CoordinatedGroups, metadata: MetadataCache, clock: Clock
    ) -> None:
        self._broker_id = broker_id
        self._send = send
        self._groups = groups
        self._metadata = metadata
        self._clock = clock
        self._ends = RemoteEndOffsets()
        #: Leaders whose refusal is logged.
        self._refused_by: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the first round."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """End the round under way; the last answers remain."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def end_offset(self, topic_partition: TopicPartition, topic_id: UUID) -> int | None:
        """Return a partition's high watermark as of its leader's last answer; None without a recent one."""
        return self._ends.end_offset(topic_partition, topic_id, self._clock.monotonic_ms())

    async def request(self) -> None:
        """Run one round, and wait for its answers; failures leave the last answers as they are."""
        questions = await self._questions()
        async with asyncio.TaskGroup() as tasks:
            for leader_id in questions.leaders():
                tasks.create_task(self._request_of(leader_id, questions))
        self._ends.expire(self._clock.monotonic_ms())

    async def _run(self) -> None:
        while True:
            begun_ms = self._clock.monotonic_ms()
            try:
                await self.request()
            except Exception:
                logger.exception("requesting the ends of partitions for the lag of groups failed")
            passed_s = (self._clock.monotonic_ms() - begun_ms) / 1000
            await asyncio.sleep(max(0.0, INTERVAL_S - passed_s))

    async def _questions(self) -> EndQuestions:
        """Gather the partitions of all groups, in turns: there may be many thousands."""
        questions = EndQuestions(self._broker_id, self._metadata.image)
        turns = Turns()
        for group in self._groups.loaded_groups():  # the next round has those that are being loaded
            await turns.step()
            try:
                offsets = self._groups.committed(group.group_id)
            except KafkaError:
                continue  # another broker's by now
            for topic_partition in offsets:
                questions.add(topic_partition)
                await turns.step()
        return questions

    async def _request_of(self, leader_id: int, questions: EndQuestions) -> None:
        """Request the ends of a leader's partitions; after a failure the others wait for the next round."""
        for batch in questions.batches(leader_id):
            wanted: dict[tuple[str, int], tuple[int, int]] = {
                each.topic_partition: (each.leader_epoch, _LATEST) for each in batch
            }
            request = list_offsets_request(_CONSUMER, wanted, timeout_ms=TIMEOUT_MS)
            try:
                answers = await self._send(leader_id, request, TIMEOUT_MS)
            except ClientError as error:
                logger.debug("no end offsets of %d partitions from broker %d: %s", len(batch), leader_id, error)
                return
            # The topics and leaders may have changed while the request was under way.
            self._ends.answered(batch, answers, self._metadata.image, self._clock.monotonic_ms())
            self._log_refusals(leader_id, batch, answers)

    def _log_refusals(
        self, leader_id: int, batch: Sequence[EndQuestion], answers: Mapping[TopicPartition, ListedOffset]
    ) -> None:
        """Log once that a leader refuses this broker: unlike other errors this one is not transient."""
        refused = [
            each.topic_partition
            for each in batch
            if each.topic_partition in answers
            and answers[each.topic_partition].error_code == ErrorCode.topic_authorization_failed
        ]
        if refused and leader_id not in self._refused_by:
            self._refused_by.add(leader_id)
            logger.warning(
                "broker %d refuses the end offsets of %d partitions, among them %s: this broker's principal lacks "
                "Describe on the topics, so the metrics lack the lag of groups there; add the principal to super.users",
                leader_id,
                len(refused),
                refused[0],
            )
