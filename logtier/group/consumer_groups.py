"""The shell around consumer groups (KIP-848): sequential decisions, written before they take effect, and timers."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from headwater.logtier.config import BrokerConfig, ConsumerGroupConfig
from headwater.logtier.config.group_protocol import assignor_name
from headwater.logtier.group.assignors.assignor import Assignor
from headwater.logtier.group.assignors.range_assignor import RangeAssignor
from headwater.logtier.group.assignors.uniform_assignor import UniformAssignor
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.classic_groups import ClassicGroups
from headwater.logtier.group.consumer import mixed_group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_member import JOIN_EPOCH, LEAVE_EPOCH
from headwater.logtier.group.consumer.consumer_records import RegexValue
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState, ConsumerState
from headwater.logtier.group.consumer.consumer_step import ConsumerGroupLimits, Heartbeat, HeartbeatResult, Step
from headwater.logtier.group.consumer.migration import upgraded
from headwater.logtier.group.events import Join, JoinResult, LeavingMember, Sync, SyncResult
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.registry import AnyGroup, GroupRegistry, GroupReplacedError
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.name_regex import InvalidRegexError, NameRegex
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.state_topic.log import UndecidedWriteError

logger = logging.getLogger(__name__)

ASSIGNORS: Final[Mapping[str, Assignor]] = {each.name: each for each in (UniformAssignor(), RangeAssignor())}

#: Pause before another attempt to remove expired members after the log has refused the write.
RETRY_MS: Final = 1000

Answer = TypeVar("Answer")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class ImageSource(Protocol):
    """The metadata cache's interface for consumer groups."""

    @property
    def image(self) -> MetadataImage:
        """The present image of the cluster."""


class ConsumerGroups:
    """Passes requests to consumer groups and writes their steps.

    Only the coordinator calls this class, on the event loop. Invariants: a group's state changes only by records in the
    log; a group's decisions are sequential, under its lock; a response is sent after its step is written.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        log: GroupStateLog,
        groups: GroupRegistry,
        metadata: ImageSource,
        classic: ClassicGroups,
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._groups = groups
        self._metadata = metadata
        self._classic = classic
        self._spawn = spawn
        self._locks: dict[ConsumerGroup, asyncio.Lock] = {}
        #: Groups without records in the log, each with the classic group that it is to replace.
        self._unwritten: dict[ConsumerGroup, Group | None] = {}
        self._timers: dict[ConsumerGroup, tuple[int, asyncio.TimerHandle]] = {}
        #: Time of the last match of a group's regular expressions against all topics.
        self._resolved_ms: dict[ConsumerGroup, int] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """Stop the timers; the groups remain in the log."""
        self._is_stopped = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # ---- a group's life ----

    def limits(self, group_id: str) -> ConsumerGroupLimits:
        """Return a group's limits: its own configs, else the broker's."""
        config = self._config
        own = ConsumerGroupConfig.resolve(self._metadata.image.group_configs.get(group_id, {}), config)
        policy = config.group_consumer_migration_policy.lower()
        return ConsumerGroupLimits(
            _assignors(config.group_consumer_assignors),
            config.group_consumer_max_size,
            own.consumer_session_timeout_ms,
            own.consumer_heartbeat_interval_ms,
            policy in ("upgrade", "bidirectional"),
            policy in ("downgrade", "bidirectional"),
            config.group_max_size,
        )

    @staticmethod
    def restored(state: ConsumerState) -> ConsumerGroup:
        """Create a group from the log without registering it."""
        group = ConsumerGroup(state.group_id, state)
        group.read()
        return group

    def begin(self, group: ConsumerGroup) -> None:
        """Begin the sessions of a group that was loaded and registered."""
        group.begin_sessions(self.limits(group.group_id), self._clock.monotonic_ms())
        self._arm(group, group.next_deadline_ms())

    def topics_changed(self) -> None:
        """Have every group check its topics at its next heartbeat, after a change of topics."""
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                group.topics_changed()

    def remove(self, group: ConsumerGroup) -> None:
        """Remove a group and its timers."""
        armed = self._timers.pop(group, None)
        if armed is not None:
            armed[1].cancel()
        self._locks.pop(group, None)
        self._unwritten.pop(group, None)
        self._resolved_ms.pop(group, None)
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    async def delete(self, group: ConsumerGroup, *, with_offsets: bool, if_unused: bool = False) -> None:
        """Delete a group without members, and its offsets on request; completes even if the caller is cancelled.

        Args:
            if_unused: Do not delete a group that has offsets.

        Raises:
            KafkaError: non_empty_group, or the error of the log.
            GroupReplacedError: another group has replaced it.
        """
        await self._log.to_its_end(self._delete(group, with_offsets=with_offsets, if_unused=if_unused))

    async def _delete(self, group: ConsumerGroup, *, with_offsets: bool, if_unused: bool) -> None:
        async with self._turn(group):
            if if_unused and self._log.partitions_of(group.group_id):
                return
            if group.state.phase is not ConsumerGroupState.EMPTY:
                raise KafkaError(ErrorCode.non_empty_group, f"group {group.group_id} has members")
            offsets = self._log.partitions_of(group.group_id) if with_offsets else ()
            await self._log.write_tombstones(
                group.group_id,
                list(offsets),
                self._clock.now_ms(),
                changes=list(group.state.tombstones()),
                applied=lambda: self.remove(group),
            )

    # ---- requests ----

    async def heartbeat(self, group_id: str, beat: Heartbeat, is_visible: Callable[[str], bool]) -> HeartbeatResult:
        """Process a heartbeat of a member that joins or is alive.

        Args:
            is_visible: Whether the member may describe a topic; its regular expression matches no other topics.

        Raises:
            KafkaError: the error of the response.
        """
        while True:
            group = await self._group_for(group_id, joins=beat.member_epoch == JOIN_EPOCH)
            try:
                version = group.topics_version
                resolved = await self._resolve(group, beat.topic_regex, is_visible)
                told = replace(beat, resolved=resolved, resolved_version=version) if resolved else beat
                return await self._decide(group, functools.partial(self._heartbeat, group, told))
            except GroupReplacedError:
                # Another group has replaced it, or another broker coordinates it.
                self._log.active_partition_of(group_id)
            finally:
                self._drop_if_unused(group)

    async def leave(self, group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> HeartbeatResult:
        """Remove a member of the consumer protocol.

        Raises:
            KafkaError: the error of the response.
        """
        while True:
            group = self._existing(group_id, "Group")
            try:
                leaving = functools.partial(self._leave, group, member_id, member_epoch, instance_id)
                return await self._decide(group, leaving)
            except GroupReplacedError:
                self._log.active_partition_of(group_id)

    async def classic_join(self, group: ConsumerGroup, event: Join) -> JoinResult | None:
        """Join a member of the classic protocol; None if the group has become a classic one meanwhile.

        Raises:
            KafkaError: the error of the response.
            GroupReplacedError: another group has replaced it.
        """
        image, limits = self._metadata.image, self.limits(group.group_id)
        if event.group_instance_id is not None and not event.member_id and limits.allows_downgrade:
            old = group.state.static_member(event.group_instance_id)
            others = [each for each in group.state.members.values() if each is not old]
            is_last = old is not None and old.classic is None and all(each.classic is not None for each in others)
            if old is not None and is_last and others:
                # The last member of the consumer protocol rejoins by the classic one: the group is downgraded.
                await self._decide(group, functools.partial(self._leave, group, old.member_id, LEAVE_EPOCH, None))
                return None
        return await self._decide(
            group,
            lambda: mixed_group.join(group, event, image, limits, self._clock.monotonic_ms()),
        )

    async def classic_sync(self, group: ConsumerGroup, event: Sync) -> SyncResult:
        """Return the assignment of a member of the classic protocol. Raises as `classic_join`."""
        return await self._decide(
            group, lambda: mixed_group.sync(group, event, self._metadata.image, self._clock.monotonic_ms())
        )

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Process a Heartbeat of a member of the classic protocol."""
        now_ms = self._clock.monotonic_ms()
        try:
            error, step = mixed_group.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        except KafkaError as refusal:
            return refusal.code
        self._committed(group, step)
        return error

    async def classic_leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members by LeaveGroup. Raises as `classic_join`."""
        limits = self.limits(group.group_id)
        return await self._decide(group, lambda: mixed_group.leave(group, members, self._metadata.image, limits))

    # ---- one decision ----

    def _heartbeat(self, group: ConsumerGroup, beat: Heartbeat) -> tuple[HeartbeatResult, Step]:
        limits = self.limits(group.group_id)
        return group.heartbeat(beat, self._metadata.image, limits, self._clock.monotonic_ms())

    def _leave(
        self, group: ConsumerGroup, member_id: str, member_epoch: int, instance_id: str | None
    ) -> tuple[HeartbeatResult, Step]:
        return group.leave(member_id, member_epoch, instance_id, self._metadata.image, self.limits(group.group_id))

    async def _decide(self, group: ConsumerGroup, decide: Callable[[], tuple[Answer, Step]]) -> Answer:
        """Decide under the group's lock. The step is written and applied even if the client disconnects."""
        lock = await self._acquire(group)
        is_written = False
        try:
            if self._groups.get(group.group_id) is not group:
                raise GroupReplacedError
            answer, step = decide()
            if not step.changes:
                self._committed(group, step)
                return answer
            is_written = True
        finally:
            if not is_written:
                lock.release()
        await self._write(group, step, lock)
        return answer

    async def _write(self, group: ConsumerGroup, step: Step, lock: asyncio.Lock) -> None:
        """Write a step, then apply it and release the group's lock."""
        is_over = False

        def end_turn() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                lock.release()

        def applied() -> None:
            try:
                self._written(group, step)
            finally:
                end_turn()

        def refused(error: KafkaError) -> None:
            logger.warning("group %s: a change could not be written: %s", group.group_id, error)
            self._take_back(group)
            end_turn()

        classic = self._unwritten.get(group)
        changes = step.changes
        if classic is not None:
            changes = [*group.state.records(), *changes] if group.state.members else changes
        now_ms = self._clock.now_ms()
        metadata = None
        if step.successor is not None:
            metadata = replace(step.successor.metadata, current_state_timestamp_ms=now_ms)
        try:
            # It may take long: until then the group keeps its lock, and its state does not change.
            await self._log.write_changes(
                group.group_id,
                changes,
                now_ms,
                applied=applied,
                refused=refused,
                without_classic=classic is not None,
                successor=metadata,
            )
        except UndecidedWriteError:
            raise
        except Exception:
            end_turn()  # also without a write
            raise

    def _written(self, group: ConsumerGroup, step: Step) -> None:
        classic = self._unwritten.pop(group, None)
        if classic is not None:
            if classic.members:
                logger.info("group %s: a classic group becomes a consumer group", group.group_id)
            self._classic.retire(classic, ErrorCode.rebalance_in_progress)
        if step.successor is not None:
            self.remove(group)
            self._classic.adopt(group.group_id, step.successor)
        else:
            self._committed(group, step)

    def as_written(self, group: AnyGroup | None) -> AnyGroup | None:
        """Return the group that the log has, which one without records is to replace; None if the log has none."""
        return self._unwritten.get(group, group) if isinstance(group, ConsumerGroup) else group

    def _take_back(self, group: ConsumerGroup) -> None:
        """Undo the registration of a group that was not created: restore the previous group, if any."""
        if group in self._unwritten:
            classic = self._unwritten[group]
            self.remove(group)
            if classic is not None:
                self._groups[group.group_id] = classic
                self._classic.resume(classic)

    def _committed(self, group: ConsumerGroup, step: Step) -> None:
        for line in group.commit(step, self._clock.monotonic_ms()):
            logger.info("%s", line)
        soonest = min((each[0] for each in step.deadlines.values() if each is not None), default=None)
        self._arm(group, soonest)

    @contextlib.asynccontextmanager
    async def _turn(self, group: ConsumerGroup) -> AsyncIterator[None]:
        """Hold the lock of a group."""
        lock = await self._acquire(group)
        try:
            if self._groups.get(group.group_id) is not group:
                raise GroupReplacedError
            yield
        finally:
            lock.release()

    async def _acquire(self, group: ConsumerGroup) -> asyncio.Lock:
        if self._groups.get(group.group_id) is not group:
            raise GroupReplacedError
        lock = self._locks.setdefault(group, asyncio.Lock())
        timeout_ms = self._config.offsets_commit_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await lock.acquire()
        except TimeoutError:
            reason = f"group {group.group_id}: a change was not replicated within {timeout_ms} ms"
            raise KafkaError(ErrorCode.coordinator_not_available, reason) from None
        return lock

    # ---- which group ----

    async def _group_for(self, group_id: str, *, joins: bool) -> ConsumerGroup:
        """Return the group; a join creates it, from a classic group if necessary.

        Raises:
            KafkaError: group_id_not_found.
        """
        found = self._groups.get(group_id)
        if isinstance(found, Group) and joins:
            await self._classic.written(group_id)
            found = self._groups.get(group_id)
        if isinstance(found, ConsumerGroup) or not joins:
            return self._existing(group_id)
        if found is not None and found.members:
            try:
                state = upgraded(found, self._metadata.image, self.limits(group_id))
            except KafkaError as refusal:
                # Clients show the code, not the message.
                logger.warning("group %s: %s", group_id, refusal.message)
                raise
            group = ConsumerGroup(group_id, state)
            group.restore(self.limits(group_id), self._clock.monotonic_ms())
            self._arm(group, group.next_deadline_ms())
        else:
            group = ConsumerGroup(group_id)
        self._unwritten[group] = found
        self._groups[group_id] = group
        return group

    def _existing(self, group_id: str, what: str = "Consumer group") -> ConsumerGroup:
        found = self._groups.get(group_id)
        if isinstance(found, ConsumerGroup):
            return found
        message = f"{what} {group_id} not found." if found is None else f"Group {group_id} is not a consumer group."
        raise KafkaError(ErrorCode.group_id_not_found, message)

    def _drop_if_unused(self, group: ConsumerGroup) -> None:
        """Remove the group of a rejected join."""
        lock = self._locks.get(group)
        if lock is None or not lock.locked():
            self._take_back(group)

    # ---- regular expressions ----

    async def _resolve(
        self, group: ConsumerGroup, topic_regex: str | None, is_visible: Callable[[str], bool]
    ) -> Mapping[str, RegexValue]:
        """Match the group's regular expressions against all topics, if due; empty if not due.

        Raises:
            KafkaError: invalid_regular_expression.
        """
        is_new = bool(topic_regex) and topic_regex not in group.state.regexes
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._config.group_consumer_regex_refresh_interval_ms
        is_due = group.is_stale or now_ms - self._resolved_ms.get(group, -interval_ms) >= interval_ms
        if not is_new and not (group.state.regexes and is_due):
            return {}
        # Set before the match: the next heartbeat covers topics that change meanwhile.
        self._resolved_ms[group] = now_ms
        resolved: dict[str, RegexValue] = {}
        names = list(self._metadata.image.topics)
        for regex in group.regexes_to_resolve(topic_regex):
            if resolved:
                await asyncio.sleep(0)  # RE2 takes up to 140 ms for an expression that it refuses as too large
            try:
                compiled = NameRegex(regex)
            except InvalidRegexError as error:
                if regex != topic_regex:
                    # From the log of another broker: the expression keeps its matches.
                    if (known := group.state.regexes.get(regex)) is not None:
                        resolved[regex] = known
                    continue
                raise KafkaError(
                    ErrorCode.invalid_regular_expression,
                    f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
                ) from None
            matched: set[str] = set()
            for part in compiled.turns(names):
                matched |= compiled.matching(part)
                if len(part) < len(names):
                    await asyncio.sleep(0)
            visible = frozenset(name for name in matched if is_visible(name))
            resolved[regex] = RegexValue(visible, 0, self._clock.now_ms())
        return resolved

    # ---- time ----

    def _arm(self, group: ConsumerGroup, deadline_ms: int | None) -> None:
        """Set the group's timer, if earlier than the present one; `_expire` handles deadlines that have moved."""
        armed = self._timers.get(group)
        if self._is_stopped or deadline_ms is None or (armed is not None and armed[0] <= deadline_ms):
            return
        if armed is not None:
            armed[1].cancel()
        delay_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._fire, group)
        self._timers[group] = (deadline_ms, timer)

    def _fire(self, group: ConsumerGroup) -> None:
        self._timers.pop(group, None)
        if self._groups.get(group.group_id) is group:
            self._spawn(self._expire(group))

    async def _expire(self, group: ConsumerGroup) -> None:
        """Remove expired members; retry after a failed write."""
        try:
            await self._decide(
                group,
                lambda: (
                    None,
                    group.expire(self._metadata.image, self.limits(group.group_id), self._clock.monotonic_ms()),
                ),
            )
            self._arm(group, group.next_deadline_ms())
        except GroupReplacedError:
            return
        except KafkaError:
            self._arm(group, self._clock.monotonic_ms() + RETRY_MS)


def _assignors(names: Sequence[str]) -> Mapping[str, Assignor]:
    return {name: ASSIGNORS[name] for name in map(assignor_name, names)}
