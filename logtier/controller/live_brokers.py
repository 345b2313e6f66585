"""The brokers as the controller counts on them: which may lead a partition, and which may join an ISR. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH

_NOBODY: Final[Mapping[int, int]] = MappingProxyType({})


class LiveBrokers:
    """The live brokers of an image, without those that shut down.

    Args:
        shutting_down: Broker epochs by the ids of brokers that want to shut down. An earlier life of a broker says
            nothing about the present one.
        coming: Broker that is alive although the image does not have it yet.
        going: Broker that is gone although the image still has it.
    """

    def __init__(
        self,
        image: MetadataImage,
        shutting_down: Mapping[int, int] = _NOBODY,
        *,
        coming: int = NO_BROKER,
        going: int = NO_BROKER,
    ) -> None:
        self._brokers = image.brokers
        self._shutting_down = shutting_down
        self._coming = coming
        self._going = going

    def is_candidate(self, broker_id: int) -> bool:
        """Whether the broker may lead a partition."""
        if broker_id in (self._coming, self._going):
            return broker_id == self._coming
        known = self._brokers.get(broker_id)
        return known is not None and self._shutting_down.get(broker_id) != known.epoch

    def has_room(self, broker_id: int) -> bool:  # noqa: ARG002 - a broker with a full log folder does not report it yet
        """Whether the broker can append."""
        return True

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker may join an ISR: it is the one that the leader knows, and it stays (KIP-841, KIP-903)."""
        if not self.is_candidate(broker_id):
            return False
        return broker_epoch in (UNKNOWN_BROKER_EPOCH, self._brokers[broker_id].epoch)
