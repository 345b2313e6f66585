"""Checks that this broker is still the leader of a partition, before it answers from memory what the partition has.

A leader that was deposed may not know it yet: cut off from ZooKeeper alone, it serves on. What it writes is refused, as
its followers have another leader. What it answers from memory could be older than what another leader has acknowledged:
offsets of a group that are read once more, and moved once more. So the replicas that may have been elected are asked
first, after the request has come, whether they know a newer leader epoch (a read index, section 6.4 of Ongaro's thesis
on Raft). Pure of state: nothing is remembered from one check to the next.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from headwater.logtier.client.errors import ClientError
from headwater.logtier.cluster.request_batches import RequestBatches
from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.peers.leader_requests import offset_for_leader_epoch_request
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

log = logging.getLogger(__name__)

LIMIT_S: Final = 5.0
"""Time limit of a check: a replica that is away leaves the ISR within a session, as a commit waits for, too."""

REQUEST_MS: Final = 2_000
RETRY_S: Final = 0.1

#: A replica that knows the same leader, or an older one. Others do not tell: they may have been moved away since.
_KNOWS_NO_NEWER: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch})


class _Question(NamedTuple):
    topic_partition: TopicPartition
    leader_epoch: int


class LeadershipChecks:
    """Asks other brokers, in one request at a time to each of them; on one event loop.

    Args:
        partition: Returns a replica of this broker; KafkaError if it has none that can be used.
        image: Returns the newest metadata.
    """

    def __init__(
        self,
        broker_id: int,
        peers: Peers,
        partition: Callable[[TopicPartition], Partition[Log]],
        image: Callable[[], MetadataImage],
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._partition = partition
        self._image = image
        self._tasks = SpawnedTasks("checks of leaderships")
        self._batches: RequestBatches[_Question, ErrorCode] = RequestBatches(
            self._ask, lambda each: each.topic_partition, lambda each: each.leader_epoch, self._tasks
        )

    async def aclose(self) -> None:
        """End the requests under way; those who wait for them are cancelled."""
        await self._tasks.cancel()

    async def check(self, topic_partition: TopicPartition) -> None:
        """Return once no other replica can have led the partition when this was called.

        Every replica that a newer leader could be elected from answers that it knows no newer leader epoch. One that
        does not answer is asked again, until it is in the ISR no longer.

        Raises:
            KafkaError: not_leader_or_follower, request_timed_out, or the error of a replica that cannot be used.
        """
        leader_epoch = self._partition(topic_partition).leader_epoch
        question = _Question(topic_partition, leader_epoch)
        asked: set[int] = set()
        try:
            async with asyncio.timeout(LIMIT_S):
                while missing := self._candidates(topic_partition, leader_epoch) - asked:
                    answers = [self._batches.ask(each, question) for each in missing]
                    await asyncio.wait(answers)
                    for each, answer in zip(missing, answers, strict=True):
                        if answer.exception() is None and self._knows_no_newer(each, question, answer.result()):
                            asked.add(each)
                    if not missing <= asked:
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out, f"other replicas of {topic_partition} have not confirmed its leader"
            ) from None

    def _candidates(self, topic_partition: TopicPartition, leader_epoch: int) -> Set[int]:
        """The other replicas of which one may be elected: of the maximal ISR, and eligible leaders (KIP-966)."""
        partition = self._partition(topic_partition)
        partition.check_leader(leader_epoch)
        topic = self._image().topic(topic_partition.topic)
        known = () if topic is None else topic.partitions[topic_partition.partition].elr
        return partition.maximal_isr.union(known) - {self._broker_id}

    def _knows_no_newer(self, broker_id: int, question: _Question, code: ErrorCode) -> bool:
        """Whether an answer confirms the leader.

        Raises:
            KafkaError: not_leader_or_follower: another leader was elected.
        """
        if code is ErrorCode.fenced_leader_epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"broker {broker_id} knows a newer leader of {question.topic_partition}",
            )
        return code in _KNOWS_NO_NEWER

    async def _ask(self, broker_id: int, questions: list[_Question]) -> list[ErrorCode]:
        request = offset_for_leader_epoch_request(
            self._broker_id, {each.topic_partition: (each.leader_epoch, each.leader_epoch) for each in questions}
        )
        try:
            ends = await self._peers.call(broker_id, Purpose.LEADERSHIPS, request, REQUEST_MS)
        except ClientError as error:
            log.debug("broker %d does not confirm leaders: %s", broker_id, error)
            return [ErrorCode.network_exception] * len(questions)
        unanswered = int(ErrorCode.unknown_server_error)
        codes = {key: end.error_code for key, end in ends.items()}
        return [ErrorCode(codes.get(each.topic_partition, unanswered)) for each in questions]
