"""Asks the coordinator of a transaction, on whichever broker, whether it includes a partition (KIP-890)."""

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch


class VerifiedPartition(NamedTuple):
    """A partition to which a producer writes within its transaction.

    Attributes:
        adds: Whether to add it to the transaction, which begins with it if needed (transaction.version 2).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic_partition: TopicPartition
    adds: bool

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


class TransactionVerifier(Protocol):
    """Verifies batches of transactions before they are appended."""

    def verify_partition(self, verified: VerifiedPartition, /) -> Awaitable[None] | None:
        """Return if the producer's transaction is ongoing and includes the partition; raise KafkaError otherwise.

        The awaitable, of a coordinator that must be asked or of an addition, raises it, too.
        """


class LocalCoordinator(TransactionVerifier, Protocol):
    """The transaction coordinator of this broker."""

    def coordinator_of(self, transactional_id: str, /) -> BrokerRegistration:
        """Return the broker that coordinates an id. Raises KafkaError: coordinator_not_available, not_coordinator."""


class RemoteCoordinators(Protocol):
    """The transaction coordinators of other brokers."""

    def verify_partition(self, broker_id: int, verified: VerifiedPartition, /) -> Awaitable[None]:
        """Verify with a broker; the awaitable raises KafkaError."""


class ClusterVerifier:
    """Verifies with this broker's coordinator or another broker's, as the newest image has it."""

    def __init__(self, broker_id: int, coordinator: LocalCoordinator, remote: RemoteCoordinators) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._remote = remote

    def verify_partition(self, verified: VerifiedPartition) -> Awaitable[None] | None:
        """See `TransactionVerifier`."""
        broker_id = self._coordinator.coordinator_of(verified.transactional_id).id
        if broker_id == self._broker_id:
            return self._coordinator.verify_partition(verified)
        return self._remote.verify_partition(broker_id, verified)
