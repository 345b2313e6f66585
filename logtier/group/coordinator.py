"""The group coordinator: the shell around the pure groups. It holds who waits, the timers and the writes."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from logtier.config import BrokerConfig
from logtier.group.core import GroupLimits
from logtier.group.events import (
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
from logtier.group.group import Group
from logtier.group.offsets import CommittedOffset, GroupOffsets, expired_offsets
from logtier.group.offsets_topic import OFFSETS_TOPIC, TopicCreator, create_offsets_topic, offsets_topic
from logtier.group.state_log import MetadataSource, Replicas, StateLog
from logtier.metadata.image import BrokerRegistration, MetadataDelta
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.runtime.clock import Clock

logger = logging.getLogger(__name__)

#: Longest group, member, instance, client or protocol name: the log's strings have int16 lengths, and a member id is a
#: client id with a UUID behind it.
NAME_BYTES_MAX = 32_000

_MINUTE_MS = 60_000


class Metadata(MetadataSource, Protocol):
    """The metadata cache, as far as the coordinator needs it."""

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        """Call back with every change."""


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this broker leads.

    Called from the event loop only. Invariants: an OffsetCommit is answered after it is in the log; a waiting request
    is answered by an instruction of its group, or when the coordinator stops; one timer a group.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        prng: random.Random,
        replica_manager: Replicas,
        controller: TopicCreator,
        metadata: Metadata,
    ) -> None:
        self._config = config
        self._clock = clock
        self._prng = prng
        self._controller = controller
        self._metadata = metadata
        self._log = StateLog(replica_manager, metadata, config.offsets_commit_timeout_ms)
        self._limits = GroupLimits(config.group_max_size, config.group_initial_rebalance_delay_ms)
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._joining: dict[int, asyncio.Future[JoinResult]] = {}
        self._syncing: dict[int, asyncio.Future[SyncResult]] = {}
        self._token = 0
        #: The write of a group that is under way, by group: a deletion has to come after it.
        self._persisting: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Begin to load what this broker leads; requests meanwhile get coordinator_load_in_progress."""
        self._metadata.subscribe(self._metadata_changed)
        self._begin_loading()
        self._spawn(self._expire_periodically())

    async def stop(self) -> None:
        """Let writes finish, answer whoever waits; groups live on in the log."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._persisting:
            await asyncio.wait(list(self._persisting.values()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for joining in self._joining.values():
            if not joining.done():
                joining.set_result(JoinResult(UNKNOWN_MEMBER_ID, ErrorCode.coordinator_not_available))
        for syncing in self._syncing.values():
            if not syncing.done():
                syncing.set_result(SyncResult(ErrorCode.coordinator_not_available))

    # ---- where a group is ----

    async def find(self, group_id: str) -> BrokerRegistration:
        """The broker that coordinates a group; creates `__consumer_offsets` when it is needed first.

        Raises:
            KafkaError: coordinator_not_available.
        """
        if self._metadata.image.topic(OFFSETS_TOPIC) is None:
            await create_offsets_topic(self._controller, offsets_topic(self._config))
            self._begin_loading()
        # An empty log is loaded at once: a first client need not come back for it.
        if self._loading is not None:
            await asyncio.sleep(0)
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        leader = -1 if topic is None else topic.partitions[self._log.partition_of(group_id)].leader
        broker = image.brokers.get(leader)
        if broker is None:
            raise KafkaError(ErrorCode.coordinator_not_available, f"no broker leads the partition of group {group_id}")
        return broker

    # ---- membership ----

    async def join(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        requires_known_member_id: bool = True,
        supports_skipping_assignment: bool = True,
        reason: str = "",
    ) -> JoinResult:
        """Take part in the group's next generation; answered when everybody has joined, or time is up."""
        config = self._config
        error = self._availability(group_id)
        group = self._groups.get(group_id)
        names = (
            group_id,
            member_id,
            group_instance_id or "",
            client_id,
            protocol_type,
            *(name for name, _ in protocols),
        )
        if error is not ErrorCode.none:
            pass
        elif not config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms:
            error = ErrorCode.invalid_session_timeout
        elif any(len(name) * 4 > NAME_BYTES_MAX and len(name.encode()) > NAME_BYTES_MAX for name in names):
            error = ErrorCode.invalid_request
        elif group is None and member_id != UNKNOWN_MEMBER_ID:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none:
            return JoinResult(member_id, error)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._limits)
        self._token += 1
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._joining[self._token] = future
        event = Join(
            self._token,
            member_id,
            f"{group_instance_id or client_id}-{UUID(int=self._prng.getrandbits(128), version=4)}",
            group_instance_id,
            client_id,
            client_host,
            session_timeout_ms,
            rebalance_timeout_ms,
            protocol_type,
            tuple(protocols),
            requires_known_member_id,
            supports_skipping_assignment,
            reason,
        )
        self._execute(group, group.join(event, self._clock.monotonic_ms()))
        self._drop_if_unused(group)
        return await future

    async def sync(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
    ) -> SyncResult:
        """Get a member's assignment; answered when the leader's is in the log."""
        error = self._availability(group_id)
        group = self._groups.get(group_id)
        if error is not ErrorCode.none:
            return SyncResult(error)
        if group is None:
            return SyncResult(ErrorCode.unknown_member_id)
        self._token += 1
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._syncing[self._token] = future
        event = Sync(
            self._token, member_id, group_instance_id, generation_id, protocol_type, protocol_name, assignments
        )
        self._execute(group, group.sync(event))
        return await future

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        """A member lives; `rebalance_in_progress` asks it to join again."""
        error = self._availability(group_id)
        if error is ErrorCode.coordinator_load_in_progress:
            return (
                ErrorCode.none
            )  # the client is told nothing it could act on; its session starts anew with the loading
        if error is not ErrorCode.none:
            return error
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.heartbeat(member_id, group_instance_id, generation_id, self._clock.monotonic_ms())

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Take members out of their group; one error code for each.

        Raises:
            KafkaError: for the whole request.
        """
        error = self._availability(group_id)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(members)
        errors, instructions = group.leave(members, self._clock.monotonic_ms())
        self._execute(group, instructions)
        self._drop_if_unused(group)
        return errors

    # ---- offsets ----

    async def commit_offsets(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        commits: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Commit offsets, all or none; returns when they are in the log.

        Raises:
            KafkaError: what every partition of the request is answered with.
        """
        self._log.active_partition_of(group_id)
        group = self._groups.get(group_id)
        if group is not None:
            group.check_offset_commit(member_id, group_instance_id, generation_id, self._clock.monotonic_ms())
        elif generation_id >= 0:
            raise KafkaError(ErrorCode.illegal_generation, f"group {group_id} does not exist")
        elif len(group_id.encode()) > NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_group_id, f"a group id has at most {NAME_BYTES_MAX} bytes")
        if not commits:
            return
        await self._log.write_offsets(group_id, commits, self._clock.now_ms())
        if group_id not in self._groups:
            self._groups[group_id] = Group(group_id, self._limits)

    def committed(self, group_id: str) -> GroupOffsets:
        """The committed offsets of a group; empty for one that does not exist.

        Raises:
            KafkaError: not_coordinator or coordinator_load_in_progress.
        """
        self._log.active_partition_of(group_id)
        return self._log.offsets.get(group_id) or GroupOffsets()

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Forget committed offsets of topics that the group does not consume at present.

        Raises:
            KafkaError: group_id_not_found, non_empty_group, or the log's.
        """
        self._log.active_partition_of(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id} does not exist")
        is_consumer = group.protocol_type == "consumer"
        if group.state is not GroupState.EMPTY and not is_consumer:
            raise KafkaError(ErrorCode.non_empty_group, f"group {group_id} has members")
        errors = {
            key: ErrorCode.group_subscribed_to_topic
            if group.state is not GroupState.EMPTY and group.is_subscribed_to(key.topic)
            else ErrorCode.none
            for key in partitions
        }
        offsets = self.committed(group_id)
        removed = [key for key, error in errors.items() if error is ErrorCode.none and key in offsets]
        if removed:
            await self._log.write_tombstones(group_id, removed, self._clock.now_ms())
        return errors

    # ---- administration ----

    def group(self, group_id: str) -> Group | None:
        """A group to look at.

        Raises:
            KafkaError: not_coordinator or coordinator_load_in_progress.
        """
        self._log.active_partition_of(group_id)
        return self._groups.get(group_id)

    def groups(self) -> list[Group]:
        """All groups coordinated here, to look at.

        Raises:
            KafkaError: coordinator_load_in_progress.
        """
        if self._log.is_loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "the groups are being loaded")
        return list(self._groups.values())

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises:
            KafkaError: group_id_not_found, non_empty_group, or the log's.
        """
        writing = self._persisting.get(group_id)
        if writing is not None:
            await asyncio.wait([writing])
        group = self.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id} does not exist")
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.non_empty_group, f"group {group_id} has members")
        await self._log.write_tombstones(group_id, self.committed(group_id), self._clock.now_ms(), with_group=True)
        logger.info("group %s: deleted", group_id)
        if self._groups.get(group_id) is group and not group.members:  # nobody has joined meanwhile
            self._remove(group)

    # ---- instructions ----

    def _execute(self, group: Group, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, RespondJoin):
                joining = self._joining.pop(instruction.token)
                if not joining.done():  # else the client has gone
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
        if self._is_stopped:
            return
        armed = self._timers.get(group.group_id)
        if armed is not None:
            armed.cancel()
        delay_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
        self._timers[group.group_id] = asyncio.get_running_loop().call_later(delay_s, self._fire, group)

    def _fire(self, group: Group) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._timers[group.group_id]
        self._execute(group, group.timer_expired(self._clock.monotonic_ms()))
        self._drop_if_unused(group)

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
        self._execute(group, group.persisted(persist_id, error, self._clock.monotonic_ms()))

    # ---- loading, expiry, changes of metadata ----

    def _begin_loading(self) -> None:
        if self._loading is None:
            self._loading = self._spawn(self._load())

    async def _load(self) -> None:
        try:
            while partitions := self._log.new_partitions():
                for partition in partitions:
                    await self._load_partition(partition)
            await self._forget_missing_topics()
        finally:
            self._loading = None

    async def _load_partition(self, partition: int) -> None:
        replay = await self._log.load(partition)
        for group_id, metadata in replay.groups.items():
            group = self._groups[group_id] = Group(group_id, self._limits)
            self._execute(group, group.restore(metadata, self._clock.monotonic_ms()))
        for group_id in replay.offsets:
            if group_id not in self._groups:  # committed without group management
                self._groups[group_id] = Group(group_id, self._limits)
        if replay.groups or replay.offsets:
            logger.info("%s-%d: groups loaded: %d", OFFSETS_TOPIC, partition, len(replay.groups | replay.offsets))

    async def _forget_missing_topics(self) -> None:
        """Offsets of a topic that is gone must not become those of a new topic of its name."""
        image = self._metadata.image
        for group_id, offsets in list(self._log.offsets.items()):
            removed = []
            for key, committed in offsets.items():
                topic = image.topic(key.topic)
                if topic is None or committed.topic_id not in (None, topic.topic_id):
                    removed.append(key)
            if removed:
                await self._forget(group_id, removed, "of deleted topics")

    async def _forget(self, group_id: str, removed: Sequence[TopicPartition], why: str) -> None:
        try:
            await self._log.write_tombstones(group_id, removed, self._clock.now_ms())
            logger.info("group %s: forgot %d committed offsets %s", group_id, len(removed), why)
        except KafkaError as error:
            logger.warning("group %s: committed offsets %s are not forgotten yet: %s", group_id, why, error)

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Forget offsets past offsets.retention.minutes, and groups that have neither members nor offsets left."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        for group in list(self._groups.values()):
            offsets = self._log.offsets.get(group.group_id)
            if offsets is not None:
                expired = expired_offsets(group, offsets, self._clock.now_ms(), retention_ms)
                if expired:
                    await self._forget(group.group_id, expired, f"after {retention_ms} ms without use")
            is_unused = group.state is GroupState.EMPTY and not group.pending_joins
            if is_unused and group.group_id not in self._log.offsets:
                try:
                    await self.delete_group(group.group_id)
                except KafkaError as error:
                    logger.info("group %s: not removed: %s", group.group_id, error)

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if any(topic.name == OFFSETS_TOPIC for topic in delta.deleted):
            logger.warning("%s was deleted: all groups and committed offsets are gone", OFFSETS_TOPIC)
            self._log.forget_all()
            for group in list(self._groups.values()):
                self._remove(group)
        elif delta.deleted:
            self._spawn(self._forget_missing_topics())
        if any(topic.name == OFFSETS_TOPIC for topic in (*delta.created, *delta.changed)):
            # After all subscribers: the replica manager may still have to make the logs.
            asyncio.get_running_loop().call_soon(self._begin_loading)

    # ---- small parts ----

    def _availability(self, group_id: str) -> ErrorCode:
        """Why this group cannot be worked with here, or `none`."""
        if not group_id:
            return ErrorCode.invalid_group_id
        if self._is_stopped:
            return ErrorCode.coordinator_not_available
        try:
            self._log.active_partition_of(group_id)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    def _drop_if_unused(self, group: Group) -> None:
        """Forget a group that nobody ever became a member of."""
        is_new = group.generation_id == 0 and group.state is GroupState.EMPTY and not group.pending_joins
        if is_new and group.current_state_timestamp_ms < 0 and group.group_id not in self._log.offsets:
            self._remove(group)

    def _remove(self, group: Group) -> None:
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        self._groups.pop(group.group_id, None)
        self._execute(group, group.delete())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the group coordinator failed", exc_info=task.exception())
