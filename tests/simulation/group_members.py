"""What members of both kinds of groups do alike: they find their coordinator, and commit offsets as members."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRIABLE, Brokers, Worker
from tests.simulation.group_offsets import offset_commit, offset_fetch
from tests.simulation.history import CommittedRange, History, InvariantError


class GroupMember(Worker):
    """A member of a group, and the partitions that it has.

    Invariant of its commits: offsets of the group never go back, whichever member commits them, since a member begins
    with what the group has, and a coordinator refuses the commits of former members.

    Args:
        group: The group, one for all members.
        commit_version: Of OffsetCommit: from 9 on it has the epoch of a member, before the generation.
        coordinates: Whether a host coordinates a group in truth: one that is deposed and does not know it answers
            heartbeats, and with older offsets. Without it the member commits nothing, and believes any host.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        *,
        group: str,
        commit_version: int,
        coordinates: Callable[[str, str], bool] | None,
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self.owned: set[TopicPartition] = set()
        self._group = group
        self._commit_version = commit_version
        self._coordinates = coordinates
        self._coordinator: str | None = None
        self._is_confirmed = False
        #: The offset to commit next, of the partitions whose present one has been read.
        self._next: dict[TopicPartition, int] = {}

    @property
    def is_settled(self) -> bool:
        """Whether it has partitions, and the coordinator has confirmed that since the last error."""
        return self._is_confirmed and bool(self.owned)

    def doubt(self) -> None:
        """Count as settled after the coordinator has confirmed the membership again."""
        self._is_confirmed = False

    def _confirm(self, host: str) -> None:
        """A coordinator has answered a heartbeat without an error."""
        self._is_confirmed = self._coordinates is None or self._coordinates(host, self._group)

    def _own(self, partitions: set[TopicPartition]) -> None:
        self._next = {key: offset for key, offset in self._next.items() if key in partitions & self.owned}
        self.owned = partitions

    def _forget_coordinator(self) -> None:
        self._coordinator = None
        self._is_confirmed = False

    async def _host(self) -> str:
        if self._coordinator is None:
            self._coordinator = await self.coordinator(self._group)
        return self._coordinator

    async def _ask_coordinator(self, request: Request[Any]) -> Any:
        return await self.ask(request, await self._host())

    # -- offsets

    async def _commit(self, epoch: int, member_id: str) -> int:
        """Commit the next offset of one of the partitions, as a member; return the error code."""
        if self._coordinates is None or not self.owned:
            return 0
        key = self.chance.choice(sorted(self.owned))
        host = await self._host()
        losses = self.history.group_losses
        if key not in self._next:
            return await self._read_offset(key, host)
        offset = self._next[key]
        commits = self._commits(key)
        commits.attempted = max(commits.attempted, offset)
        request = offset_commit(
            self._group, key, offset, version=self._commit_version, epoch=epoch, member_id=member_id
        )
        answer: Any = await self.ask(request, host)
        code = int(answer.topics[0].partitions[0].error_code)
        self.note("member commit", key, offset, epoch, code)
        if code == ErrorCode.none:
            if key in self._next:
                self._next[key] = offset + 1
            if losses == self.history.group_losses:
                commits.acknowledged = max(commits.acknowledged, offset)
        return code

    async def _read_offset(self, key: TopicPartition, host: str) -> int:
        """Begin with the offset that the group has: no acknowledged one of any member is missing."""
        assert self._coordinates is not None
        commits = self._commits(key)
        known, losses = commits.acknowledged, self.history.group_losses
        answer: Any = await self.ask(offset_fetch(self._group, [key]), host)
        code = int(answer.error_code)
        if code:
            return code
        [partition] = answer.topics[0].partitions
        if int(partition.error_code) == ErrorCode.unstable_offset_commit:
            return 0  # nobody confirms the coordinator yet
        found = int(partition.committed_offset)
        if losses != self.history.group_losses:
            return 0
        if not known <= found <= commits.attempted and not self.history.has_lost:
            raise InvariantError(
                f"{self.name}: group {self._group} has offset {found} of {key}, acknowledged was {known}, "
                f"sent was {commits.attempted}"
            )
        if key in self.owned:
            self._next[key] = found + 1
        return 0

    def _commits(self, key: TopicPartition) -> CommittedRange:
        return self.history.commits.setdefault((self._group, key), CommittedRange())

    def _check_retriable(self, what: str, code: int) -> None:
        """Go on after an error that asks for a retry; look for another coordinator if that is due."""
        self._is_confirmed = False
        if code not in RETRIABLE:
            raise InvariantError(f"{self.name}: {what} was refused: {ErrorCode(code).name}")
        if code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            self._coordinator = None
