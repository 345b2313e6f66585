"""Checks that this broker is still the leader of a partition, before it answers from memory what the partition has.

A leader that was deposed may not know it yet: cut off from ZooKeeper alone, it serves on. What it writes is refused, as
its followers have another leader. What it answers from memory could be older than what another leader has acknowledged:
offsets of a group that are read once more, and moved once more. So the replicas that may have been elected are asked
first, after the request has come, whether they know a newer leader epoch (a read index, section 6.4 of Ongaro's thesis
on Raft). While one of them is away, ZooKeeper tells as well.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Set
from typing import Final, Generic, NamedTuple, TypeVar

from headwater.logtier.client.errors import ClientError
from headwater.logtier.cluster.request_batches import RequestBatches
from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import MetadataStore, MetadataStoreError
from headwater.logtier.metadata.topic_nodes import CHUNK_PARTITIONS, PartitionImage, chunk_path, decode_chunk
from headwater.logtier.peers.leader_requests import offset_for_leader_epoch_request
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

log = logging.getLogger(__name__)

LIMIT_S: Final = 3.0
"""Time limit of a check: heartbeats wait behind it on the connection, and members have 6 s for them at least."""

REQUEST_MS: Final = 2_000
RETRY_S: Final = 0.1

#: A replica that knows the same leader, or an older one. Others do not tell: they may have been moved away since.
_KNOWS_NO_NEWER: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch})

#: In the place of a broker: the metadata store.
_STORE: Final = -1

_Item = TypeVar("_Item", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Question(NamedTuple):
    topic_partition: TopicPartition
    leader_epoch: int


class _SharedQuestions(Generic[_Item, _Answer]):
    """Questions to each broker, one request at a time; who asks before a question is sent shares its answer."""

    def __init__(self, batches: RequestBatches[_Item, _Answer]) -> None:
        self._batches = batches
        self._unsent: dict[tuple[int, _Item], asyncio.Future[_Answer]] = {}

    def ask(self, broker_id: int, item: _Item) -> asyncio.Future[_Answer]:
        future = self._unsent.get((broker_id, item))
        if future is None or future.done():
            future = self._unsent[broker_id, item] = self._batches.ask(broker_id, item)
        return future

    def sent(self, broker_id: int, items: list[_Item]) -> None:
        """Who asks from now on asks anew: an answer to a question of before proves nothing."""
        for item in items:
            self._unsent.pop((broker_id, item), None)


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
        store: MetadataStore,
        partition: Callable[[TopicPartition], Partition[Log]],
        image: Callable[[], MetadataImage],
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._store = store
        self._partition = partition
        self._image = image
        self._tasks = SpawnedTasks("checks of leaderships")
        self._replicas: _SharedQuestions[_Question, ErrorCode] = _SharedQuestions(
            RequestBatches(self._ask, lambda each: each.topic_partition, lambda each: each.leader_epoch, self._tasks)
        )
        self._states: _SharedQuestions[TopicPartition, PartitionImage | None] = _SharedQuestions(
            RequestBatches(self._read, lambda each: each, lambda each: each, self._tasks)
        )

    async def aclose(self) -> None:
        """End the requests under way. Those who wait for them are cancelled: the listeners have been closed before."""
        await self._tasks.cancel()

    async def check(self, topic_partition: TopicPartition) -> None:
        """Return once no other replica can have been elected cleanly when this was called.

        Every replica that a newer leader could be elected from answers that it knows no newer leader epoch, or the
        metadata store has the epoch of this leader. A replica that does not answer is asked again, until it is in the
        ISR no longer.

        Raises:
            KafkaError: not_leader_or_follower, request_timed_out, or the error of a replica that cannot be used.
        """
        question = _Question(topic_partition, self._partition(topic_partition).leader_epoch)
        confirmed: set[int] = set()
        asked: dict[int, asyncio.Future[ErrorCode]] = {}
        stored: asyncio.Future[PartitionImage | None] | None = None
        try:
            async with asyncio.timeout(LIMIT_S):
                while missing := self._candidates(question) - confirmed:
                    for each in missing - asked.keys():
                        asked[each] = self._replicas.ask(each, question)
                    await asyncio.wait([asked[each] for each in missing], timeout=RETRY_S)
                    for each in [each for each in missing if asked[each].done()]:
                        if self._knows_no_newer(each, question, _result(asked.pop(each))):
                            confirmed.add(each)
                    if not missing <= confirmed:
                        if stored is None:
                            stored = self._states.ask(_STORE, topic_partition)
                        await asyncio.wait([stored], timeout=RETRY_S)
                        if stored.done():
                            if self._is_stored(question, _result(stored)):
                                return
                            stored = None
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out, f"other replicas of {topic_partition} have not confirmed its leader"
            ) from None

    def _candidates(self, question: _Question) -> Set[int]:
        """The other replicas of which one may be elected: of the maximal ISR, and eligible leaders (KIP-966)."""
        topic, index = question.topic_partition
        partition = self._partition(question.topic_partition)
        partition.check_leader(question.leader_epoch)
        known = self._image().topic(topic)
        eligible = () if known is None else known.partitions[index].elr
        return partition.maximal_isr.union(eligible) - {self._broker_id}

    def _knows_no_newer(self, broker_id: int, question: _Question, code: ErrorCode | None) -> bool:
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
        self._replicas.sent(broker_id, questions)
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

    # -- the metadata store

    def _is_stored(self, question: _Question, state: PartitionImage | None) -> bool:
        """Whether the store has this leader in this epoch.

        Raises:
            KafkaError: not_leader_or_follower: another leader was elected.
        """
        if state is None:
            return False
        if (state.leader, state.leader_epoch) != (self._broker_id, question.leader_epoch):
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"{question.topic_partition} is led by broker {state.leader}"
            )
        return True

    async def _read(self, _: int, wanted: list[TopicPartition]) -> list[PartitionImage | None]:
        """Read the states as they are now, not as this server of the store has them; MetadataStoreError."""
        self._states.sent(_STORE, wanted)
        await self._store.sync()
        paths = [chunk_path(topic, index // CHUNK_PARTITIONS) for topic, index in wanted]
        found: list[PartitionImage | None] = []
        for key, path, node in zip(wanted, paths, await self._store.get_many(paths), strict=True):
            states = () if node is None else decode_chunk(path, node.data)
            place = key.partition % CHUNK_PARTITIONS
            found.append(states[place] if place < len(states) else None)
        return found


def _result(answer: asyncio.Future[_Answer]) -> _Answer | None:
    """Return an answer that is there; None for an error.

    Raises:
        KafkaError: not_leader_or_follower: the broker stops.
    """
    if answer.cancelled():
        raise KafkaError(ErrorCode.not_leader_or_follower, "this broker stops")
    error = answer.exception()
    if error is None:
        return answer.result()
    if not isinstance(error, MetadataStoreError):
        log.warning("a leadership is not confirmed: %s", error)
    return None
