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
from tests.simulation.clients import RETRY_S, Brokers
from tests.simulation.group_members import GroupMember
from tests.simulation.history import History, InvariantError
from tests.simulation.members import COMMIT_RATIO

CONSUMER_GROUP = "modern"
SESSION_TIMEOUT_MS = 6_000
_REBALANCE = timedelta(seconds=5)
#: A broker's clocks run up to a hundredth faster than the time.
_SESSION_S = SESSION_TIMEOUT_MS / 1000 * 0.98
_REBALANCE_S = _REBALANCE.total_seconds() * 0.98
_HEARTBEAT_S = 0.4
_HEARTBEAT_KEY, _HEARTBEAT, _OFFSET_COMMIT = 68, 1, 9
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


class ConsumerMember(GroupMember):
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
        super().__init__(
            name,
            brokers,
            history,
            chance,
            partitions,
            group=CONSUMER_GROUP,
            commit_version=_OFFSET_COMMIT,
            coordinates=coordinates,
        )
        self._ownership = ownership
        self._member_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        self._epoch = 0
        self._topic = partitions[0].topic
        self._topic_id: uuid.UUID | None = None

    async def run(self) -> None:
        """Be a member until `is_ending`, and leave by silence."""
        self._topic_id = await self.topic_id(self._topic)
        while not self.is_ending:
            try:
                await self._heartbeat()
                if self._epoch > 0 and self.chance.random() < COMMIT_RATIO:
                    self._committed(await self._commit(self._epoch, self._member_id))
            except ConnectionError as error:
                self.note("lost", "consumer member", type(error).__name__)
                self._forget_coordinator()
                await asyncio.sleep(self.chance.uniform(*RETRY_S))
            else:
                await asyncio.sleep(_HEARTBEAT_S)

    def _committed(self, code: int) -> None:
        """Process the error code of a commit."""
        if code in _FENCED or (code == ErrorCode.group_id_not_found and self.history.has_lost):
            self._fenced()
        elif code not in (ErrorCode.none, ErrorCode.stale_member_epoch):  # the next heartbeat tells the epoch
            self._check_retriable("commit", code)

    async def _heartbeat(self) -> None:
        host = await self._host()
        owned = sorted(each.partition for each in self.owned)
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
            assigned = self.owned if answer.assignment is None else self._assigned(answer.assignment)
            self._confirm(host)
            if self._is_confirmed:
                self._ownership.confirmed_s[self.name] = sent_s
                if self.owned <= assigned:
                    self._ownership.at_rest_s[self.name] = sent_s
            self._take(assigned)
        elif code in _FENCED or (code == ErrorCode.group_id_not_found and self.history.has_lost):
            self._fenced()
        else:
            self._check_retriable("heartbeat", code)

    def _assigned(self, assignment: Any) -> set[TopicPartition]:
        return {
            TopicPartition(self._topic, int(index)) for each in assignment.topic_partitions for index in each.partitions
        }

    def _take(self, assigned: set[TopicPartition]) -> None:
        for key in self.owned - assigned:
            self._ownership.release(key, self.name)
        for key in sorted(assigned - self.owned):
            self._ownership.take(key, self.name, self._loop.time())
        self._own(assigned)
        self.note("owns", sorted(assigned))

    def _fenced(self) -> None:
        for key in self.owned:
            self._ownership.release(key, self.name)
        self._own(set())
        self.doubt()
        self._epoch = 0
