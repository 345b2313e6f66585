"""Deletes a topic and creates it again, among faults: nothing of the old one is in the new one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from uuid import UUID

from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import decode_records, iterate_batches
from tests.simulation.clients import RETRY_S, Brokers, create_topic, delete_topic
from tests.simulation.history import Entry, History, InvariantError
from tests.simulation.producers import Producer

TOPIC = "fleeting"
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

    async def run(self) -> None:
        """Make the topic anew until `is_ending`."""
        [key] = self._partitions
        deleted: set[UUID] = set()
        while not self.is_ending:
            await create_topic(self, TOPIC, 1, {}, self._replication_factor)
            topic_id = await self.topic_id(TOPIC, deleted)
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
