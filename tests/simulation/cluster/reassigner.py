"""Reassigns partitions among faults: at random, those of the brokers' own topics too; cancels and throttles, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.replicas import BROKER_RESOURCE, TOPIC_RESOURCE
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRIABLE, Brokers, Client
from tests.simulation.history import History, InvariantError

#: Pause between two requests, in seconds.
PAUSE_S = (0.2, 3.0)
CANCEL_RATIO, THROTTLE_RATIO = 0.25, 0.25
#: Time to remove the throttles after the last fault: all brokers are there again.
CLEARING_S = 60.0
#: Rates of throttles in bytes per second: a log of a run has up to 100 kB.
RATES = (1_000, 20_000)
_VERSION, _CONFIGS_VERSION = 1, 1
#: Operations of IncrementalAlterConfigs.
_SET, _DELETE = 0, 1
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
        self._is_throttled = False
        self.is_ending = False

    async def run(self) -> None:
        """Ask for one change after the other; one whose answer was lost may have taken effect."""
        while not self.is_ending:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            if self.chance.random() < THROTTLE_RATIO:
                await self._throttle(None if self._is_throttled else self.chance.choice(RATES))
            key = self.chance.choice(self._partitions)
            replicas = None
            if self.chance.random() >= CANCEL_RATIO:
                replicas = tuple(self.chance.sample(self._broker_ids, self.chance.randint(*self._factors)))
            try:
                await self._alter(key, replicas)
            except ConnectionError as error:
                self.note("lost", "reassign", type(error).__name__)
        try:
            async with asyncio.timeout(CLEARING_S):
                while self._is_throttled:
                    await self._throttle(None)
                    await asyncio.sleep(PAUSE_S[0])
        except TimeoutError:
            raise InvariantError("after the last fault the throttles cannot be removed") from None

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

    async def _throttle(self, rate: int | None) -> None:
        """Throttle replicas (KIP-73) on both sides, or none with `rate` of None; an attempt may change a part of it."""
        throttled = None if rate is None else "*"
        topics = sorted({key.topic for key in self._partitions})
        done = [
            await self._configure(
                None, [_resource(TOPIC_RESOURCE, each, "replication.throttled.replicas", throttled) for each in topics]
            )
        ]
        for broker_id in self._broker_ids:  # each broker checks and takes its own configs
            value = None if rate is None else str(rate)
            config = _resource(BROKER_RESOURCE, str(broker_id), "replication.throttled.rate", value)
            done.append(await self._configure(f"broker-{broker_id}", [config]))
        self._is_throttled = rate is not None or not all(done)

    async def _configure(self, host: str | None, resources: Sequence[dict[str, Any]]) -> bool:
        """Change configs, and return whether all have changed."""
        values = {"resources": tuple(resources), "validate_only": False}
        try:
            answer: Any = await self.ask(kio_request(ApiKey.INCREMENTAL_ALTER_CONFIGS, _CONFIGS_VERSION, values), host)
        except ConnectionError as error:
            self.note("lost", "throttle", type(error).__name__)
            return False
        codes = {int(each.error_code) for each in answer.responses}
        self.note("throttle", host, sorted(codes))
        if not codes <= {*_EXPECTED, ErrorCode.invalid_request}:  # a broker that is not registered has no configs
            raise InvariantError(f"a throttle was answered {[ErrorCode(code).name for code in codes]}")
        # A topic that is not there has no throttle.
        return codes <= {ErrorCode.none, ErrorCode.unknown_topic_or_partition}


def _resource(kind: int, name: str, suffix: str, value: str | None) -> dict[str, Any]:
    operation = _SET if value is not None else _DELETE
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": tuple(
            {"name": f"{side}.{suffix}", "config_operation": operation, "value": value}
            for side in ("leader", "follower")
        ),
    }
