"""The brokers as the controller counts on them: which may lead a partition, and which may join an ISR. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH

NOBODY: Final[Mapping[int, int]] = MappingProxyType({})


class LiveBrokers:
    """The live brokers of an image, without those that shut down, and their log folders.

    Args:
        shutting_down: Broker epochs by the ids of brokers that want to shut down. An earlier life of a broker says
            nothing about the present one.
        coming: Registration of a broker that is alive although the image does not have it yet.
        going: Broker that is gone although the image still has it.
    """

    def __init__(
        self,
        image: MetadataImage,
        shutting_down: Mapping[int, int] = NOBODY,
        *,
        coming: BrokerRegistration | None = None,
        going: int = NO_BROKER,
    ) -> None:
        self._brokers = image.brokers
        self._shutting_down = shutting_down
        self._coming = coming
        self._going = going

    def is_candidate(self, broker_id: int, directory: str) -> bool:
        """Whether the broker may lead a partition whose replica it has in a log folder."""
        known = self._known(broker_id)
        return known is not None and known.process.has_online(directory)

    def has_room(self, broker_id: int, directory: str) -> bool:
        """Whether the broker can append to a log folder."""
        known = self._known(broker_id)
        return known is not None and known.process.has_room(directory)

    def may_join(self, broker_id: int, broker_epoch: int, directory: str) -> bool:
        """Whether the broker may join the ISR of a partition whose replica it has in a log folder.

        It is the one that the leader knows, it stays (KIP-841, KIP-903), and the folder has not failed.
        """
        known = self._known(broker_id)
        is_the_known_one = known is not None and broker_epoch in (UNKNOWN_BROKER_EPOCH, known.epoch)
        return is_the_known_one and self.is_candidate(broker_id, directory)

    def _known(self, broker_id: int) -> BrokerRegistration | None:
        known = None if broker_id == self._going else self._brokers.get(broker_id)
        if self._coming is not None and broker_id == self._coming.id:
            known = self._coming
        if known is None or self._shutting_down.get(broker_id) == known.epoch:
            return None
        return known
