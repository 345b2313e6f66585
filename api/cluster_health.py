"""The state of a cluster's replicas: which partitions lack replicas, a leader, or members of the ISR. Pure.

The words are those of Kafka's tools (`kafka-topics --under-replicated-partitions` and so on) and metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.api.topic_model import ClusterInfo, PartitionInfo, TopicInfo

#: Copies of the product's own topics on a cluster of that many brokers or more.
COPIES: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """A partition that lacks something."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int

    def __str__(self) -> str:
        """Return the name, as in `flights-3`."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """What one broker has; `in_sync` counts its replicas in an ISR. An absent broker has replicas and no address."""

    broker_id: int
    is_registered: bool
    leaders: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The state of all partitions.

    Those without a leader are `offline` and in no other list, as in the metrics of Kafka's brokers, where a partition
    counts on its leader.

    Attributes:
        under_replicated: The ISR lacks replicas.
        offline: There is no leader: nothing can be read or written.
        under_min_isr: Writes with acks=all are refused.
        at_min_isr: The ISR has exactly as many members as min.insync.replicas, or all replicas if they are fewer. One
            broker less, and writes with acks=all are refused, or there is no leader.
        few_copies: The product's own topics with fewer replicas than three, on a cluster of three or more.
    """

    has_controller: bool
    brokers: tuple[BrokerHealth, ...]
    topics: int
    partitions: int
    under_replicated: tuple[PartitionHealth, ...]
    offline: tuple[PartitionHealth, ...]
    under_min_isr: tuple[PartitionHealth, ...]
    at_min_isr: tuple[PartitionHealth, ...]
    few_copies: tuple[str, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """The brokers that have replicas and are not there."""
        return tuple(broker.broker_id for broker in self.brokers if not broker.is_registered)

    @property
    def problems(self) -> list[str]:
        """One line for each kind of problem; empty for a healthy cluster."""
        lines = []
        if not self.has_controller:
            lines.append("no controller: topics and configs cannot be changed until one is elected")
        if self.absent:
            lines.append(f"brokers that have replicas and are away: {', '.join(map(str, self.absent))}")
        for found, what in (
            (self.offline, "without a leader, neither readable nor writable"),
            (self.under_min_isr, "below min.insync.replicas, where acks=all is refused"),
            (self.under_replicated, "under-replicated"),
        ):
            if found:
                lines.append(f"{_counted(found)} {what}: {_named(found)}")
        if self.few_copies:
            lines.append(f"topics of the product with fewer than {COPIES} replicas: {', '.join(self.few_copies)}")
        return lines


def cluster_health(
    cluster: ClusterInfo,
    topics: Sequence[TopicInfo],
    min_isrs: Mapping[str, int],
    product_topics: Collection[str],
) -> ClusterHealth:
    """Return the state of a cluster.

    Args:
        min_isrs: `min.insync.replicas` by topic; at most the number of replicas counts (KIP-966).
        product_topics: The topics that the product makes for itself, internal ones included.
    """
    lacking = [_health(topic, partition, min_isrs) for topic in topics for partition in topic.partitions]
    led = [each for each in lacking if each.leader is not None]
    registered = {broker.broker_id for broker in cluster.brokers}
    known = registered | {each for partition in lacking for each in partition.replicas}
    return ClusterHealth(
        has_controller=cluster.controller_id is not None and cluster.controller_id in registered,
        brokers=tuple(
            BrokerHealth(
                broker_id,
                broker_id in registered,
                sum(each.leader == broker_id for each in lacking),
                sum(broker_id in each.replicas for each in lacking),
                sum(broker_id in each.isr for each in lacking),
            )
            for broker_id in sorted(known)
        ),
        topics=len(topics),
        partitions=len(lacking),
        under_replicated=tuple(each for each in led if len(each.isr) < len(each.replicas)),
        offline=tuple(each for each in lacking if each.leader is None),
        under_min_isr=tuple(each for each in led if len(each.isr) < each.min_isr),
        at_min_isr=tuple(each for each in led if len(each.isr) == each.min_isr),
        few_copies=tuple(
            topic.name
            for topic in topics
            if topic.name in product_topics
            and len(known) >= COPIES
            and any(len(partition.replicas) < COPIES for partition in topic.partitions)
        ),
    )


def _health(topic: TopicInfo, partition: PartitionInfo, min_isrs: Mapping[str, int]) -> PartitionHealth:
    least = min(min_isrs.get(topic.name, 1), len(partition.replicas))
    return PartitionHealth(topic.name, partition.partition, partition.leader, partition.replicas, partition.isr, least)


def _counted(found: Sequence[object]) -> str:
    return "1 partition" if len(found) == 1 else f"{len(found)} partitions"


def _named(found: Sequence[PartitionHealth], shown_max: int = 5) -> str:
    more = f" and {len(found) - shown_max} more" if len(found) > shown_max else ""
    return ", ".join(map(str, found[:shown_max])) + more
