"""The shell around classic groups: waiting requests, timers, and writes of generations."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from headwater.logtier.config import BrokerConfig
from headwater.logtier.group.classic.core import GroupLimits
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_step import ClassicSuccessor
from headwater.logtier.group.events import (
    UNKNOWN_MEMBER_ID,
    ArmTimer,
    Explain,
    GroupMetadata,
    GroupState,
    Instruction,
    Join,
    JoinResult,
    LeavingMember,
    Persist,
    RespondJoin,
    RespondSync,
    Sync,
    SyncResult,
)
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.registry import GroupRegistry
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.state_topic.log import FINISH_MS_MAX

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class ClassicGroups:
    """Passes events to classic groups and executes their instructions.

    Only the coordinator calls this class, on the event loop. Invariants: an instruction of its group or the stop of the
    coordinator answers each waiting request; a group has one timer; a group's writes are sequential.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        log: GroupStateLog,
        groups: GroupRegistry,
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._groups = groups
        self._spawn = spawn
        self._limits = GroupLimits(config.group_max_size, config.group_initial_rebalance_delay_ms)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._joining: dict[int, asyncio.Future[JoinResult]] = {}
        self._syncing: dict[int, asyncio.Future[SyncResult]] = {}
        self._token = 0
        #: Write under way, by group: a deletion waits for it.
        self._persisting: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False

    async def stop(self) -> None:
        """Finish the writes under way, as far as they end in time, and answer all waiting requests."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._persisting:
            await asyncio.wait(list(self._persisting.values()), timeout=FINISH_MS_MAX / 1000)
        for joining in self._joining.values():
            if not joining.done():
                joining.set_result(JoinResult(UNKNOWN_MEMBER_ID, ErrorCode.coordinator_not_available))
        for syncing in self._syncing.values():
            if not syncing.done():
                syncing.set_result(SyncResult(ErrorCode.coordinator_not_available))

    # ---- a group's life ----

    def restored(self, group_id: str, metadata: GroupMetadata | None) -> Group:
        """Create a group from the log without registering it; a group without metadata only committed offsets."""
        group = Group(group_id, self._limits)
        if metadata is not None:
            group.read(metadata)
        return group

    def begin(self, group: Group) -> None:
        """Start the timer of a group that was loaded and registered."""
        self.execute(group, group.begin_sessions(self._clock.monotonic_ms()))

    def add(self, group_id: str) -> None:
        """Create and register the group of a commit without group management."""
        self._groups[group_id] = Group(group_id, self._limits)

    def adopt(self, group_id: str, successor: ClassicSuccessor) -> None:
        """Register a classic group that replaces a consumer group and is in the log; its members must rejoin."""
        group = self._groups[group_id] = Group(group_id, self._limits)
        now_ms = self._clock.monotonic_ms()
        self.execute(group, group.adopt(successor.metadata, successor.protocols, successor.cause, now_ms))

    async def written(self, group_id: str) -> None:
        """Wait for the writes of this group."""
        while (writing := self._persisting.get(group_id)) is not None:
            await asyncio.wait([writing])

    def resume(self, group: Group) -> None:
        """Restart the timer of a group that was put back into the registry."""
        self.execute(group, group.resume(self._clock.monotonic_ms()))

    def retire(self, group: Group, error: ErrorCode) -> None:
        """Answer the waiting requests of a group that a consumer group has replaced with this error."""
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        self.execute(group, group.delete(error))

    def remove(self, group: Group, error: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Remove a group and answer its waiting requests with this error."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        self.retire(group, error)

    # ---- membership ----

    async def join(self, group_id: str, group: Group | None, make_event: Callable[[int], Join]) -> JoinResult:
        """Join the group's next generation. Return when all members have joined, or after the rebalance timeout."""
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._limits)
        self._token += 1
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._joining[self._token] = future
        self.execute(group, group.join(make_event(self._token), self._clock.monotonic_ms()))
        self.drop_if_unused(group)
        return await future

    async def sync(self, group: Group, make_event: Callable[[int], Sync]) -> SyncResult:
        """Return a member's assignment, when the leader's is in the log."""
        self._token += 1
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._syncing[self._token] = future
        self.execute(group, group.sync(make_event(self._token)))
        return await future

    def leave(self, group: Group, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members from their group; return one error code for each."""
        errors, instructions = group.leave(members, self._clock.monotonic_ms())
        self.execute(group, instructions)
        self.drop_if_unused(group)
        return errors

    # ---- instructions ----

    def execute(self, group: Group, instructions: Sequence[Instruction]) -> None:
        """Execute a group's instructions."""
        for instruction in instructions:
            if isinstance(instruction, RespondJoin):
                joining = self._joining.pop(instruction.token)
                if not joining.done():  # the client may have disconnected
                    joining.set_result(instruction.result)
            elif isinstance(instruction, RespondSync):
                syncing = self._syncing.pop(instruction.token)
                if not syncing.done():
                    syncing.set_result(instruction.result)
            elif isinstance(instruction, ArmTimer):
                self._arm(group, instruction.deadline_ms)
            elif isinstance(instruction, Explain):
                logger.info("%s", instruction.text)
            else:
                self._persist(group, instruction)

    def _arm(self, group: Group, deadline_ms: int) -> None:
        if self._is_stopped or self._groups.get(group.group_id) is not group:
            return  # `resume` sets the timer of a group that comes back into the registry
        armed = self._timers.get(group.group_id)
        if armed is not None:
            armed.cancel()
        delay_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
        self._timers[group.group_id] = asyncio.get_running_loop().call_later(delay_s, self._fire, group)

    def _fire(self, group: Group) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._timers[group.group_id]
        self.execute(group, group.timer_expired(self._clock.monotonic_ms()))
        self.drop_if_unused(group)

    def _persist(self, group: Group, instruction: Persist) -> None:
        now_ms = self._clock.now_ms()
        group.current_state_timestamp_ms = now_ms
        metadata = replace(instruction.metadata, current_state_timestamp_ms=now_ms)
        before = self._persisting.get(group.group_id)
        task = self._spawn(self._write_group(group, instruction.persist_id, metadata, before))
        self._persisting[group.group_id] = task

    async def _write_group(
        self, group: Group, persist_id: int, metadata: GroupMetadata, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        error = ErrorCode.none
        try:
            await self._log.write_group(group.group_id, metadata, metadata.current_state_timestamp_ms)
        except KafkaError as failure:
            logger.warning(
                "group %s: generation %d is not written: %s", group.group_id, metadata.generation_id, failure
            )
            error = failure.code
        finally:
            if self._persisting.get(group.group_id) is asyncio.current_task():
                del self._persisting[group.group_id]
        self.execute(group, group.persisted(persist_id, error, self._clock.monotonic_ms()))

    def drop_if_unused(self, group: Group) -> None:
        """Remove a group that never had a member."""
        is_new = group.generation_id == 0 and group.state is GroupState.EMPTY and not group.pending_joins
        if is_new and group.current_state_timestamp_ms < 0 and not self._log.partitions_of(group.group_id):
            self.remove(group)
