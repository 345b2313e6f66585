"""Members of a consumer group (KIP-848): the coordinator assigns the partitions, heartbeat by heartbeat."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headwater.logtier.client.messages import kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRIABLE, RETRY_S, Brokers, Worker
from tests.simulation.history import History, InvariantError

CONSUMER_GROUP = "modern"
SESSION_TIMEOUT_MS = 6_000
_REBALANCE = timedelta(seconds=5)
#: A broker's clocks run up to a hundredth faster than the time.
_SESSION_S = SESSION_TIMEOUT_MS / 1000 * 0.98
_REBALANCE_S = _REBALANCE.total_seconds() * 0.98
_HEARTBEAT_S = 0.4
_HEARTBEAT_KEY, _HEARTBEAT = 68, 1
_FENCED = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}

#: Configs of brokers for these members: Kafka's limits are longer than a run.
MEMBER_CONFIGS = {
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
}


@dataclass(slots=True)
class Ownership:
    """Who has which partition of a group, and until when the coordinator may not give it to another member."""

    owners: dict[TopicPartition, str] = field(default_factory=dict)
    #: When each member sent the last heartbeat that its coordinator answered.
    confirmed_s: dict[str, float] = field(default_factory=dict)
    #: When it sent the last one by which it had nothing to give up. The coordinator waits for what it takes from a
    #: member later, and excludes the member after the rebalance timeout.
    at_rest_s: dict[str, float] = field(default_factory=dict)

    def take(self, key: TopicPartition, member: str, now_s: float) -> None:
        """A member was given a partition: no other member has it whose session may go on."""
        owner = self.owners.get(key)
        if owner not in (None, member) and now_s < self._kept_until_s(owner or ""):
            raise InvariantError(f"group {CONSUMER_GROUP}: {key} is given to {member}, and {owner} has it")
        self.owners[key] = member

    def _kept_until_s(self, owner: str) -> float:
        return min(
            self.confirmed_s.get(owner, -_SESSION_S) + _SESSION_S,
            self.at_rest_s.get(owner, -_REBALANCE_S) + _REBALANCE_S,
        )

    def release(self, key: TopicPartition, member: str) -> None:
        """A member has stopped to use a partition."""
        if self.owners.get(key) == member:
            del self.owners[key]


class ConsumerMember(Worker):
    """One member, which reports the partitions that it has, and gives up those that are taken from it.

    Args:
        coordinates: Whether a host coordinates a group in truth: one that is deposed and does not know it answers
            heartbeats, and promises nothing by that.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        ownership: Ownership,
        coordinates: Callable[[str, str], bool],
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._ownership = ownership
        self._coordinates = coordinates
        self._coordinator: str | None = None
        self._member_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        self._epoch = 0
        self._topic = partitions[0].topic
        self._topic_id: uuid.UUID | None = None
        self._owned: set[TopicPartition] = set()

    @property
    def is_settled(self) -> bool:
        """Whether it is a member with partitions."""
        return self._epoch > 0 and bool(self._owned)

    async def run(self) -> None:
        """Be a member until `is_ending`, and leave by silence."""
        self._topic_id = await self.topic_id(self._topic)
        while not self.is_ending:
            try:
                await self._heartbeat()
            except ConnectionError as error:
                self.note("lost", "consumer member", type(error).__name__)
                self._coordinator = None
                await asyncio.sleep(self.chance.uniform(*RETRY_S))
            else:
                await asyncio.sleep(_HEARTBEAT_S)

    async def _heartbeat(self) -> None:
        if self._coordinator is None:
            self._coordinator = await self.coordinator(CONSUMER_GROUP)
        host = self._coordinator
        owned = sorted(each.partition for each in self._owned)
        values = {
            "group_id": CONSUMER_GROUP,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": _REBALANCE,
            "subscribed_topic_names": (self._topic,),
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": ({"topic_id": self._topic_id, "partitions": tuple(owned)},) if owned else (),
        }
        sent_s, losses = self._loop.time(), self.history.group_losses
        answer: Any = await self.ask(kio_request(_HEARTBEAT_KEY, _HEARTBEAT, values), host)
        code = int(answer.error_code)
        self.note("beat", code, int(answer.member_epoch))
        if losses != self.history.group_losses:
            self._fenced()
        elif code == ErrorCode.none:
            self._epoch = int(answer.member_epoch)
            assigned = self._owned if answer.assignment is None else self._assigned(answer.assignment)
            if self._coordinates(host, CONSUMER_GROUP):
                self._ownership.confirmed_s[self.name] = sent_s
                if self._owned <= assigned:
                    self._ownership.at_rest_s[self.name] = sent_s
            self._take(assigned)
        elif code in _FENCED or (code == ErrorCode.group_id_not_found and self.history.has_lost):
            self._fenced()
        elif code not in RETRIABLE:
            raise InvariantError(f"{self.name}: its heartbeat was refused: {ErrorCode(code).name}")
        elif code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            self._coordinator = None

    def _assigned(self, assignment: Any) -> set[TopicPartition]:
        return {
            TopicPartition(self._topic, int(index)) for each in assignment.topic_partitions for index in each.partitions
        }

    def _take(self, assigned: set[TopicPartition]) -> None:
        for key in self._owned - assigned:
            self._ownership.release(key, self.name)
        for key in sorted(assigned - self._owned):
            self._ownership.take(key, self.name, self._loop.time())
        self._owned = assigned
        self.note("owns", sorted(assigned))

    def _fenced(self) -> None:
        for key in self._owned:
            self._ownership.release(key, self.name)
        self._owned = set()
        self._epoch = 0
