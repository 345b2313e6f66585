"""Reassigns partitions among faults: at random, those of the brokers' own topics too, and cancels now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRIABLE, Brokers, Client
from tests.simulation.history import History, InvariantError

#: Pause between two requests, in seconds.
PAUSE_S = (0.2, 3.0)
CANCEL_RATIO = 0.25
_VERSION = 1
#: The answers that a request may get: a broker is unknown before its first registration, a partition before it is made.
_EXPECTED = {
    *RETRIABLE,
    ErrorCode.none,
    ErrorCode.no_reassignment_in_progress,
    ErrorCode.invalid_replica_assignment,
}


class Reassigner(Client):
    """Gives partitions other replicas until `is_ending`: at least `factor_min`, so that faults lose nothing."""

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: Sequence[TopicPartition],
        *,
        broker_ids: Sequence[int],
        factors: tuple[int, int],
    ) -> None:
        super().__init__(name, brokers, history, chance)
        self._partitions = partitions
        self._broker_ids = broker_ids
        self._factors = factors
        self.is_ending = False

    async def run(self) -> None:
        """Ask for one change after the other; one whose answer was lost may have taken effect."""
        while not self.is_ending:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            key = self.chance.choice(self._partitions)
            replicas = None
            if self.chance.random() >= CANCEL_RATIO:
                replicas = tuple(self.chance.sample(self._broker_ids, self.chance.randint(*self._factors)))
            try:
                await self._alter(key, replicas)
            except ConnectionError as error:
                self.note("lost", "reassign", type(error).__name__)

    async def _alter(self, key: TopicPartition, replicas: tuple[int, ...] | None) -> None:
        wanted = {"partition_index": key.partition, "replicas": replicas}
        values = {
            "topics": ({"name": key.topic, "partitions": (wanted,)},),
            "timeout": timedelta(seconds=2),
            "allow_replication_factor_change": True,
        }
        answer: Any = await self.ask(kio_request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, _VERSION, values))
        code = int(answer.error_code)
        if not code:
            [topic] = answer.responses
            [part] = topic.partitions
            code = int(part.error_code)
        self.note("cancel" if replicas is None else "reassign", key, replicas, code)
        if code not in _EXPECTED:
            raise InvariantError(f"the reassignment of {key} to {replicas} was answered {ErrorCode(code).name}")
