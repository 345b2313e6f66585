"""Members of a classic group: they join, share the partitions, and commit within their generation."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRY_S, Brokers
from tests.simulation.group_members import GroupMember
from tests.simulation.group_offsets import OFFSET_COMMIT
from tests.simulation.history import History

GROUP = "shared"
_PROTOCOL = "all"
_JOIN, _SYNC, _HEARTBEAT = 7, 5, 4
_SESSION = timedelta(seconds=6)
#: Shorter than a client's patience with one request.
_REBALANCE = timedelta(seconds=2)
HEARTBEAT_S = 0.5
#: Ratio of heartbeats after which a member commits an offset.
COMMIT_RATIO = 0.5
#: Answers after which a member joins again.
_REJOIN = {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id}


class Member(GroupMember):
    """One member; its leader gives each partition to one member."""

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        coordinates: Callable[[str, str], bool] | None = None,
    ) -> None:
        super().__init__(
            name,
            brokers,
            history,
            chance,
            partitions,
            group=GROUP,
            commit_version=OFFSET_COMMIT,
            coordinates=coordinates,
        )
        self._member_id = ""
        self._generation = -1

    async def run(self) -> None:
        """Be a member until `is_ending`, and leave by silence."""
        while not self.is_ending:
            try:
                await (self._join() if self._generation < 0 else self._live())
            except ConnectionError as error:
                self.note("lost", "member", type(error).__name__)
                self._forget_coordinator()
                await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def _live(self) -> None:
        await asyncio.sleep(HEARTBEAT_S)
        await self._heartbeat()
        if self._generation >= 0 and self.chance.random() < COMMIT_RATIO:
            code = await self._commit(self._generation, self._member_id)
            if code:
                await self._refused("commit", code, "")

    async def _join(self) -> None:
        losses = self.history.group_losses
        values = {
            "group_id": GROUP,
            "session_timeout": _SESSION,
            "rebalance_timeout": _REBALANCE,
            "member_id": self._member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": ({"name": _PROTOCOL, "metadata": self.name.encode()},),
        }
        joined: Any = await self._ask_coordinator(kio_request(ApiKey.JOIN_GROUP, _JOIN, values))
        code = int(joined.error_code)
        if code:
            await self._refused("join", code, str(joined.member_id))
            return
        self._member_id = str(joined.member_id)
        generation = int(joined.generation_id)
        names = sorted(str(member.member_id) for member in joined.members)
        shares = tuple(
            {"member_id": name, "assignment": json.dumps(self._partitions[index :: len(names)]).encode()}
            for index, name in enumerate(names)
        )
        values = {
            "group_id": GROUP,
            "generation_id": generation,
            "member_id": self._member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": _PROTOCOL,
            "assignments": shares if joined.leader == self._member_id else (),
        }
        synced: Any = await self._ask_coordinator(kio_request(ApiKey.SYNC_GROUP, _SYNC, values))
        if synced.error_code:
            await self._refused("sync", int(synced.error_code), "")
            return
        self._generation = generation
        mine = [TopicPartition(*each) for each in json.loads(synced.assignment)]
        self._next.clear()  # other members may have committed meanwhile
        self._own(set(mine))
        self.note("assigned", generation, mine)
        if losses == self.history.group_losses:
            self.history.assign(GROUP, generation, self._member_id, mine)

    async def _heartbeat(self) -> None:
        values = {
            "group_id": GROUP,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": None,
        }
        host = await self._host()
        answer: Any = await self.ask(kio_request(ApiKey.HEARTBEAT, _HEARTBEAT, values), host)
        if answer.error_code:
            await self._refused("heartbeat", int(answer.error_code), "")
        else:
            self._confirm(host)

    async def _refused(self, what: str, code: int, member_id: str) -> None:
        self.note("refused", what, code)
        if code == ErrorCode.member_id_required:
            self._member_id = member_id
        elif code in _REJOIN:
            self._generation = -1
            self._own(set())
            self.doubt()
            if code == ErrorCode.unknown_member_id:
                self._member_id = ""
        else:
            self._check_retriable(what, code)
        await asyncio.sleep(self.chance.uniform(*RETRY_S))
