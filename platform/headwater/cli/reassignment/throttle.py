"""Sets the throttle of a run, and removes it, also one that a killed run has left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headwater.cli.reassignment.plan import PartitionMove
from headwater.cli.reassignment.throttle_configs import (
    RATES,
    REPLICA_LISTS,
    is_of_a_run,
    throttled_rates,
    throttled_replicas,
)
from headwater.logtier.client.replicas import BROKER_RESOURCE, TOPIC_RESOURCE, ReplicaAdmin

__all__ = ["ReassignmentThrottle"]


class ReassignmentThrottle:
    """The throttle of reassignments in a cluster.

    As kafka-reassign-partitions.sh does, removal deletes the rates of all brokers, and the topics' lists of throttled
    replicas. A list `*` is an administrator's and stays.
    """

    def __init__(self, admin: ReplicaAdmin, brokers: Collection[int], topics: Iterable[str]) -> None:
        self._admin = admin
        self._brokers = sorted(brokers)
        self._topics = sorted(set(topics))

    def set(self, moves: Sequence[PartitionMove], bytes_per_second: int) -> None:
        """Throttle moves to a number of bytes a second for each broker: the lists first, which do nothing alone."""
        self._admin.alter_configs(TOPIC_RESOURCE, throttled_replicas(moves))
        self._admin.alter_configs(BROKER_RESOURCE, throttled_rates(self._brokers, bytes_per_second))

    def throttled_topics(self) -> list[str]:
        """Return the topics with lists that a run has set."""
        found = self._admin.dynamic_configs(TOPIC_RESOURCE, self._topics, REPLICA_LISTS)
        return [name for name, configs in found.items() if is_of_a_run(configs)]

    def remove(self) -> None:
        """Remove rates and lists; none of them is no error. A broker that is away keeps its rates until it is asked."""
        present, _ = self._admin.assignments(())
        names = [str(each) for each in self._brokers if each in present]
        rates = self._admin.dynamic_configs(BROKER_RESOURCE, names, RATES)
        self._admin.alter_configs(BROKER_RESOURCE, {name: dict.fromkeys(configs) for name, configs in rates.items()})
        self._admin.alter_configs(
            TOPIC_RESOURCE, {name: dict.fromkeys(REPLICA_LISTS) for name in self.throttled_topics()}
        )
