"""All fetches of this broker as a follower."""

from collections.abc import Callable, Iterable

from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta, TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.fetching.followed_partition import FetchLimits, FollowedPartition, fetch_limits
from headwater.logtier.replication.fetching.follower_logs import FollowerLogs
from headwater.logtier.replication.fetching.leader_fetcher import FollowerIdentity, LeaderFetcher
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

_FetcherKey = tuple[int, Purpose]


class ReplicaFetchers:
    """Fetches each partition that this broker follows from its leader; called from the event loop only.

    Replicas in the ISR and those that catch up have connections of their own: a replica far behind fills its answers,
    and those of a replica in sync, for which producers wait, must not queue behind them.

    A request of those in sync may wait at the leader, and what joins them meanwhile is not in it: a producer with
    acks=all would wait for its end. Until the next request the other connection asks for what joins.

    Invariant: after `metadata_changed`, each partition that the image assigns to this broker with another leader is
    with the fetcher of that leader and purpose, in that leader epoch, and until that one asks for it perhaps with the
    leader's other one as well; no other partition is with any.
    """

    def __init__(
        self,
        broker_id: int,
        peers: Peers,
        replica_manager: ReplicaManager,
        metadata: MetadataCache,
        clock: Clock,
        broker_epoch: Callable[[], int],
        config: Callable[[], BrokerConfig],
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's present registration."""
        self._broker_id = broker_id
        self._identity = FollowerIdentity(broker_id, broker_epoch)
        self._peers = peers
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._throttle = replica_manager.throttles.follower
        self._logs = FollowerLogs(replica_manager, clock, lambda: self._limits().backoff_ms, self._settled)
        self._fetchers: dict[_FetcherKey, LeaderFetcher] = {}
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._closing = SpawnedTasks("replica fetchers")
        self._is_started = False

    def _limits(self) -> FetchLimits:
        return fetch_limits(self._config())

    def start(self) -> None:
        """Follow the leaders of the present image; its replicas are there already."""
        self._is_started = True
        for topic in self._metadata.image.topics.values():
            self._follow(topic)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Follow other leaders after a change of the metadata, which the replica manager has applied."""
        if not self._is_started:
            return
        for topic in delta.deleted:
            self._unfollow(TopicPartition(topic.name, index) for index in range(len(topic.partitions)))
        for topic in (*delta.created, *delta.changed):
            self._follow(topic)
        if delta.new.brokers is not delta.old.brokers:
            self._follow_brokers(delta)

    async def aclose(self) -> None:
        """Stop all fetches."""
        self._is_started = False
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._followed.clear()
        for fetcher in fetchers:
            await fetcher.aclose()
        await self._closing.cancel()
        await self._logs.aclose()

    def _follow(self, topic: TopicImage) -> None:
        for index, state in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            if self._broker_id not in state.replicas or state.leader in (self._broker_id, NO_BROKER):
                if key in self._followed:
                    self._unfollow((key,))
                continue
            is_in_sync = self._broker_id in state.isr
            before = self._followed.get(key)
            if (
                before is not None
                and before.leader_epoch == state.leader_epoch
                and before.leader_id == state.leader
                and before.is_in_sync == is_in_sync
            ):
                continue
            followed = FollowedPartition(key, topic.topic_id, state.leader, state.leader_epoch, is_in_sync)
            fetcher = self._fetcher(state.leader, _purpose_of(followed))
            if not is_in_sync or not fetcher.is_asking:
                self._unfollow((key,))
                fetcher.follow(followed)
            else:
                self._follow_at_once(followed, fetcher)
            self._followed[key] = followed

    def _follow_at_once(self, followed: FollowedPartition, fetcher: LeaderFetcher) -> None:
        """Follow a partition that joins those in sync over the other connection until a request of theirs has it."""
        key = followed.topic_partition
        before = self._followed.get(key)
        other = self._fetcher(followed.leader_id, Purpose.FETCH_CATCHING_UP)
        is_with_other = (
            before is not None
            and (before.topic_id, before.leader_id, before.leader_epoch)
            == (followed.topic_id, followed.leader_id, followed.leader_epoch)
            and not before.is_in_sync
        )
        if not is_with_other:
            self._unfollow((key,))
            other.follow(followed)
        fetcher.follow(followed, lambda: other.unfollow(key))

    def _unfollow(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            followed = self._followed.pop(key, None)
            if followed is not None:
                self._fetchers[followed.leader_id, _purpose_of(followed)].unfollow(key)

    def _follow_brokers(self, delta: MetadataDelta) -> None:
        """End the pauses of leaders that returned, and the idle fetchers of brokers that are gone."""
        old, new = delta.old.brokers, delta.new.brokers
        for key, fetcher in list(self._fetchers.items()):
            registration = new.get(fetcher.leader_id)
            if registration is not None and registration != old.get(fetcher.leader_id):
                fetcher.leader_returned()
            elif registration is None and not len(fetcher):
                del self._fetchers[key]
                self._closing.spawn(fetcher.aclose())

    def _fetcher(self, leader_id: int, purpose: Purpose) -> LeaderFetcher:
        fetcher = self._fetchers.get((leader_id, purpose))
        if fetcher is None:
            fetcher = self._fetchers[leader_id, purpose] = LeaderFetcher(
                leader_id, purpose, self._identity, self._peers, self._logs, self._clock, self._limits, self._throttle
            )
        return fetcher

    def _settled(self, key: TopicPartition) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            for purpose in (Purpose.FETCH_IN_SYNC, Purpose.FETCH_CATCHING_UP):
                if (fetcher := self._fetchers.get((followed.leader_id, purpose))) is not None:
                    fetcher.settled(key)


def _purpose_of(followed: FollowedPartition) -> Purpose:
    return Purpose.FETCH_IN_SYNC if followed.is_in_sync else Purpose.FETCH_CATCHING_UP
