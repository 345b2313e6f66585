"""Idempotent producers: with acks=all nothing of theirs is lost, with acks=1 nothing is doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import ProducedPartition, produce_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from tests.simulation.clients import Brokers, Worker
from tests.simulation.history import History, InvariantError
from tests.simulation.node import START_MS

_PRODUCE, _INIT_PRODUCER_ID = 12, 4
#: Errors of a broker that no longer knows what a producer has written.
FORGOTTEN = {ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id}
ACKS_ALL = -1
#: Batches of a partition in flight. A log that has records takes any sequence of a producer that it does not know: its
#: first batch goes alone. Java's goes with others, and if the leader changes meanwhile, it may be refused for ever.
IN_FLIGHT = (1, 1, 2, 3)


class Producer(Worker):
    """An idempotent producer: up to three batches in flight, each repeated until it is acknowledged.

    With `acks` of 1 a leader that dies takes records with it: the producer begins anew when a broker has forgotten it.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        numbers: Iterator[int],
        *,
        acks: int = ACKS_ALL,
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._numbers = numbers
        self._acks = acks
        self._producer_id = -1
        self._epoch = -1
        self._next_sequence: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Produce until `is_ending`."""
        while not self.is_ending:
            if self._producer_id < 0:
                await self._begin()
            await self.produce(self.chance.choice(self._partitions))
            await self.think()

    def restart(self) -> None:
        """Take another producer id before the next batch."""
        self._producer_id = -1

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

    async def produce(self, key: TopicPartition) -> None:
        """Produce some batches, and note that they were acknowledged."""
        if self._producer_id < 0:
            await self._begin()
        sequence = self._next_sequence.get(key, 0)
        in_flight = self.chance.choice(IN_FLIGHT) if sequence and self._acks == ACKS_ALL else 1
        earlier: asyncio.Task[None] | None = None
        batches = []
        for _ in range(in_flight):
            values = [b"%d" % next(self._numbers) for _ in range(self.chance.randint(1, 4))]
            earlier = asyncio.ensure_future(self._send(key, values, sequence, earlier))
            batches.append(earlier)
            sequence += len(values)
        try:
            await asyncio.gather(*batches)
        finally:
            for batch in batches:
                batch.cancel()

    async def _send(
        self, key: TopicPartition, values: list[bytes], sequence: int, earlier: asyncio.Task[None] | None
    ) -> None:
        batch = self._batch(values, sequence)
        losses = self.history.losses
        is_ahead = False

        def request() -> Request[list[ProducedPartition]]:
            # By the time of the answer the earlier batch may have come.
            nonlocal is_ahead
            is_ahead = earlier is not None and not earlier.done()
            return self._request(key, batch)

        def code_of(answer: list[ProducedPartition]) -> int:
            code = answer[0].error_code
            is_early = code == ErrorCode.out_of_order_sequence_number and is_ahead
            return int(ErrorCode.not_leader_or_follower) if is_early else code

        [produced] = await self.until_answered(request, code_of, "produce", key)
        code = produced.error_code
        if code in FORGOTTEN and (self._acks != ACKS_ALL or self.history.has_lost):
            self.restart()  # what became of the batch is unknown: it is not sent again
        elif code:
            raise InvariantError(f"{self.name}: {key} refused sequence {sequence}: {ErrorCode(code).name}")
        else:
            self._next_sequence[key] = max(self._next_sequence.get(key, 0), sequence + len(values))
            if self._acks == ACKS_ALL and (losses == self.history.losses or not self.history.may_lose):
                self.history.acknowledge(key, produced.base_offset, values)

    def _batch(self, values: list[bytes], sequence: int) -> bytes:
        now_ms = START_MS + int(self._loop.time() * 1000)
        return build_batch(
            [Record(b"k%d" % (int(value) % 7), value + b" " * self.chance.randint(0, 200), now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
        )

    def _request(self, key: TopicPartition, batch: bytes) -> Request[list[ProducedPartition]]:
        request = produce_request(_PRODUCE, {key.topic: [(key.partition, batch)]}, timeout_ms=2_000)
        # The body begins with the absent transactional id, in one byte, and the acks.
        body = request.body[:1] + self._acks.to_bytes(2, "big", signed=True) + request.body[3:]
        return replace(request, body=body)
