"""The group coordinator: locates groups, commits offsets, passes requests to the classic or consumer protocol."""

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from headwater.logtier.config import BrokerConfig
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.classic_groups import ClassicGroups
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState
from headwater.logtier.group.consumer.consumer_step import Heartbeat, HeartbeatResult
from headwater.logtier.group.consumer_groups import ConsumerGroups
from headwater.logtier.group.consumer_protocol import PROTOCOL_TYPE
from headwater.logtier.group.events import (
    UNKNOWN_MEMBER_ID,
    GroupState,
    Join,
    JoinResult,
    LeavingMember,
    Sync,
    SyncResult,
)
from headwater.logtier.group.loading import load_groups
from headwater.logtier.group.persistence.missing_topics import of_missing_topics
from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets, expired_offsets
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC, offsets_topic
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.persistence.transactional_offsets import TransactionalOffsets
from headwater.logtier.group.registry import AnyGroup, GroupRegistry, GroupReplacedError
from headwater.logtier.metadata.image import BrokerRegistration, MetadataDelta
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.protocol.uuids import random_uuid, to_text
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.state_topic.loading import StateLoader
from headwater.logtier.state_topic.log import TOMBSTONES_PER_BATCH, Metadata, StateTopicReplicas
from headwater.logtier.state_topic.topic import TopicCreator, create_state_topic
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Wait

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

#: Maximum bytes of a group, member, instance, client or protocol name: the log's strings have int16 lengths, and a
#: member id is a client id followed by a UUID.
NAME_BYTES_MAX = 32_000

#: Maximum time that a commit waits for a load: less than a session of the members behind it on the connection.
LOAD_WAIT_S_MAX = 5.0

_MINUTE_MS = 60_000
#: First version of OffsetCommit with GROUP_ID_NOT_FOUND; earlier versions get ILLEGAL_GENERATION.
_GROUP_NOT_FOUND_FROM = 9


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this broker leads.

    Called from the event loop only. A group has one protocol at a time and may change it: a consumer group may have
    members of the classic protocol. Invariant: an OffsetCommit is answered after its offsets are in the log.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        prng: random.Random,
        replica_manager: StateTopicReplicas,
        controller: TopicCreator,
        metadata: Metadata,
    ) -> None:
        self._config = config
        self._clock = clock
        self._prng = prng
        self._controller = controller
        self._metadata = metadata
        self._log = GroupStateLog(replica_manager, metadata, config.offsets_commit_timeout_ms, self._offsets_written)
        self._groups: GroupRegistry = {}
        self._tasks = SpawnedTasks("group coordinator")
        spawn = self._tasks.spawn
        self._classic = ClassicGroups(config, clock, self._log, self._groups, spawn)
        self._consumer = ConsumerGroups(config, clock, self._log, self._groups, metadata, self._classic, spawn)
        #: Offsets that producers commit in transactions.
        self.transactional = TransactionalOffsets(clock, self._log, self._groups, self._availability)
        self._loader = StateLoader(self._log, self._load_partition, self._begin_forgetting, spawn)
        #: Whether topics were deleted since the last scan of the groups' offsets, and the task that scans.
        self._is_to_forget = False
        self._forgetting: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Begin to load the partitions this broker leads; requests meanwhile get coordinator_load_in_progress."""
        self._metadata.subscribe(self._metadata_changed)
        self._loader.begin()
        self._tasks.spawn(self._expire_periodically())

    async def stop(self) -> None:
        """Refuse new writes, finish those under way, answer waiting requests; the groups remain in the log."""
        self._is_stopped = True
        self._loader.stop()
        # First: steps that groups have decided are still to be written.
        await self._classic.stop()
        await self._log.finish_writes()
        self._consumer.stop()
        await self._tasks.cancel()

    # ---- where a group is ----

    async def find(self, group_id: str) -> BrokerRegistration:
        """Return the broker that coordinates a group; create `__consumer_offsets` if it does not exist.

        Raises:
            KafkaError: coordinator_not_available.
        """
        if self._metadata.image.topic(OFFSETS_TOPIC) is None:
            await create_state_topic(self._controller, offsets_topic(self._config))
            self._loader.begin()
        # An empty log is loaded at once, so that the first client need not retry.
        if self._loader.is_busy:
            await asyncio.sleep(0)
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        leader = -1 if topic is None else topic.partitions[self._log.partition_of(group_id)].leader
        broker = image.brokers.get(leader)
        if broker is None:
            raise KafkaError(ErrorCode.coordinator_not_available, f"no broker leads the partition of group {group_id}")
        return broker

    async def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the partition of `__consumer_offsets` that holds a group's offsets.

        Raises:
            KafkaError: coordinator_not_available.
        """
        await self.find(group_id)
        return TopicPartition(OFFSETS_TOPIC, self._log.partition_of(group_id))

    # ---- membership ----

    async def join(self, group_id: str, request: Join) -> JoinResult:
        """Join the group's next generation. Return when all members have joined, or after the rebalance timeout.

        This method sets the token and the new member's id of `request`.
        """
        config = self._config
        error = self._availability(group_id)
        instance_or_client = request.group_instance_id or request.client_id
        names = (
            group_id,
            request.member_id,
            request.group_instance_id or "",
            request.client_id,
            request.protocol_type,
            *(name for name, _ in request.protocols),
        )
        if error is not ErrorCode.none:
            pass
        elif (
            not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            error = ErrorCode.invalid_session_timeout
        elif any(_is_too_long(name) for name in names):
            error = ErrorCode.invalid_request
        elif group_id not in self._groups and request.member_id != UNKNOWN_MEMBER_ID:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none:
            return JoinResult(request.member_id, error)

        def event(token: int) -> Join:
            new_member_id = f"{instance_or_client}-{UUID(int=self._prng.getrandbits(128), version=4)}"
            return replace(request, token=token, new_member_id=new_member_id)

        async def ask(group: AnyGroup | None) -> JoinResult | None:
            if not isinstance(group, ConsumerGroup):
                return await self._classic.join(group_id, group, event)
            try:
                if group.state.members:
                    return await self._consumer.classic_join(group, event(0))
                if request.member_id != UNKNOWN_MEMBER_ID:
                    return JoinResult(request.member_id, ErrorCode.unknown_member_id)
                await self._consumer.delete(group, with_offsets=False)
            except KafkaError as refusal:
                return JoinResult(UNKNOWN_MEMBER_ID, refusal.code)
            logger.info("group %s: an empty consumer group becomes a classic one", group_id)
            return None

        return await self._answered(group_id, ask, lambda error: JoinResult(request.member_id, error))

    async def sync(self, group_id: str, request: Sync) -> SyncResult:
        """Return a member's assignment, when the leader's is in the log. This method sets the token of `request`."""

        def event(token: int) -> Sync:
            return replace(request, token=token)

        async def ask(group: AnyGroup | None) -> SyncResult:
            if group is None:
                return SyncResult(ErrorCode.unknown_member_id)
            if isinstance(group, Group):
                return await self._classic.sync(group, event)
            try:
                return await self._consumer.classic_sync(group, event(0))
            except KafkaError as refusal:
                return SyncResult(refusal.code)

        return await self._answered(group_id, ask, SyncResult)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        """Extend a member's session; `rebalance_in_progress` makes the member rejoin."""
        error = self._availability(group_id)
        if error is ErrorCode.coordinator_load_in_progress:
            # No error while loading: the client could not act on it, and its session restarts after the load.
            return ErrorCode.none
        if error is not ErrorCode.none:
            return error
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        if isinstance(group, ConsumerGroup):
            return self._consumer.classic_heartbeat(group, member_id, group_instance_id, generation_id)
        return group.heartbeat(member_id, group_instance_id, generation_id, self._clock.monotonic_ms())

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members from their group; return one error code for each.

        Raises:
            KafkaError: an error of the whole request.
        """

        async def ask(group: AnyGroup | None) -> list[ErrorCode]:
            if group is None:
                return [ErrorCode.unknown_member_id] * len(members)
            if isinstance(group, Group):
                return self._classic.leave(group, members)
            return await self._consumer.classic_leave(group, members)

        def refuse(error: ErrorCode) -> list[ErrorCode]:
            raise KafkaError(error)

        return await self._answered(group_id, ask, refuse)

    async def _answered(
        self,
        group_id: str,
        ask: Callable[[AnyGroup | None], Awaitable[AnswerT | None]],
        refuse: Callable[[ErrorCode], AnswerT],
    ) -> AnswerT:
        """Pass a request to the present group, and again to its successor if it is replaced meanwhile.

        Args:
            ask: Passes the request; returns None or raises GroupReplacedError if the group was replaced.
            refuse: Makes the response if this broker does not coordinate the group.
        """
        while True:
            # Checked in each round: after the wait another broker may coordinate the group.
            if (error := self._availability(group_id)) is not ErrorCode.none:
                return refuse(error)
            try:
                answer = await ask(self._groups.get(group_id))
            except GroupReplacedError:
                continue
            if answer is not None:
                return answer

    async def consumer_heartbeat(
        self, group_id: str, beat: Heartbeat, is_visible: Callable[[str], bool] = lambda _: True
    ) -> HeartbeatResult:
        """Process a ConsumerGroupHeartbeat (KIP-848): a member joins, is alive or leaves, by its epoch.

        Args:
            is_visible: Whether the member may describe a topic; its regular expression matches no other topics.

        Raises:
            KafkaError: the error of the response.
        """
        error = self._availability(group_id)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        texts = (group_id, beat.member_id, beat.instance_id, beat.rack_id, beat.client_id, beat.topic_regex)
        if any(_is_too_long(text or "") for text in texts):
            raise KafkaError(ErrorCode.invalid_request, f"A name has at most {NAME_BYTES_MAX} bytes.")
        if beat.member_epoch < 0:
            return await self._consumer.leave(group_id, beat.member_id, beat.member_epoch, beat.instance_id)
        if not beat.member_id:
            beat = replace(beat, member_id=to_text(random_uuid(self._prng)))
        return await self._consumer.heartbeat(group_id, beat, is_visible)

    # ---- offsets ----

    async def await_load(self, group_id: str) -> None:
        """Wait a moment while a group is being loaded, for the requests whose errors applications are shown.

        librdkafka repeats a commit twice within 0.3 s, and then the application has the error: a load may last longer
        when its coordinator has just moved.

        Raises:
            KafkaError: not_coordinator.
        """
        await self._log.load_ended(group_id, LOAD_WAIT_S_MAX)

    async def commit_offsets(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        commits: Mapping[TopicPartition, CommittedOffset],
        api_version: int = _GROUP_NOT_FOUND_FROM,
    ) -> None:
        """Commit offsets, all or none. Return when they are in the log.

        Raises:
            KafkaError: the error of every partition of the request.
        """
        self._log.active_partition_of(group_id)
        group = self._groups.get(group_id)
        if group is not None:
            group.check_offset_commit(
                member_id, group_instance_id, generation_id, self._clock.monotonic_ms(), api_version=api_version
            )
        elif generation_id >= 0:
            is_told = api_version >= _GROUP_NOT_FOUND_FROM
            code = ErrorCode.group_id_not_found if is_told else ErrorCode.illegal_generation
            raise KafkaError(code, f"group {group_id} does not exist")
        elif _is_too_long(group_id):
            raise KafkaError(ErrorCode.invalid_group_id, f"a group id has at most {NAME_BYTES_MAX} bytes")
        if not commits:
            return
        await self._log.write_offsets(group_id, commits, self._clock.now_ms())

    def _offsets_written(self, group_id: str) -> None:
        if group_id not in self._groups:
            self._classic.add(group_id)

    def loaded_partition(self, group_id: str) -> TopicPartition:
        """Return the partition that has the offsets of a group; errors as of `committed`."""
        return TopicPartition(OFFSETS_TOPIC, self._log.active_partition_of(group_id))

    def committed(self, group_id: str, *, member_id: str | None = None, member_epoch: int = -1) -> GroupOffsets:
        """Return the committed offsets of a group; empty if the group does not exist.

        With its epoch, a member of a consumer group reads no offsets older than its assignment.

        Raises:
            KafkaError: not_coordinator, coordinator_load_in_progress, unknown_member_id or stale_member_epoch.
        """
        self._log.active_partition_of(group_id)
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_offset_fetch(member_id, member_epoch)
        return self._log.offsets.get(group_id) or GroupOffsets()

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets of topics to which the group is not subscribed.

        Raises:
            KafkaError: group_id_not_found, non_empty_group, or the error of the log.
        """
        self._log.active_partition_of(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id} does not exist")
        is_empty = _is_empty(group)
        if not is_empty and group.protocol_type != PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.non_empty_group, f"group {group_id} has members")
        errors = {
            key: ErrorCode.group_subscribed_to_topic
            if not is_empty and group.is_subscribed_to(key.topic)
            else ErrorCode.none
            for key in partitions
        }
        offsets = self.committed(group_id)
        removed = [
            key
            for key, error in errors.items()
            if error is ErrorCode.none and (key in offsets or self._log.pending.has(group_id, key))
        ]
        if removed:
            await self._log.to_its_end(self._log.write_tombstones(group_id, removed, self._clock.now_ms()))
        return errors

    # ---- administration ----

    def group(self, group_id: str) -> AnyGroup | None:
        """Return a group, for reading.

        A consumer group is shown as it is committed. Of a classic group all that members agree on between generations
        is shown before: as in Kafka, the coordinator alone knows it, and a later one asks the members to join again.

        Raises:
            KafkaError: not_coordinator or coordinator_load_in_progress.
        """
        self._log.active_partition_of(group_id)
        return self._consumer.as_written(self._groups.get(group_id))

    def groups(self) -> list[AnyGroup]:
        """Return all groups that this broker coordinates, for reading.

        Raises:
            KafkaError: coordinator_load_in_progress: some are missing.
        """
        self._log.check_all_loaded()
        return self.loaded_groups()

    def loaded_groups(self) -> list[AnyGroup]:
        """Return the groups of the partitions that are loaded, for metrics: one may wait for its ISR, however long."""
        written = (self._consumer.as_written(group) for group in self._groups.values())
        return [group for group in written if group is not None]

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets; completes even if the caller is cancelled.

        Raises:
            KafkaError: group_id_not_found, non_empty_group, or the error of the log.
        """
        await self._log.to_its_end(self._delete_group(group_id))

    async def _delete_group(self, group_id: str, *, if_unused: bool = False) -> None:
        while True:
            await self._classic.written(group_id)
            # Otherwise commits under way would outlive the group.
            await self._log.written(group_id)
            self._log.active_partition_of(group_id)
            group = self._groups.get(group_id)
            if group is None:
                raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id} does not exist")
            if if_unused and not self._is_unused(group):
                return  # the offsets committed meanwhile are in use
            if isinstance(group, ConsumerGroup):
                try:
                    await self._consumer.delete(group, with_offsets=True, if_unused=if_unused)
                except GroupReplacedError:
                    continue
            else:
                await self._delete_classic(group)
            logger.info("group %s: deleted", group_id)
            return

    async def _delete_classic(self, group: Group) -> None:
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.non_empty_group, f"group {group.group_id} has members")
        now_ms = self._clock.now_ms()
        offsets = self._log.partitions_of(group.group_id)

        def removed() -> None:
            if self._groups.get(group.group_id) is group and not group.members:  # no member has joined meanwhile
                self._classic.remove(group)

        await self._log.write_tombstones(group.group_id, offsets, now_ms, with_group=True, applied=removed)

    # ---- loading, expiry, changes of metadata ----

    def leadership_changed(self) -> None:
        """Load partitions that this broker leads, and resign lost ones. Also called when missing logs are created."""
        lost = set(self._log.lost_partitions())
        for partition in sorted(lost):
            logger.info("%s-%d: this broker coordinates its groups no longer", OFFSETS_TOPIC, partition)
        if lost:
            self._log.resign(lost)
            for group in list(self._groups.values()):
                if self._log.partition_of(group.group_id) in lost:
                    self._remove(group)
        self._loader.begin()

    def _remove(self, group: AnyGroup) -> None:
        """Remove a group that this broker no longer coordinates; waiting requests get not_coordinator."""
        if isinstance(group, ConsumerGroup):
            self._consumer.remove(group)
        else:
            self._classic.remove(group)

    async def _load_partition(self, partition: int) -> Wait | None:
        spawn = self._tasks.spawn
        return await load_groups(partition, self._log, self._groups, self._classic, self._consumer, spawn)

    def _begin_forgetting(self) -> None:
        """Scan for offsets of deleted topics; restart a scan under way."""
        self._is_to_forget = True
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = self._tasks.spawn(self._forget_missing_topics())

    async def _forget_missing_topics(self) -> None:
        """Delete offsets of deleted topics: a new topic of the same name must not inherit them."""
        turns = Turns()
        while self._is_to_forget:
            self._is_to_forget = False
            # A commit for a deleted topic may be in the log and not yet applied.
            if not await self._log.written_so_far():
                self._is_to_forget = True
            for group_id in {*self._log.offsets, *self._log.pending.groups()}:
                await self._forget(group_id, functools.partial(self._of_missing_topics, group_id), "of deleted topics")
                await turns.step()

    def _of_missing_topics(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions whose commits, including those of open transactions, all belong to a deleted topic."""
        held = list((self._log.offsets.get(group_id) or GroupOffsets()).items())
        if self._log.pending.of_group(group_id):
            held += [(each.topic_partition, each.committed) for each in self._log.pending if each.group_id == group_id]
        return of_missing_topics(held, self._metadata.image)

    async def _forget(self, group_id: str, find: Callable[[], Sequence[TopicPartition]], why: str) -> None:
        """Write tombstones for the offsets that `find` returns.

        `find` is called again before each batch, when no write of the group is under way: a commit written meanwhile
        precedes the tombstone in the log, and the tombstone must not delete it.
        """
        count = 0
        try:
            while find():
                await self._log.written(group_id)
                if removed := find()[:TOMBSTONES_PER_BATCH]:
                    writing = self._log.write_tombstones(group_id, removed, self._clock.now_ms())
                    await self._log.to_its_end(writing)
                    count += len(removed)
        except KafkaError as error:
            logger.warning("group %s: committed offsets %s are not forgotten yet: %s", group_id, why, error)
        if count:
            logger.info("group %s: forgot %d committed offsets %s", group_id, count, why)

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Delete offsets past offsets.retention.minutes, and groups without members and offsets."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        turns = Turns()
        for group_id in list(self._groups):
            await turns.step()
            find = functools.partial(self._expired, group_id, retention_ms)
            await self._forget(group_id, find, f"after {retention_ms} ms without use")
            group = self._groups.get(group_id)
            if group is not None and self._is_unused(group):
                try:
                    await self._log.to_its_end(self._delete_group(group_id, if_unused=True))
                except KafkaError as error:
                    logger.info("group %s: not removed: %s", group_id, error)

    def _expired(self, group_id: str, retention_ms: int) -> list[TopicPartition]:
        group, offsets = self._groups.get(group_id), self._log.offsets.get(group_id)
        if group is None or offsets is None:
            return []
        expired = expired_offsets(group, offsets, self._clock.now_ms(), retention_ms)
        # An offset that an open transaction is about to replace remains until its end (KAFKA-13636).
        return [key for key in expired if not self._log.pending.has(group_id, key)]

    def _is_unused(self, group: AnyGroup) -> bool:
        """Whether a group has no members, no offsets and no expected member."""
        is_expected = isinstance(group, Group) and bool(group.pending_joins)
        return _is_empty(group) and not is_expected and not self._log.partitions_of(group.group_id)

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if delta.created or delta.deleted or delta.changed:
            self._consumer.topics_changed()
        if any(topic.name == OFFSETS_TOPIC for topic in delta.deleted):
            logger.warning("%s was deleted: all groups and committed offsets are gone", OFFSETS_TOPIC)
            self._log.forget_all()
            for group in list(self._groups.values()):
                self._remove(group)
        elif delta.deleted:
            self._begin_forgetting()
        if any(topic.name == OFFSETS_TOPIC for topic in (*delta.created, *delta.changed)):
            # After all subscribers: the replica manager may still have to create the logs.
            asyncio.get_running_loop().call_soon(self.leadership_changed)

    # ---- small parts ----

    def _availability(self, group_id: str) -> ErrorCode:
        """Return the reason why this broker cannot serve the group, or `none`."""
        if not group_id:
            return ErrorCode.invalid_group_id
        if self._is_stopped:
            return ErrorCode.coordinator_not_available
        try:
            self._log.active_partition_of(group_id)
        except KafkaError as error:
            return error.code
        return ErrorCode.none


def _is_empty(group: AnyGroup) -> bool:
    """Whether a group has no members, and no member is joining."""
    if isinstance(group, ConsumerGroup):
        return group.state.phase is ConsumerGroupState.EMPTY
    return group.state is GroupState.EMPTY


def _is_too_long(text: str) -> bool:
    return len(text) * 4 > NAME_BYTES_MAX and len(text.encode()) > NAME_BYTES_MAX
