"""The shell around consumer groups (KIP-848): one decision at a time, written before it counts, and the timers."""

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
from headwater.logtier.group.registry import GroupRegistry, GroupReplacedError
from headwater.logtier.group.topic_regex import InvalidRegexError, TopicRegex
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.clock import Clock

logger = logging.getLogger(__name__)

ASSIGNORS: Final[Mapping[str, Assignor]] = {each.name: each for each in (UniformAssignor(), RangeAssignor())}

#: Topic names matched in one turn of the event loop, at most.
NAMES_PER_TURN: Final = 500
#: Product of topic names and instructions of the expression in one turn, at most. RE2 without its automaton takes up to
#: 1.5 us for an instruction and a name of 249 bytes: a turn takes 15 ms.
NAME_INSTRUCTIONS_PER_TURN: Final = 10_000
#: A member that is late and cannot be put out, because the log takes nothing, is put out later.
RETRY_MS: Final = 1000

Answer = TypeVar("Answer")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class ImageSource(Protocol):
    """What this reads of the metadata cache."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""


class ConsumerGroups:
    """Consumer groups at work.

    Only the coordinator calls it, from the event loop. Invariants: a group's state changes only by what is in the log;
    decisions of one group follow each other, under its lock; an answer goes out after its step is written.
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
        #: Groups that the log does not know yet, with the classic group that each is to take the place of.
        self._unwritten: dict[ConsumerGroup, Group | None] = {}
        self._timers: dict[ConsumerGroup, tuple[int, asyncio.TimerHandle]] = {}
        #: When a group's regular expressions were last matched against all topics.
        self._resolved_ms: dict[ConsumerGroup, int] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """No time passes any more; groups live on in the log."""
        self._is_stopped = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # ---- a group's life ----

    def limits(self, group_id: str) -> ConsumerGroupLimits:
        """What holds for a group: its own configs, else the broker's."""
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
        """A group as the log has it, not yet registered."""
        group = ConsumerGroup(state.group_id, state)
        group.read()
        return group

    def begin(self, group: ConsumerGroup) -> None:
        """A group that was read from the log is registered: its time begins."""
        group.begin_sessions(self.limits(group.group_id), self._clock.monotonic_ms())
        self._arm(group, group.next_deadline_ms())

    def topics_changed(self) -> None:
        """Topics were made, deleted or grew: every group looks at its own with its next heartbeat."""
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                group.topics_changed()

    def remove(self, group: ConsumerGroup) -> None:
        """The group is no more."""
        armed = self._timers.pop(group, None)
        if armed is not None:
            armed[1].cancel()
        self._locks.pop(group, None)
        self._unwritten.pop(group, None)
        self._resolved_ms.pop(group, None)
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    async def delete(self, group: ConsumerGroup, *, with_offsets: bool, if_unused: bool = False) -> None:
        """Delete a group without members, and its offsets if asked for; all of it, even if the caller is cancelled.

        Args:
            if_unused: A group that has offsets is left as it is.

        Raises:
            KafkaError: non_empty_group, or the log's.
            GroupReplacedError: it is another one now.
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
        """A member joins or lives.

        Args:
            is_visible: Whether the member may know of a topic: its regular expression matches no others.

        Raises:
            KafkaError: what the request is refused with.
        """
        while True:
            group = await self._group_for(group_id, joins=beat.member_epoch == JOIN_EPOCH)
            try:
                version = group.topics_version
                resolved = await self._resolve(group, beat.topic_regex, is_visible)
                told = replace(beat, resolved=resolved, resolved_version=version) if resolved else beat
                return await self._decide(group, functools.partial(self._heartbeat, group, told))
            except GroupReplacedError:
                # By another group, or because it is coordinated elsewhere now.
                self._log.active_partition_of(group_id)
            finally:
                self._drop_if_unused(group)

    async def leave(self, group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> HeartbeatResult:
        """A member of the consumer protocol goes.

        Raises:
            KafkaError: what the request is refused with.
        """
        while True:
            group = self._existing(group_id, "Group")
            try:
                leaving = functools.partial(self._leave, group, member_id, member_epoch, instance_id)
                return await self._decide(group, leaving)
            except GroupReplacedError:
                self._log.active_partition_of(group_id)

    async def classic_join(self, group: ConsumerGroup, event: Join) -> JoinResult | None:
        """A member of the classic protocol joins; None if the group is a classic one by then.

        Raises:
            KafkaError: what the request is refused with.
            GroupReplacedError: it is another group now.
        """
        image, limits = self._metadata.image, self.limits(group.group_id)
        if event.group_instance_id is not None and not event.member_id and limits.allows_downgrade:
            old = group.state.static_member(event.group_instance_id)
            others = [each for each in group.state.members.values() if each is not old]
            is_last = old is not None and old.classic is None and all(each.classic is not None for each in others)
            if old is not None and is_last and others:
                # The last one of the consumer protocol comes back by the classic one: the group goes back with it.
                await self._decide(group, functools.partial(self._leave, group, old.member_id, LEAVE_EPOCH, None))
                return None
        return await self._decide(
            group,
            lambda: mixed_group.join(group, event, image, limits, self._clock.monotonic_ms()),
        )

    async def classic_sync(self, group: ConsumerGroup, event: Sync) -> SyncResult:
        """A member of the classic protocol asks for its assignment. Raises as `classic_join`."""
        return await self._decide(
            group, lambda: mixed_group.sync(group, event, self._metadata.image, self._clock.monotonic_ms())
        )

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """A member of the classic protocol lives."""
        now_ms = self._clock.monotonic_ms()
        try:
            error, step = mixed_group.heartbeat(group, member_id, instance_id, generation_id, now_ms)
        except KafkaError as refusal:
            return refusal.code
        self._committed(group, step)
        return error

    async def classic_leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Members of the classic protocol go. Raises as `classic_join`."""
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
        """Decide in the group's turn. What is to be written is written and taken over even if the client goes."""
        lock = self._lock(group)
        await lock.acquire()
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
        """Make a step durable, and only then true; the turn ends with it."""
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
            await self._log.write_changes(
                group.group_id,
                changes,
                now_ms,
                applied=applied,
                refused=refused,
                without_classic=classic is not None,
                successor=metadata,
            )
        except Exception:
            end_turn()  # also where it did not come to a write
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

    def _take_back(self, group: ConsumerGroup) -> None:
        """A new group did not come about: what was before is again."""
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
        """Alone with a group."""
        async with self._lock(group):
            if self._groups.get(group.group_id) is not group:
                raise GroupReplacedError
            yield

    def _lock(self, group: ConsumerGroup) -> asyncio.Lock:
        return self._locks.setdefault(group, asyncio.Lock())

    # ---- which group ----

    async def _group_for(self, group_id: str, *, joins: bool) -> ConsumerGroup:
        """The group; one that joins makes it, out of a classic one if need be.

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
                # Clients show the code, not the reason.
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
        """A join that was refused leaves no group behind."""
        lock = self._locks.get(group)
        if lock is None or not lock.locked():
            self._take_back(group)

    # ---- regular expressions ----

    async def _resolve(
        self, group: ConsumerGroup, topic_regex: str | None, is_visible: Callable[[str], bool]
    ) -> Mapping[str, RegexValue]:
        """What the group's regular expressions match, as far as that is due.

        Raises:
            KafkaError: invalid_regular_expression.
        """
        is_new = bool(topic_regex) and topic_regex not in group.state.regexes
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._config.group_consumer_regex_refresh_interval_ms
        is_due = group.is_stale or now_ms - self._resolved_ms.get(group, -interval_ms) >= interval_ms
        if not is_new and not (group.state.regexes and is_due):
            return {}
        # Before the names are looked at: what changes meanwhile is looked at with the next heartbeat.
        self._resolved_ms[group] = now_ms
        resolved: dict[str, RegexValue] = {}
        names = list(self._metadata.image.topics)
        for regex in group.regexes_to_resolve(topic_regex):
            if resolved:
                await asyncio.sleep(0)  # RE2 takes up to 140 ms for an expression that it refuses as too large
            try:
                compiled = TopicRegex(regex)
            except InvalidRegexError as error:
                if regex != topic_regex:
                    # From a log that others wrote: it keeps what they matched.
                    if (known := group.state.regexes.get(regex)) is not None:
                        resolved[regex] = known
                    continue
                raise KafkaError(
                    ErrorCode.invalid_regular_expression,
                    f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
                ) from None
            matched: set[str] = set()
            per_turn = max(1, min(NAMES_PER_TURN, NAME_INSTRUCTIONS_PER_TURN // compiled.size))
            for start in range(0, len(names), per_turn):
                matched |= compiled.matching(names[start : start + per_turn])
                if len(names) > per_turn:
                    await asyncio.sleep(0)
            visible = frozenset(name for name in matched if is_visible(name))
            resolved[regex] = RegexValue(visible, 0, self._clock.now_ms())
        return resolved

    # ---- time ----

    def _arm(self, group: ConsumerGroup, deadline_ms: int | None) -> None:
        """See to it that somebody looks at this time; deadlines that move away are found out when they come."""
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
        """Put out whoever is late; what cannot be written now is tried again."""
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
