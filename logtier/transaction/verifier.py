"""Asks the coordinator of a transaction, on whichever broker, whether it includes a partition (KIP-890)."""

from collections.abc import Awaitable
from typing import Protocol

from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.protocol.topic_partition import TopicPartition


class TransactionVerifier(Protocol):
    """Verifies batches of transactions before they are appended."""

    def verify_partition(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic_partition: TopicPartition,
        *,
        add: bool,
    ) -> Awaitable[None] | None:
        """Return if the producer's transaction is ongoing and includes the partition; raise KafkaError otherwise.

        With `add` the partition is first added to the transaction, which begins with it if needed.
        """


class LocalCoordinator(TransactionVerifier, Protocol):
    """The transaction coordinator of this broker."""

    def coordinator_of(self, transactional_id: str, /) -> BrokerRegistration:
        """Return the broker that coordinates an id. Raises KafkaError: coordinator_not_available, not_coordinator."""


class RemoteCoordinators(Protocol):
    """The transaction coordinators of other brokers."""

    def verify_partition(
        self,
        broker_id: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic_partition: TopicPartition,
        *,
        add: bool,
    ) -> Awaitable[None]:
        """Verify with a broker; the awaitable raises KafkaError."""


class ClusterVerifier:
    """Verifies with this broker's coordinator or another broker's, as the newest image has it."""

    def __init__(self, broker_id: int, coordinator: LocalCoordinator, remote: RemoteCoordinators) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._remote = remote

    def verify_partition(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic_partition: TopicPartition,
        *,
        add: bool,
    ) -> Awaitable[None] | None:
        """See `TransactionVerifier`."""
        broker_id = self._coordinator.coordinator_of(transactional_id).id
        if broker_id == self._broker_id:
            return self._coordinator.verify_partition(
                transactional_id, producer_id, producer_epoch, topic_partition, add=add
            )
        return self._remote.verify_partition(
            broker_id, transactional_id, producer_id, producer_epoch, topic_partition, add=add
        )
