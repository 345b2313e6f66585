"""Clients of a simulated broker: idempotent producers, and consumers that commit offsets."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import produce_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch, decode_records, iterate_batches
from tests.simulation.history import CommittedRange, Entry, History, InvariantError
from tests.simulation.node import PORT, START_MS, SimulatedNode
from tests.simulation.simulated_network import ClientConnection

Answer = TypeVar("Answer")

REQUEST_TIMEOUT_S = 3.0
RETRY_S = (0.02, 0.3)
#: Pause between two sends of a producer, and between two fetches of a consumer.
THINK_S = (0.0, 0.1)
_PRODUCE, _FETCH, _INIT_PRODUCER_ID, _OFFSET_COMMIT, _OFFSET_FETCH, _CREATE_TOPICS = 12, 12, 4, 8, 7, 7
_FIND_COORDINATOR = 3
#: Errors after which a request is repeated.
RETRIABLE = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
    ErrorCode.kafka_storage_error,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
}
#: Errors of a broker that no longer knows what a producer has written.
FORGOTTEN = {ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id}


class Client:
    """One client, with a connection that is made again whenever it is lost."""

    def __init__(self, name: str, node: SimulatedNode, history: History, chance: random.Random) -> None:
        self.name = name
        self.node = node
        self.history = history
        self.chance = chance
        self._connection: ClientConnection | None = None
        self._loop = asyncio.get_running_loop()

    async def ask(self, request: Request[Answer]) -> Answer:
        """Send a request; ConnectionError if its outcome is unknown, or if the broker is down."""
        connection = self._connection
        if connection is None or connection.is_lost:
            serving = self.node.serving
            if serving is None:
                raise ConnectionRefusedError
            connection = self._connection = await serving.network.connect(PORT, self.name)
        return await connection.request(request, REQUEST_TIMEOUT_S)

    async def until_answered(
        self, make: Callable[[], Request[Answer]], code_of: Callable[[Answer], int], what: str
    ) -> Answer:
        """Repeat a request until it is answered without a retriable error."""
        while True:
            try:
                answer = await self.ask(make())
            except ConnectionError as error:
                self.note("lost", what, type(error).__name__)
            else:
                code = code_of(answer)
                self.note(what, code)
                if code not in RETRIABLE:
                    return answer
            await asyncio.sleep(self.chance.uniform(*RETRY_S))

    def note(self, what: str, *details: object) -> None:
        self.history.note(self._loop.time(), what, self.name, *details)

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(*THINK_S))


async def create_topic(client: Client, name: str, partitions: int, configs: dict[str, str]) -> None:
    """Create a topic; one that exists is taken as it is."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": tuple({"name": key, "value": value} for key, value in configs.items()),
    }
    values = {"topics": (topic,), "timeout": timedelta(seconds=2), "validate_only": False}
    answer: Any = await client.until_answered(
        lambda: kio_request(ApiKey.CREATE_TOPICS, _CREATE_TOPICS, values),
        lambda answer: int(answer.topics[0].error_code),
        "create",
    )
    code = int(answer.topics[0].error_code)
    if code not in (ErrorCode.none, ErrorCode.topic_already_exists):
        raise InvariantError(f"topic {name} was not created: {ErrorCode(code).name}")


class Worker(Client):
    """A client that works on some partitions until `is_ending`."""

    def __init__(
        self,
        name: str,
        node: SimulatedNode,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
    ) -> None:
        super().__init__(name, node, history, chance)
        self._partitions = partitions
        self.is_ending = False


class Producer(Worker):
    """An idempotent producer: one batch in flight a partition, repeated until it is acknowledged."""

    def __init__(
        self,
        name: str,
        node: SimulatedNode,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        numbers: Iterator[int],
    ) -> None:
        super().__init__(name, node, history, chance, partitions)
        self._numbers = numbers
        self._producer_id = -1
        self._epoch = -1
        self._next_sequence: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Produce until `is_ending`."""
        while not self.is_ending:
            if self._producer_id < 0:
                await self._begin()
            await self._produce(self.chance.choice(self._partitions))
            await self.think()

    async def _begin(self) -> None:
        values = {
            "transactional_id": None,
            "transaction_timeout": timedelta(seconds=60),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer: Any = await self.until_answered(
            lambda: kio_request(ApiKey.INIT_PRODUCER_ID, _INIT_PRODUCER_ID, values),
            lambda answer: int(answer.error_code),
            "init",
        )
        if answer.error_code:
            raise InvariantError(f"InitProducerId failed: {answer.error_code}")
        self._producer_id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        self._next_sequence.clear()

    async def _produce(self, topic_partition: TopicPartition) -> None:
        values = [b"%d" % next(self._numbers) for _ in range(self.chance.randint(1, 4))]
        sequence = self._next_sequence.get(topic_partition, 0)
        now_ms = START_MS + int(self._loop.time() * 1000)
        batch = build_batch(
            [Record(b"k%d" % (int(value) % 7), value + b" " * self.chance.randint(0, 200), now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
        )
        topic, partition = topic_partition
        losses = self.history.losses
        answer = await self.until_answered(
            lambda: produce_request(_PRODUCE, {topic: [(partition, batch)]}, timeout_ms=2_000),
            lambda answer: answer[0].error_code,
            "produce",
        )
        [produced] = answer
        if produced.error_code in FORGOTTEN and self.history.may_lose and self.history.losses:
            self._producer_id = -1  # what became of the batch is unknown: it is not sent again
        elif produced.error_code:
            name = ErrorCode(produced.error_code).name
            raise InvariantError(f"{self.name}: {topic_partition} refused sequence {sequence}: {name}")
        else:
            self._next_sequence[topic_partition] = sequence + len(values)
            if losses == self.history.losses or not self.history.may_lose:
                self.history.acknowledge(topic_partition, produced.base_offset, values)


class Consumer(Worker):
    """Reads all partitions from their start, in order, and commits its offsets in its group."""

    def __init__(
        self,
        name: str,
        node: SimulatedNode,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
    ) -> None:
        super().__init__(name, node, history, chance, partitions)
        self._positions = dict.fromkeys(partitions, 0)
        self._losses = 0
        self._must_check_commits = False

    async def run(self) -> None:
        """Read until `is_ending`."""
        for turn in itertools.count():
            if self.is_ending:
                return
            try:
                if self._must_check_commits or turn % 17 == 0:
                    await self._check_commits()
                await self._fetch()
                if turn % 5 == 0:
                    await self._commit(self.chance.choice(self._partitions))
            except ConnectionError as error:
                self._must_check_commits = True
                self.note("lost", "consumer", type(error).__name__)
                await asyncio.sleep(self.chance.uniform(*RETRY_S))
            await self.think()

    async def read_to_end(self, ends: dict[TopicPartition, int]) -> None:
        """Read until the position in each partition is at least `ends`."""
        while any(self._positions[key] < end for key, end in ends.items()):
            try:
                await self._fetch()
            except ConnectionError:
                await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def _fetch(self) -> None:
        if self._losses != self.history.losses:
            # It may have read records that were not acknowledged yet, and are gone.
            self._losses = self.history.losses
            self._positions = dict.fromkeys(self._partitions, 0)
        positions = [
            FetchPosition(topic, partition, self._positions[TopicPartition(topic, partition)], 4_000)
            for topic, partition in self._partitions
        ]
        fetched = await self.ask(fetch_request(_FETCH, positions, wait_ms=200, bytes_min=1, bytes_max=10_000))
        if self._losses != self.history.losses:
            return
        for each in fetched:
            key = TopicPartition(each.topic, each.partition)
            self.note("fetch", key, each.error_code, len(each.records), each.high_watermark)
            if each.error_code == ErrorCode.none:
                self._take(key, each.records, each.high_watermark)
            elif each.error_code not in RETRIABLE:
                raise InvariantError(f"{self.name}: {key} at {self._positions[key]}: {ErrorCode(each.error_code).name}")

    def _take(self, key: TopicPartition, records: memoryview, high_watermark: int) -> None:
        for header, batch in iterate_batches(records):
            for record in decode_records(batch):
                expected = self._positions[key]
                if record.offset < expected:
                    continue  # the batch begins before the position
                if record.offset > expected:
                    raise InvariantError(f"{self.name}: {key} skips from offset {expected} to {record.offset}")
                if record.offset >= high_watermark:
                    raise InvariantError(f"{self.name}: {key} shows offset {record.offset} above the high watermark")
                assert record.value is not None
                self.history.see(key, record.offset, Entry(header.partition_leader_epoch, record.value.rstrip()))
                self._positions[key] = record.offset + 1

    async def _commit(self, key: TopicPartition) -> None:
        commits = self.history.commits.setdefault((self.name, key), CommittedRange())
        offset = max(self._positions[key], commits.attempted)
        commits.attempted = offset
        partition = {
            "partition_index": key.partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        values = {
            "group_id": self.name,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": ({"name": key.topic, "partitions": (partition,)},),
        }
        answer: Any = await self.ask(kio_request(ApiKey.OFFSET_COMMIT, _OFFSET_COMMIT, values))
        code = int(answer.topics[0].partitions[0].error_code)
        self.note("commit", key, offset, code)
        if code == ErrorCode.none:
            self.note("committed", key, offset)
            commits.acknowledged = max(commits.acknowledged, offset)
        elif code in (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator):
            await self._find_coordinator()
        elif code not in RETRIABLE:
            raise InvariantError(f"{self.name}: the commit of {key} was refused: {ErrorCode(code).name}")

    async def _find_coordinator(self) -> None:
        """Ask for the coordinator, which creates its topic."""
        values = {"key": self.name, "key_type": 0}
        answer: Any = await self.ask(kio_request(ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR, values))
        self.note("find", int(answer.error_code))

    async def _check_commits(self) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in self._partitions:
            topics.setdefault(topic, []).append(partition)
        values = {
            "group_id": self.name,
            "topics": tuple({"name": name, "partition_indexes": tuple(found)} for name, found in topics.items()),
            "require_stable": False,
        }
        known = {key: commits.acknowledged for key, commits in self.history.commits.items()}
        answer: Any = await self.ask(kio_request(ApiKey.OFFSET_FETCH, _OFFSET_FETCH, values))
        if answer.error_code:
            if int(answer.error_code) not in RETRIABLE:
                raise InvariantError(f"{self.name}: OffsetFetch failed: {answer.error_code}")
            return
        for topic in answer.topics:
            for each in topic.partitions:
                key = TopicPartition(str(topic.name), int(each.partition_index))
                if (self.name, key) in known and not each.error_code:
                    self.history.check_committed(self.name, key, int(each.committed_offset))
        self._must_check_commits = False
