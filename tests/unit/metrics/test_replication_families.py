"""What the metrics tell of the ISRs, of leaders and of the controller."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, Reassignment
from headwater.logtier.metrics.replication_families import ReplicationFamilies, controller_families
from tests.unit.replication.replicated_node import P0, P1, ReplicatedNode

COUNTS = ("leader_count", "under_replicated_partitions", "under_min_isr_partitions", "at_min_isr_partitions")


def told(families: Iterable[Metric]) -> dict[str, float]:
    return {
        "/".join((sample.name.removeprefix("headwater_"), *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def counts(node: ReplicatedNode, *, is_controller: bool = False) -> dict[str, float]:
    families = ReplicationFamilies()
    [topic] = node.image.topics.values()
    families.add_topic(topic)
    for key, state in zip((P0, P1), topic.partitions, strict=True):
        families.add(state, node.replicas.usable_partition(key))
    return told(families.families(node.image.brokers, is_controller=is_controller))


@pytest.mark.parametrize(
    ("isr", "expected"),
    [((1, 2, 3), (2, 0, 0, 0)), ((1, 2), (2, 2, 0, 2)), ((1,), (2, 2, 2, 0))],
)
def test_led_partitions_count_by_the_state_of_their_isr(
    tmp_path: Path, isr: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    node = ReplicatedNode(tmp_path, min_insync_replicas="2")
    node.start(isr)
    assert tuple(counts(node)[name] for name in COUNTS) == expected


def test_a_replica_that_is_added_is_not_missed(tmp_path: Path) -> None:
    node = ReplicatedNode(tmp_path)
    node.start((1, 2), replicas=(1, 2))
    node.change(replicas=(1, 3, 2), reassignment=Reassignment((3,), (2,), (1, 2)))
    found = counts(node)
    assert (found["reassigning_partitions"], found["under_replicated_partitions"]) == (2, 0)
    node.change(isr=(1,))
    assert counts(node)["under_replicated_partitions"] == 2


def test_a_partition_with_its_leader_elsewhere_counts_there(tmp_path: Path) -> None:
    node = ReplicatedNode(tmp_path)
    node.start()
    node.change(leader=2, leader_epoch=1, isr=(2,))
    assert set(counts(node).values()) == {0}


def test_partitions_without_a_leader_count_on_the_active_controller_alone(tmp_path: Path) -> None:
    node = ReplicatedNode(tmp_path)
    node.start()
    node.change(leader=NO_BROKER, leader_epoch=1, isr=(2,))
    assert counts(node, is_controller=True)["leaderless_partitions"] == 2
    assert counts(node)["leaderless_partitions"] == 0


def counts_of(topics: Mapping[str, Sequence[PartitionImage]], *brokers: int, is_controller: bool) -> dict[str, float]:
    families = ReplicationFamilies()
    for number, (name, partitions) in enumerate(topics.items()):
        families.add_topic(TopicImage(name, uuid.UUID(int=number + 1), tuple(partitions), {}))
        for partition in partitions:
            families.add(partition, None)
    return told(families.families(brokers, is_controller=is_controller))


def state(*replicas: int) -> PartitionImage:
    return PartitionImage(1, 0, 0, replicas, replicas)


def test_product_topics_with_few_replicas_count_on_the_controller_of_three_brokers_or_more() -> None:
    topics = {
        "__consumer_offsets": [state(1, 2, 3), state(1, 2)],
        "__headwater_fences": [state(1)],
        "flights.dead_letters": [state(1)],
        "__headwater_status": [state(1, 2, 3)],
        "flights": [state(1)],
    }
    assert counts_of(topics, 1, 2, 3, is_controller=True)["product_topics_with_few_replicas"] == 3
    assert counts_of(topics, 1, is_controller=True)["product_topics_with_few_replicas"] == 3  # 2 and 3 are away
    assert counts_of(topics, 1, 2, 3, is_controller=False)["product_topics_with_few_replicas"] == 0
    few = {"__headwater_status": [state(1, 2)]}
    assert counts_of(few, 1, 2, is_controller=True)["product_topics_with_few_replicas"] == 0


def controller_counts(*, is_active: bool, session: SessionState | None) -> dict[str, float]:
    image = MetadataImage(registrations={1: BrokerRegistration(1, "here", 9092, epoch=44)})
    controller: Any = SimpleNamespace(is_active=is_active, epoch=7)
    return told(controller_families(image, 1, controller, session))


def test_the_active_controller_tells_its_epoch() -> None:
    assert controller_counts(is_active=True, session=None) == {
        "active_controller_count": 1,
        "controller_epoch": 7,
        "broker_epoch": 44,
    }
    standby = controller_counts(is_active=False, session=None)
    assert standby == {"active_controller_count": 0, "broker_epoch": 44}


def test_the_state_of_the_session_is_one_of_three() -> None:
    found = controller_counts(is_active=False, session=SessionState.SUSPENDED)
    assert {name: value for name, value in found.items() if "session" in name} == {
        "metadata_session/connected": 0,
        "metadata_session/suspended": 1,
        "metadata_session/lost": 0,
    }
