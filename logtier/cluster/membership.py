"""This broker as a member of its cluster: registered, and ready to be controller."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headwater.logtier.cluster.leader_balance import LeaderBalance
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.controller_election import ControllerElection
from headwater.logtier.controller.registration import BrokerAddresses, BrokerRegistrar
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataDelta, TopicImage
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.features import (
    FinalizedFeatures,
    UnsupportedFeaturesError,
    check_supported,
    registered_ranges,
)

log = logging.getLogger(__name__)

LEAVE_S: Final = 5.0
"""Maximum time for each step of leaving: a store that does not answer must not hold up a stop. The end of the session,
or its expiry, does the same."""


class ClusterMembership:
    """The registration of this broker and its candidacy for controller, from `join` to `leave`.

    Invariant: a broker is registered and stands for controller only between the two. Its listeners are bound all the
    time: requests wait until the broker serves, and are answered until others have taken over.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: OrderedMetadataStore,
        follower: MetadataFollower,
        controller: Controller,
        addresses: BrokerAddresses,
        process: BrokerProcess,
        on_failure: Callable[[str], None],
    ) -> None:
        """`on_failure` is called with the reason when this broker must stop: its id or its release is refused."""
        self._follower = follower
        self._controller = controller
        self._broker_id = config.node_id
        self._election = ControllerElection(store, controller)
        self._registrar = BrokerRegistrar(
            store,
            follower,
            config.node_id,
            addresses,
            config.zookeeper_session_timeout_ms / 1000,
            process,
            on_failure,
        )
        self._balance = LeaderBalance(controller, config.leader_imbalance_check_interval_seconds)
        self._balances = config.auto_leader_rebalance_enable
        self._previous_epoch = process.previous_epoch
        self._features = registered_ranges(process.features)
        self._on_failure = on_failure
        self._has_left = False
        follower.cache.subscribe(self._metadata_changed)

    @property
    def broker_epoch(self) -> int:
        """The epoch of this process's last registration, -1 before the first."""
        return self._registrar.epoch

    @property
    def session_id(self) -> int:
        """The session of the last registration, 0 before the first."""
        return self._registrar.session_id

    def on_registration(self, made: Callable[[], None], cluster_gone: Callable[[], None]) -> None:
        """Call `made` after each further registration, and `cluster_gone` when there is no cluster to register in."""
        self._registrar.on_registered = made
        self._registrar.on_cluster_gone = cluster_gone

    @property
    def epoch_at_close(self) -> int:
        """The broker epoch for the clean-stop marker: that of the last registration, else that of the stop before.

        A start that did not come to a registration has changed no log.
        """
        return self._previous_epoch if self._registrar.epoch == -1 else self._registrar.epoch

    async def join(self) -> None:
        """Stand for controller, register, and wait until this broker's image has the registration.

        Raises:
            BrokerIdInUseError: Another broker has the id.
            MetadataStoreError: The store is not available.
        """
        await self._election.start()
        await self._registrar.start()
        if self._balances:
            self._balance.start()

    async def update_folders(self, online: tuple[str, ...], full: tuple[str, ...]) -> None:
        """Register the state of the log folders in the same broker epoch; MetadataStoreError."""
        await self._registrar.update_folders(online, full)

    async def leave(self) -> None:
        """Remove the registration and resign, so that other brokers take over at once; a second call does nothing."""
        if self._has_left:
            return
        self._has_left = True
        await self._balance.stop()
        await _in_time(self._registrar.stop)
        await _in_time(self._election.stop)
        await _in_time(self._controller.stop)

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        """A config may allow an unclean election that none of the brokers' comings and goings asks for."""
        if delta.new.features != delta.old.features:
            self._check_features(delta.new.features)
        if self._controller.is_active and any(self._awaits_unclean_election(topic) for topic in delta.changed):
            self._election.look_again()

    def _check_features(self, finalized: FinalizedFeatures) -> None:
        """Stop if the levels were raised beyond this release while it registered: the controller knew nothing of it."""
        try:
            check_supported(self._features, finalized)
        except UnsupportedFeaturesError as error:
            log.error("%s", error)
            self._on_failure(str(error))

    def _awaits_unclean_election(self, topic: TopicImage) -> bool:
        """Whether a topic has a partition without a leader, and allows another replica to lead."""
        config = self._follower.cache.topic_config(topic)
        return config.unclean_leader_election_enable and any(each.leader == NO_BROKER for each in topic.partitions)


async def _in_time(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.timeout(LEAVE_S):
            await step()
    except TimeoutError:
        log.warning("the metadata store does not answer: the cluster learns of the stop by the end of the session")
