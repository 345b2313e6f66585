"""Metrics of partitions and committed offsets, with the names of kafka_exporter.

Most dashboards of Kafka clusters read kafka_exporter (github.com/danielqsj/kafka_exporter): its names and labels are
used, so that these dashboards work unchanged.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.group.registry import AnyGroup
from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition

_PARTITION = ["topic", "partition"]
_GROUP_PARTITION = ["consumergroup", "topic", "partition"]


class PartitionFamilies:
    """Families filled partition by partition, so that thousands of partitions do not block the event loop."""

    def __init__(self) -> None:
        self.topic_partitions = GaugeMetricFamily(
            "kafka_topic_partitions", "Number of partitions for this Topic", labels=["topic"]
        )
        self._current = _family("current_offset", "Current Offset of a Broker at Topic/Partition")
        self._oldest = _family("oldest_offset", "Oldest Offset of a Broker at Topic/Partition")
        self._leader = _family("leader", "Leader Broker ID of this Topic/Partition")
        self._preferred = _family("leader_is_preferred", "1 if Topic/Partition is using the Preferred Broker")
        self._replicas = _family("replicas", "Number of Replicas for this Topic/Partition")
        self._in_sync = _family("in_sync_replica", "Number of In-Sync Replicas for this Topic/Partition")
        self._under = _family("under_replicated_partition", "1 if Topic/Partition is under Replicated")
        self._size = GaugeMetricFamily("headwater_log_size_bytes", "Bytes of a log's segments.", labels=_PARTITION)
        self._segments = GaugeMetricFamily("headwater_log_segments", "Segments of a log.", labels=_PARTITION)
        self._unstable = GaugeMetricFamily(
            "headwater_log_last_stable_offset",
            "Last stable offset, the end for read_committed consumers.",
            labels=_PARTITION,
        )

    def add_topic(self, topic: TopicImage) -> None:
        """Add the number of partitions of a topic."""
        self.topic_partitions.add_metric([topic.name], len(topic.partitions))

    def add(self, topic: str, index: int, state: PartitionImage, partition: Partition[Log] | None) -> None:
        """Add a partition: its metadata, and its log if the log is on this broker and usable."""
        labels = [topic, str(index)]
        self._leader.add_metric(labels, state.leader)
        self._preferred.add_metric(labels, float(state.leader == state.replicas[0]))
        self._replicas.add_metric(labels, len(state.replicas))
        self._in_sync.add_metric(labels, len(state.isr))
        self._under.add_metric(labels, float(len(state.isr) < len(state.replicas)))
        if partition is None:
            return
        log = partition.log
        self._current.add_metric(labels, partition.high_watermark)
        self._oldest.add_metric(labels, log.log_start_offset)
        self._size.add_metric(labels, log.size_bytes)
        self._segments.add_metric(labels, log.segment_count)
        self._unstable.add_metric(labels, partition.last_stable_offset)

    def families(self) -> Iterator[Metric]:
        """Yield all families."""
        yield self.topic_partitions
        yield from (self._current, self._oldest, self._leader, self._preferred)
        yield from (self._replicas, self._in_sync, self._under)
        yield from (self._size, self._segments, self._unstable)


class GroupFamilies:
    """Committed offsets and lag, group by group."""

    def __init__(self) -> None:
        self._members = GaugeMetricFamily(
            "kafka_consumergroup_members", "Amount of members in a consumer group", labels=["consumergroup"]
        )
        self._offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset",
            "Current Offset of a ConsumerGroup at Topic/Partition",
            labels=_GROUP_PARTITION,
        )
        self._lag = GaugeMetricFamily(
            "kafka_consumergroup_lag",
            "Current Approximate Lag of a ConsumerGroup at Topic/Partition",
            labels=_GROUP_PARTITION,
        )
        self._offset_sum = GaugeMetricFamily(
            "kafka_consumergroup_current_offset_sum",
            "Current Offset of a ConsumerGroup at Topic for all partitions",
            labels=["consumergroup", "topic"],
        )
        self._lag_sum = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum",
            "Current Approximate Lag of a ConsumerGroup at Topic for all partitions",
            labels=["consumergroup", "topic"],
        )

    def add(self, group: AnyGroup, offsets: GroupOffsets, ends: Iterable[tuple[TopicPartition, int | None]]) -> None:
        """Add a group.

        Args:
            ends: High watermarks of the partitions for which the group has offsets; None for an unknown one, without
                which the sum of the topic would be too low.
        """
        name = group.group_id
        self._members.add_metric([name], member_count(group))
        offset_sums: dict[str, int] = {}
        lag_sums: dict[str, int] = {}
        incomplete: set[str] = set()
        for key, committed in offsets.items():
            self._offset.add_metric([name, key.topic, str(key.partition)], committed.offset)
            offset_sums[key.topic] = offset_sums.get(key.topic, 0) + committed.offset
        for key, end in ends:
            found = offsets.get(key)
            if end is None:
                incomplete.add(key.topic)
            elif found is not None:
                lag = max(0, end - found.offset)
                self._lag.add_metric([name, key.topic, str(key.partition)], lag)
                lag_sums[key.topic] = lag_sums.get(key.topic, 0) + lag
        for topic, total in offset_sums.items():
            self._offset_sum.add_metric([name, topic], total)
        for topic, total in lag_sums.items():
            if topic not in incomplete:
                self._lag_sum.add_metric([name, topic], total)

    def families(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from (self._members, self._offset, self._offset_sum, self._lag, self._lag_sum)


def cluster_families(image: MetadataImage) -> Iterator[Metric]:
    """The brokers of the cluster."""
    yield GaugeMetricFamily("kafka_brokers", "Number of Brokers in the Kafka Cluster", value=len(image.brokers))
    info = GaugeMetricFamily("kafka_broker_info", "Information about the Kafka Broker", labels=["id", "address"])
    for broker in image.brokers.values():
        info.add_metric([str(broker.id), f"{broker.host}:{broker.port}"], 1)
    yield info


def member_count(group: AnyGroup) -> int:
    """Number of members of a group of either protocol."""
    return len(group.state.members) if isinstance(group, ConsumerGroup) else len(group.members)


def _family(name: str, documentation: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kafka_topic_partition_{name}", documentation, labels=_PARTITION)
