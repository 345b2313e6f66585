"""Delete topics and create them again, among faults: nothing of the old one stays, and nothing else goes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import decode_records, iterate_batches
from tests.simulation.clients import GROUP_KEY, RETRIABLE, RETRY_S, Brokers, create_topic, delete_topic
from tests.simulation.coordinated_worker import CoordinatedWorker
from tests.simulation.group_offsets import offset_commit, offset_fetch, retried_if_unstable
from tests.simulation.history import Entry, History, InvariantError
from tests.simulation.producers import Producer

TOPIC = "fleeting"
#: Topic of transactions, and of offsets of groups, that is deleted in their middle.
TRANSIENT_TOPIC = "transient"
_FETCH = 12


class TopicRemaker(Producer):
    """Creates its topic, produces a few batches, reads them back, and deletes it; again and again.

    Invariant: at the end of its run the topic is deleted.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        numbers: Iterator[int],
        replication_factor: int,
    ) -> None:
        super().__init__(name, brokers, history, chance, [TopicPartition(TOPIC, 0)], numbers)
        self._replication_factor = replication_factor
        self._topic_id: UUID | None = None

    async def leader(self, key: TopicPartition) -> str:
        """The leader of the present topic: one that is cut off may lead the former one, and take records by its name.

        So may Kafka's, from all clients that name a topic by its name (Produce before version 13).
        """
        host = await super().leader(key)
        if self._newest[key][0] != self._topic_id:
            self.forget_leaders()
            raise ConnectionRefusedError(f"{key} is known as an earlier topic's")
        return host

    async def run(self) -> None:
        """Make the topic anew until `is_ending`."""
        [key] = self._partitions
        deleted: set[UUID] = set()
        while not self.is_ending:
            await create_topic(self, TOPIC, 1, {}, self._replication_factor)
            topic_id = self._topic_id = await self.topic_id(TOPIC, deleted)
            self.forget_leaders()
            self.restart()
            losses = self.history.losses
            for _ in range(self.chance.randint(1, 5)):
                await self.produce(key)
            await self._read_back(key, losses)
            self.history.forget_topic(TOPIC)
            await delete_topic(self, topic_id)
            deleted.add(topic_id)
            self.forget_leaders()
            await asyncio.sleep(self.chance.uniform(0, 2))

    async def _read_back(self, key: TopicPartition, losses: int) -> None:
        """Read until every acknowledged record was seen: the log begins with them, and has no others."""
        known = self.history.acknowledged.get(key, {})
        while losses == self.history.losses and len(seen := self.history.seen.get(key, {})) < len(known):
            try:
                await self._read(key, known, max(seen, default=-1) + 1, losses)
            except ConnectionError:
                self.forget_leaders()
            await asyncio.sleep(self.chance.uniform(*RETRY_S))
        self.note("reread", len(known))

    async def _read(self, key: TopicPartition, known: dict[int, bytes], offset: int, losses: int) -> None:
        request = fetch_request(
            _FETCH, [FetchPosition(*key, offset, 10_000)], wait_ms=100, bytes_min=1, bytes_max=10_000
        )
        [fetched] = await self.ask(request, await self.leader(key))
        if losses != self.history.losses:
            return
        if fetched.error_code:
            self.note("reading", fetched.error_code)
            self.forget_leaders()
            if fetched.error_code == ErrorCode.offset_out_of_range:
                raise InvariantError(f"{self.name}: {key} does not have offset {offset}, of {len(known)} records")
            return
        for header, batch in iterate_batches(fetched.records):
            for record in decode_records(batch):
                assert record.value is not None
                if known.get(record.offset) != record.value.rstrip():
                    raise InvariantError(
                        f"{self.name}: {key} has {record.value!r} at offset {record.offset}, "
                        f"acknowledged was {known.get(record.offset)!r}"
                    )
                self.history.see(key, record.offset, Entry(header.partition_leader_epoch, record.value.rstrip()))


class TopicRemover(CoordinatedWorker):
    """Creates a topic for others to write to, commits an offset of it, reads the offset back, and deletes the topic.

    Invariants: the offset stays as long as the topic, although the one of an earlier topic of the name is forgotten,
    and although brokers have older metadata; at the end of its run the topic is deleted.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        replication_factor: int,
    ) -> None:
        super().__init__(name, brokers, history, chance, [TopicPartition(TRANSIENT_TOPIC, 0)])
        self._replication_factor = replication_factor

    async def run(self) -> None:
        """Make the topic anew until `is_ending`."""
        deleted: set[UUID] = set()
        while not self.is_ending:
            await create_topic(self, TRANSIENT_TOPIC, 1, {}, self._replication_factor)
            topic_id = await self.topic_id(TRANSIENT_TOPIC, deleted)
            losses = self.history.group_losses
            offset = len(deleted)
            await self._commit(offset, topic_id)
            await asyncio.sleep(self.chance.uniform(0, 3))
            await self._check(offset, losses)
            await delete_topic(self, topic_id)
            deleted.add(topic_id)
            await asyncio.sleep(self.chance.uniform(0, 1))

    async def _commit(self, offset: int, topic_id: UUID) -> None:
        """Commit at a coordinator that knows the topic: another one takes the offset for the earlier one's."""
        [key] = self._partitions
        while True:
            try:
                host = await self.coordinator(self.name)
                metadata: Any = await self.ask(self._metadata_request([TRANSIENT_TOPIC]), host)
                if metadata.topics[0].topic_id == topic_id:
                    answer: Any = await self.ask(offset_commit(self.name, key, offset), host)
                    code = int(answer.topics[0].partitions[0].error_code)
                    self.note("commit", TRANSIENT_TOPIC, offset, code)
                    if code == ErrorCode.none:
                        return
                    if code not in RETRIABLE:
                        raise InvariantError(f"{self.name}: the commit was refused: {ErrorCode(code).name}")
            except ConnectionError as error:
                self.note("lost", "transient commit", type(error).__name__)
            await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def _check(self, offset: int, losses: int) -> None:
        answer: Any = await self._ask(
            GROUP_KEY,
            lambda: offset_fetch(self.name, self._partitions),
            lambda answer: retried_if_unstable(answer.error_code or answer.topics[0].partitions[0].error_code),
            "transient offsets",
        )
        if losses != self.history.group_losses:
            return
        found = int(answer.topics[0].partitions[0].committed_offset)
        if found != offset:
            raise InvariantError(f"{self.name}: the group has offset {found} of its topic, committed was {offset}")
