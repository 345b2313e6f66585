"""Metrics of replication and of the controller, with the names of Kafka's gauges in Prometheus' form."""

from collections.abc import Collection, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headwater.logtier.controller.controller import Controller
from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.product_topics import PRODUCT_REPLICAS, is_product_topic
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.replication.partition import Partition

_PREFIX = "headwater_"


class ReplicationFamilies:
    """Counts of the partitions that this broker leads by the state of their ISR, added partition by partition.

    Kafka counts the partitions with a leader elsewhere there, so that the sum over all brokers counts each once.
    What belongs to no leader is in the count of the active controller alone: partitions without a leader, and topics.
    """

    def __init__(self) -> None:
        self._leaders = self._under_replicated = self._under_min_isr = self._at_min_isr = 0
        self._leaderless = self._reassigning = 0
        self._known_brokers: set[int] = set()
        self._few_replicas = 0

    def add_topic(self, topic: TopicImage) -> None:
        """Add a topic, whose partitions follow by `add`."""
        if is_product_topic(topic.name):
            self._few_replicas += any(len(each.target) < PRODUCT_REPLICAS for each in topic.partitions)

    def add(self, state: PartitionImage, partition: Partition[Log] | None) -> None:
        """Add a partition: its metadata, and its replica on this broker if the log is usable."""
        self._known_brokers.update(state.replicas)
        if state.leader == NO_BROKER:
            self._leaderless += 1
        if partition is None or not partition.is_leader:
            return
        in_sync, min_isr = len(partition.isr), partition.min_isr
        self._leaders += 1
        # As Kafka's: a replica that is being added is not missed yet.
        adding = () if state.reassignment is None else state.reassignment.adding
        self._under_replicated += in_sync < len(state.replicas) - len(adding)
        self._reassigning += state.reassignment is not None
        self._under_min_isr += in_sync < min_isr
        self._at_min_isr += in_sync == min_isr

    def families(self, brokers: Collection[int], *, is_controller: bool) -> Iterator[Metric]:
        """Yield all families; `brokers` are those that are registered."""
        is_large = len(self._known_brokers.union(brokers)) >= PRODUCT_REPLICAS
        for name, documentation, value in (
            ("leader_count", "Partitions that this broker leads.", self._leaders),
            ("under_replicated_partitions", "Led partitions with replicas out of the ISR.", self._under_replicated),
            ("under_min_isr_partitions", "Led partitions with an ISR below min.insync.replicas.", self._under_min_isr),
            (
                "at_min_isr_partitions",
                "Led partitions with an ISR of exactly min.insync.replicas, or of all replicas if they are fewer.",
                self._at_min_isr,
            ),
            ("reassigning_partitions", "Led partitions whose replicas are reassigned.", self._reassigning),
            (
                "leaderless_partitions",
                "Partitions of the cluster without a leader; 0 if this broker is not the active controller.",
                self._leaderless if is_controller else 0,
            ),
            (
                "product_topics_with_few_replicas",
                "The product's own topics with less than three replicas, on three brokers or more; else 0.",
                self._few_replicas if is_controller and is_large else 0,
            ),
        ):
            yield GaugeMetricFamily(_PREFIX + name, documentation, value=value)


def controller_families(
    image: MetadataImage, broker_id: int, controller: Controller, session: SessionState | None
) -> Iterator[Metric]:
    """The controller and this broker's registration; `session` is None without a shared metadata store."""
    yield GaugeMetricFamily(
        _PREFIX + "active_controller_count",
        "1 if this broker is the active controller, else 0.",
        value=int(controller.is_active),
    )
    if controller.is_active:
        yield GaugeMetricFamily(
            _PREFIX + "controller_epoch", "The active controller's epoch, told by itself.", value=controller.epoch
        )
    known = image.registrations.get(broker_id)
    if known is not None:
        yield GaugeMetricFamily(
            _PREFIX + "broker_epoch", "The epoch of this broker's last registration.", value=known.epoch
        )
    if session is not None:
        states = GaugeMetricFamily(
            _PREFIX + "metadata_session", "1 for the present state of the session with ZooKeeper.", labels=["state"]
        )
        for state in SessionState:
            states.add_metric([state.value], int(state is session))
        yield states
