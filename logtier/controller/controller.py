"""The controller: runs one command at a time; `state` decides, the store is written, the follower applies it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from headwater.logtier.config import BrokerConfig, Endpoint
from headwater.logtier.controller.acl_state import AclDeletion, plan_create_acls, plan_delete_acls
from headwater.logtier.controller.admissions import Admissions, plan_levels
from headwater.logtier.controller.alter_partition import AlterationResult, PartitionAlteration, plan_alter_partitions
from headwater.logtier.controller.broker_turnover import plan_turnover
from headwater.logtier.controller.commands import (
    ConfigChange,
    ConfigResult,
    DeleteResult,
    NewPartitions,
    NewTopic,
    TopicResult,
    refused_result,
)
from headwater.logtier.controller.config_state import min_isr_after, plan_alter_configs, plan_common_min_isr
from headwater.logtier.controller.elections import (
    plan_hand_overs,
    plan_lower_min_isr,
    plan_preferred_elections,
)
from headwater.logtier.controller.feature_state import FeatureUpdate
from headwater.logtier.controller.leader_elections import LeaderElectionResult, plan_elect_leaders, plan_giving_way
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.controller.office import applied_in_office, fenced, leave_office, take_office
from headwater.logtier.controller.producer_ids import PRODUCER_IDS_PER_BLOCK, ProducerIds, plan_block
from headwater.logtier.controller.quota_state import QuotaAlteration, plan_alter_quotas
from headwater.logtier.controller.reassignments import ReassignmentResult, WantedReplicas, plan_reassignments
from headwater.logtier.controller.refusals import CommandError, Refusals
from headwater.logtier.controller.registered_brokers import check_broker_epoch, plan_unregistration, registered_brokers
from headwater.logtier.controller.replica_directories import ReplicaDirectory, plan_assign_directories
from headwater.logtier.controller.scram_state import ScramDeletion, ScramResult, ScramUpsertion, plan_alter_scram
from headwater.logtier.controller.state import (
    CountMutations,
    Plan,
    fresh_topic_id,
    plan_create_partitions,
    plan_create_topics,
    plan_delete_topics,
    unlimited,
)
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.store import (
    ANY_VERSION,
    MULTI_BYTES_MAX,
    Check,
    MetadataStoreError,
    Operation,
    SessionState,
    StoreUnavailableError,
    split_operations,
)
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.features import SUPPORTED_FEATURES, beyond
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.security.acls import AclBinding, AclFilter

log = logging.getLogger(__name__)

Result = TypeVar("Result")

COMMANDS_QUEUED_MAX: Final = 1000
"""Maximum number of waiting commands; further ones are rejected, and clients retry."""

PART_BYTES_MAX: Final = MULTI_BYTES_MAX // 2 - 16_384
"""Operations of one change: the list repeats them in the same transaction."""


class Controller:
    """The broker that changes metadata. It only writes: the follower builds the image from what is written.

    Invariants: commands run one after the other, each on the image of the previous one; every write to the store is
    fenced by the version of `/controller_epoch` (KAFKA-6082); a command that has returned is durable and is in this
    broker's MetadataCache, whose subscribers have processed it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        prng: random.Random,
        store: OrderedMetadataStore,
        follower: MetadataFollower,
    ) -> None:
        self._config = config
        self._clock = clock
        self._prng = prng
        self._store = store
        self._follower = follower
        self._cache = follower.cache
        self._refusals = Refusals()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._commands: set[asyncio.Task[Any]] = set()
        self._epoch = 0
        self._epoch_version = ANY_VERSION
        self._elected = False
        self._depositions = 0
        #: Set when this broker was deposed since the running command began: what it planned held for that office only.
        self._deposed = asyncio.Event()
        #: Whether the running command has written, which proves that this broker is the controller.
        self._has_written = False
        #: Epochs of the brokers that want to shut down: they are not elected, and join no ISR (KIP-841).
        self._shutting_down: dict[int, int] = {}
        self._admissions = Admissions()
        self.producer_ids = ProducerIds(self.allocate_producer_ids)

    @property
    def epoch(self) -> int:
        """The controller epoch: the number of controllers so far, including this one."""
        return self._epoch

    @property
    def cluster_id(self) -> str:
        """The id of the cluster whose metadata this broker follows."""
        return self._cache.image.cluster_id

    @property
    def metadata_end_offset(self) -> int:
        """The offset of the next change of metadata: the number of durable changes since the cluster began."""
        return self._store.end_offset

    @property
    def is_active(self) -> bool:
        """Whether this broker is controller, as far as it knows; the fence of each write decides."""
        return self._elected

    async def start(self) -> None:
        """Become controller of a store that only this broker uses.

        Raises:
            StoreUnavailableError: Another broker is controller.
        """
        if not await self.elect():
            raise StoreUnavailableError(paths.CONTROLLER, "another broker is controller of this cluster")

    async def elect(self) -> bool:
        """Try to become controller; return whether this broker is. The follower must have started.

        The epoch of the new controller fences the writes of all earlier ones in the same transaction that makes it
        controller (KAFKA-6082).
        """
        depositions = self._depositions
        controller = paths.encode_controller(self._config.node_id, self._clock.now_ms())
        office = await take_office(self._store, self._follower, controller)
        if office is None or self._depositions != depositions:
            return False  # another broker is controller, or the session was suspended meanwhile
        if beyond(SUPPORTED_FEATURES, self._cache.image.features) is not None:
            # The levels were raised while this broker started: it stops, and must not write in an earlier form.
            await leave_office(self._store, office[1])
            return False
        self._epoch, self._epoch_version = office
        self._elected = True
        return True

    def depose(self) -> None:
        """Stop acting as controller: the session is suspended or over, or another broker was elected."""
        self._elected = False
        self._depositions += 1
        self._deposed.set()

    async def stop(self) -> None:
        """Finish the running command and resign; the store stays open."""
        async with self._turn:
            if not self._elected:
                return
            self._elected = False
            await leave_office(self._store, self._epoch_version)

    async def register_broker(
        self, broker_id: int, host: str, port: int, rack: str | None = None, endpoints: Sequence[Endpoint] = ()
    ) -> None:
        """Register a live broker with its addresses, or update them.

        Leaders of its partitions are elected anew if it was away: their leader epochs grow with every start, and a
        consumer whose position was cut off by a power loss detects by them that the log has other records there
        (KIP-320).
        """

        async def register() -> None:
            path = paths.broker_path(broker_id)
            data = paths.encode_broker(host, port, rack, endpoints)
            if await self._store.exists(path):
                await self._store.set(path, data)
            else:
                await self._store.create(path, data, ephemeral=True)
            try:
                await self._update_brokers()
            except OSError as error:
                # The broker is registered and serves its other partitions; its replica manager tries again.
                log.error("broker %d begins with partitions without a log: %s", broker_id, error)

        await self._command(register)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that is away and will not return. Its replicas stay assigned.

        Raises:
            KafkaError: broker_id_not_registered; invalid_request, if the broker runs; not_controller.
        """

        async def unregister() -> None:
            is_registered = await self._store.exists(paths.broker_path(broker_id))
            await self._write(plan_unregistration(self._cache.image, broker_id, is_registered=is_registered))
            log.info("broker %d is unregistered", broker_id)

        await self._command(unregister)

    async def update_brokers(self) -> None:
        """Bring the known brokers and the leaders of partitions in line with the registrations and the configs."""
        await self._command(self._update_brokers)

    async def elect_preferred_leaders(self) -> None:
        """Give leaderships back to preferred replicas, which lost them while they were away."""

        async def elect() -> None:
            await self._write_in_parts(plan_preferred_elections(self._cache.image, self._live(), self._min_isr))

        await self._command(elect)

    async def _update_brokers(self) -> None:
        await self._write_in_parts(plan_common_min_isr(self._cache.image, self._cache.static_config))
        registered = await registered_brokers(self._store, self._cache.image.registrations)
        registered = self._admissions.admitted(registered, self._cache.image.features)
        turnover = plan_turnover(
            lambda: self._cache.image, registered, self._shutting_down, self._min_isr, self._allows_unclean
        )
        for plan in turnover:
            await self._write_in_parts(plan)

    def _live(self) -> LiveBrokers:
        """The brokers that may lead, as they are now."""
        return LiveBrokers(self._cache.image, self._shutting_down)

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Change finalized feature levels, all or none; KafkaError (invalid_update_version, not_controller)."""

        async def update() -> None:
            operations = await plan_levels(self._store, self._cache.image, self._config.node_id, updates)
            if operations and not validate_only:
                await self._write(operations)
                await self._update_brokers()  # some may be admitted now

        await self._command(update)

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        count_mutations: CountMutations = unlimited,
    ) -> list[TopicResult]:
        """Create topics, each accepted or rejected separately; one result for each name."""
        return await self._planned(
            lambda image: plan_create_topics(
                image,
                self._live(),
                self._cache.config,
                topics,
                lambda: fresh_topic_id(image, lambda: uuids.random_uuid(self._prng)),
                self._prng.randrange,
                count_mutations,
            ),
            lambda error: [TopicResult(name, error) for name in dict.fromkeys(topic.name for topic in topics)],
            validate_only=validate_only,
        )

    async def delete_topics(
        self, topics: Sequence[str | UUID], *, count_mutations: CountMutations = unlimited
    ) -> list[DeleteResult]:
        """Delete topics by name or id; one result for each topic."""
        return await self._planned(
            lambda image: plan_delete_topics(image, self._cache.config, topics, self._clock.now_ms(), count_mutations),
            lambda error: [
                DeleteResult(topic, None, error) if isinstance(topic, str) else DeleteResult(None, topic, error)
                for topic in dict.fromkeys(topics)
            ],
        )

    async def create_partitions(
        self,
        requests: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        count_mutations: CountMutations = unlimited,
    ) -> list[TopicResult]:
        """Add partitions to topics; one result for each name."""
        return await self._planned(
            lambda image: plan_create_partitions(image, self._live(), requests, self._prng.randrange, count_mutations),
            lambda error: [TopicResult(name, error) for name in dict.fromkeys(request.name for request in requests)],
            validate_only=validate_only,
        )

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        """Change configs of topics, brokers and groups; one result for each resource.

        A lower min.insync.replicas first empties the ELRs that it ends. If the change fails after that, fewer replicas
        than possible are eligible leaders until the ISRs change.
        """
        static_config = self._cache.static_config
        return await self._planned(
            lambda image: plan_alter_configs(image, static_config, changes),
            lambda error: [
                ConfigResult(resource_type, resource_name, error)
                for resource_type, resource_name in dict.fromkeys(
                    (change.resource_type, change.resource_name) for change in changes
                )
            ],
            validate_only=validate_only,
            before=lambda image, operations: plan_lower_min_isr(image, min_isr_after(image, static_config, operations)),
        )

    async def alter_scram_credentials(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> list[ScramResult]:
        """Change credentials of users; one result for each user."""
        return await self._planned(
            lambda image: plan_alter_scram(image, deletions, upsertions),
            lambda error: [
                ScramResult(user, error)
                for user in dict.fromkeys([*(one.user for one in deletions), *(one.user for one in upsertions)])
            ],
        )

    async def create_acls(self, bindings: Sequence[AclBinding]) -> list[KafkaError | None]:
        """Create access control lists, each accepted or rejected separately; an error or None for each binding."""
        return await self._planned(
            lambda image: plan_create_acls(image, bindings), lambda error: [error for _ in bindings]
        )

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclDeletion]:
        """Delete the access control lists that match filters; one result for each filter."""
        return await self._planned(
            lambda image: plan_delete_acls(image, filters), lambda error: [AclDeletion(error=error) for _ in filters]
        )

    async def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change client quotas, each entity separately; an error or None for each."""
        return await self._planned(
            lambda image: plan_alter_quotas(image, alterations),
            lambda error: [error for _ in alterations],
            validate_only=validate_only,
        )

    async def alter_partitions(
        self, sender: int, broker_epoch: int, alterations: Sequence[PartitionAlteration]
    ) -> list[AlterationResult]:
        """Change ISRs of partitions as their leader asks; one result for each alteration, in the same order.

        Raises:
            KafkaError: not_controller; stale_broker_epoch, if the sender is not the broker that is registered.
        """

        async def alter() -> list[AlterationResult]:
            image = self._cache.image
            check_broker_epoch(image, sender, broker_epoch)
            # A leader that shuts down still takes replicas into the ISR: one of them is to take over.
            others = {broker: epoch for broker, epoch in self._shutting_down.items() if broker != sender}
            members = LiveBrokers(image, others)
            plan = plan_alter_partitions(image, sender, alterations, self._min_isr, members)
            await self._write_in_parts(plan.operations)
            topic_ids = {each.topic_id for each in alterations}
            await self._write_in_parts(plan_hand_overs(self._cache.image, self._live(), self._min_isr, topic_ids))
            return plan.results

        return await self._command(alter)

    async def elect_leaders(
        self, asked: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> list[LeaderElectionResult]:
        """Elect preferred leaders, or any replica where there is no leader; None asks for all partitions.

        Raises:
            KafkaError: not_controller, or the error of the store.
        """

        async def elect() -> list[LeaderElectionResult]:
            plan = plan_elect_leaders(self._cache.image, asked, self._min_isr, self._live(), is_unclean=is_unclean)
            await self._write_in_parts(plan.operations)
            return plan.results

        return await self._command(elect)

    async def alter_reassignments(
        self, asked: Sequence[WantedReplicas], *, may_change_factor: bool = True
    ) -> list[ReassignmentResult]:
        """Begin, replace or cancel reassignments; one result for each partition; KafkaError (not_controller)."""

        async def alter() -> list[ReassignmentResult]:
            image = self._cache.image
            plan = plan_reassignments(image, asked, self._min_isr, self._live(), may_change_factor=may_change_factor)
            await self._write_in_parts(plan.operations)
            return plan.results

        return await self._command(alter)

    async def broker_heartbeat(self, broker_id: int, broker_epoch: int, *, wants_shutdown: bool) -> bool:
        """Move the leaderships of a broker that wants to shut down to others; return whether it may stop.

        It may as soon as no other replica can take over any more: a replica that is alive may still catch up.

        Raises:
            KafkaError: not_controller, stale_broker_epoch.
        """

        async def move() -> bool:
            image = self._cache.image
            check_broker_epoch(image, broker_id, broker_epoch)
            if not wants_shutdown:
                self._shutting_down.pop(broker_id, None)
                await self._update_brokers()  # Its registration has another state of its log folders.
                return False
            if self._shutting_down.get(broker_id) != broker_epoch:
                log.info("broker %d of epoch %d shuts down", broker_id, broker_epoch)
            self._shutting_down[broker_id] = broker_epoch
            plan = plan_giving_way(image, broker_id, self._min_isr, self._live())
            await self._write_in_parts(plan.operations)
            return not any(plan.results)

        return await self._command(move)

    async def assign_directories(
        self, sender: int, broker_epoch: int, places: Sequence[ReplicaDirectory]
    ) -> list[ErrorCode]:
        """Note in which log folders the replicas of a broker are; KafkaError (not_controller, stale_broker_epoch)."""

        async def assign() -> list[ErrorCode]:
            check_broker_epoch(self._cache.image, sender, broker_epoch)
            plan = plan_assign_directories(self._cache.image, sender, places, self._min_isr, self._live())
            await self._write_in_parts(plan.operations)
            return plan.results

        return await self._command(assign)

    async def allocate_producer_ids(self, count: int = PRODUCER_IDS_PER_BLOCK) -> range:
        """Return a durably allocated block of producer ids for this broker, which overlaps no other block."""
        return await self._command(lambda: self._allocate(count, self._config.node_id))

    async def allocate_producer_ids_of(self, broker_id: int, broker_epoch: int) -> range:
        """Return a block for another broker, as `allocate_producer_ids`.

        Raises:
            KafkaError: not_controller, stale_broker_epoch.
        """

        async def allocate() -> range:
            check_broker_epoch(self._cache.image, broker_id, broker_epoch)
            return await self._allocate(PRODUCER_IDS_PER_BLOCK, broker_id)

        return await self._command(allocate)

    async def _allocate(self, count: int, broker_id: int) -> range:
        (node,) = await self._store.get_many([paths.PRODUCER_ID_BLOCK])
        block, allocation = plan_block(node, count, broker_id)
        await self._write([allocation])
        return block

    def _min_isr(self, topic: TopicImage) -> int:
        return self._cache.topic_config(topic).min_insync_replicas

    def _allows_unclean(self, topic: TopicImage) -> bool:
        return self._cache.topic_config(topic).unclean_leader_election_enable

    async def _planned(
        self,
        decide: Callable[[MetadataImage], Plan[Result]],
        refuse: Callable[[KafkaError], list[Result]],
        *,
        validate_only: bool = False,
        before: Callable[[MetadataImage, Sequence[Operation]], Sequence[Operation]] | None = None,
    ) -> list[Result]:
        """Decide and execute; an error of the whole command becomes the error of each of its parts.

        Args:
            before: Returns what must take effect before the operations, in as many changes as it takes.
        """

        async def execute() -> list[Result]:
            plan = decide(self._cache.image)
            if plan.operations and not validate_only:
                if before is not None:
                    await self._write_in_parts(before(self._cache.image, plan.operations))
                return await self._write_results(plan)
            return plan.results

        try:
            return await self._command(execute)
        except KafkaError as error:
            return refuse(error)

    async def _command(self, run: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run a command in its turn, to its end even if the caller is cancelled."""
        if self._waiting >= COMMANDS_QUEUED_MAX:
            raise KafkaError(ErrorCode.request_timed_out, "Too many metadata changes are waiting; retry later.")
        command = asyncio.ensure_future(self._in_turn(run))
        self._commands.add(command)
        command.add_done_callback(self._ended)
        return await asyncio.shield(command)

    def _ended(self, command: asyncio.Task[Any]) -> None:
        self._commands.discard(command)
        if not command.cancelled():
            command.exception()  # the caller has it, or is gone

    async def _in_turn(self, run: Callable[[], Awaitable[Result]]) -> Result:
        self._waiting += 1
        try:
            async with self._turn:
                if not self._elected:
                    raise KafkaError(ErrorCode.not_controller, "This broker is not the controller.")
                self._deposed.clear()
                self._has_written = False
                try:
                    result = await run()
                finally:
                    await self._check_office()
                self._refusals.succeeded()
                return result
        except (OSError, MetadataStoreError, paths.CorruptNodeError) as error:
            raise self._refusal(error) from error
        finally:
            self._waiting -= 1

    async def _check_office(self) -> None:
        """Check that this broker is the controller, before a command that wrote nothing is answered.

        Its image may be old: it may be cut off from the metadata store, and another broker is controller.
        """
        if self._has_written or self._config.zookeeper_connect is None:
            return
        await fenced(self._store.multi([self._fence()]), self.depose)

    def _fence(self) -> Check:
        """Return the check that fails in the store if another broker was elected; KafkaError if it may have been."""
        if self._deposed.is_set():
            # Even if this broker has been elected again: another one may have changed what the command planned with.
            raise KafkaError(ErrorCode.not_controller, "This broker was not the controller all the time.")
        return Check(paths.CONTROLLER_EPOCH, self._epoch_version)

    def _refusal(self, error: CommandError) -> KafkaError:
        is_deposed = self._store.state is not SessionState.CONNECTED or self._deposed.is_set()
        return self._refusals.refusal(error, is_deposed=is_deposed)

    async def _write_results(self, plan: Plan[Result]) -> list[Result]:
        """Execute a plan, results that do not fit into one change in several; return what has become of each.

        An error in the first change is that of the whole command. A later one is the error of the results that are not
        done: those before are durable, and every broker has them.
        """
        done = 0
        for end, operations in plan.parts(PART_BYTES_MAX):
            try:
                await self._write(operations)
            except (KafkaError, OSError, MetadataStoreError, paths.CorruptNodeError) as error:
                if not done:
                    raise
                refusal = self._refusal(error)
                return [*plan.results[:done], *(refused_result(result, refusal) for result in plan.results[done:])]
            done = end
        return plan.results

    async def _write_in_parts(self, operations: Sequence[Operation]) -> None:
        """Execute operations that may take effect one by one, as many at once as one change can hold."""
        for part in split_operations(operations, PART_BYTES_MAX):
            await self._write(part)

    async def _write(self, operations: Sequence[Operation]) -> None:
        """Execute operations, fenced, and wait until this broker has applied them."""
        number = await fenced(self._store.append([self._fence(), *operations]), self.depose)
        self._has_written = True
        await applied_in_office(self._follower, number, self._deposed)


__all__ = ["ConfigChange", "ConfigResult", "Controller", "DeleteResult", "NewPartitions", "NewTopic", "TopicResult"]
