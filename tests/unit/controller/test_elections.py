import uuid
from dataclasses import replace

import pytest

from headwater.logtier.controller.elections import (
    PREFERRED_ELECTIONS_MAX,
    plan_departure,
    plan_lower_min_isr,
    plan_preferred_elections,
    plan_registration,
    plan_unclean_elections,
)
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, chunk_path, decode_chunk, encode_chunk
from tests.topic_images import topic_changes

TOPIC_ID = uuid.UUID(int=5)
#: The partitions of coordinators have leaders like all others: their state moves with the leadership.
of_any_topic = pytest.mark.parametrize("topic", ["t", *sorted(INTERNAL_TOPICS)])


def image_of(*partitions: PartitionImage, alive: dict[int, bool], topic: str = "t") -> MetadataImage:
    changes = topic_changes(topic, TOPIC_ID, [each.replicas for each in partitions])
    changes.append((chunk_path(topic, 0), encode_chunk(partitions)))
    changes += [
        (paths.known_broker_path(broker), paths.encode_known_broker("h", 1, None, 1, is_alive=is_alive))
        for broker, is_alive in alive.items()
    ]
    return MetadataImage().apply(changes)


def registered(
    image: MetadataImage, broker_id: int, epoch: int, *, min_isr: int = 1, is_clean: bool = True
) -> MetadataImage:
    registration = BrokerRegistration(broker_id, "h", 1, None, epoch)
    operations = plan_registration(image, registration, lambda _: min_isr, is_clean=lambda _: is_clean)
    return image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_only_replica_leads_again_in_the_next_epoch(is_clean: bool) -> None:
    before = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1,), isr=(1,))
    image = registered(image_of(before, alive={1: True}), 1, epoch=2, is_clean=is_clean)
    assert image.topics["t"].partitions == (PartitionImage(1, 5, 10, (1,), (1,)),)
    assert image.brokers[1].epoch == 2


@of_any_topic
def test_a_broker_that_bounced_within_its_session_gives_its_leadership_away(topic: str) -> None:
    """KIP-380: its unflushed records may be gone, and the others of the ISR have them."""
    before = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2))
    image = image_of(before, alive={1: True, 2: True, 3: True}, topic=topic)
    after = registered(image, 1, epoch=2).topics[topic].partitions[0]
    assert after == PartitionImage(leader=2, leader_epoch=5, partition_epoch=10, replicas=(1, 2, 3), isr=(2,))


def test_a_partition_without_a_leader_gets_the_member_of_the_isr_that_returns() -> None:
    lost = PartitionImage(leader=NO_BROKER, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(2,))
    image = image_of(lost, alive={1: True, 2: False, 3: True})
    assert registered(image, 2, epoch=2).topics["t"].partitions[0].leader == 2
    # Broker 3 has not the whole committed log.
    assert registered(image, 3, epoch=2).topics["t"].partitions[0].leader == NO_BROKER


def test_partitions_of_other_leaders_stay_as_they_are() -> None:
    led = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(2,))
    image = image_of(led, alive={1: False, 2: True})
    operations = plan_registration(image, BrokerRegistration(1, "h", 1, None, 2), lambda _: 1, is_clean=lambda _: True)
    assert [each.path for each in operations] == [paths.known_broker_path(1)]


def departed(image: MetadataImage, broker_id: int, *, min_isr: int = 2) -> MetadataImage:
    operations = plan_departure(image, broker_id, lambda _: min_isr)
    assert operations[-1].path == paths.known_broker_path(broker_id), "it counts as alive until all is written"
    return image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])


@of_any_topic
def test_a_broker_that_dies_leaves_every_isr_and_its_partitions_get_other_leaders(topic: str) -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))
    followed = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(2, 1), isr=(2, 1))
    other = PartitionImage(leader=3, leader_epoch=4, partition_epoch=9, replicas=(3, 2), isr=(3, 2))
    image = departed(image_of(led, followed, other, alive={1: True, 2: True, 3: True}, topic=topic), 1)
    assert image.topics[topic].partitions == (
        PartitionImage(2, 5, 10, (1, 2, 3), (2, 3)),
        PartitionImage(2, 4, 10, (2, 1), (2,), elr=(1,)),
        other,
    )
    assert set(image.brokers) == {2, 3}
    assert image.registrations[1].epoch == 1


def test_the_only_replica_that_dies_and_returns_leads_again() -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1,), isr=(1,))
    away = departed(image_of(led, alive={1: True}), 1)
    assert away.topics["t"].partitions[0].leader == NO_BROKER
    for is_clean in (True, False):
        back = registered(away, 1, epoch=2, is_clean=is_clean).topics["t"].partitions[0]
        assert (back.leader, back.leader_epoch, back.isr, back.is_recovering) == (1, 6, (1,), False)


def applied(image: MetadataImage, operations: list[Operation]) -> PartitionImage:
    after = image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])
    [topic] = after.topics.values()
    return topic.partitions[0]


@of_any_topic
def test_a_topic_may_allow_a_replica_without_all_committed_records_to_lead(topic: str) -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1,))
    image = image_of(led, alive={1: True, 2: True}, topic=topic)
    kept = applied(image, plan_departure(image, 1, lambda _: 1))
    assert (kept.leader, kept.isr, kept.elr, kept.last_known_leader) == (NO_BROKER, (), (1,), 1)
    unclean = applied(image, plan_departure(image, 1, lambda _: 1, lambda _: True))
    assert (unclean.leader, unclean.isr, unclean.elr, unclean.is_recovering) == (2, (2,), (), True)


def test_a_returning_replica_leads_where_an_unclean_election_is_allowed() -> None:
    lost = PartitionImage(NO_BROKER, 5, 10, (1, 2), isr=(), elr=(1,), last_known_leader=1)
    image = image_of(lost, alive={1: False, 2: False})
    back = BrokerRegistration(2, "h", 1, None, 2)
    assert applied(image, plan_registration(image, back, lambda _: 1, is_clean=lambda _: True)).leader == NO_BROKER
    after = applied(
        image, plan_registration(image, back, lambda _: 1, is_clean=lambda _: True, allows_unclean=lambda _: True)
    )
    assert (after.leader, after.isr, after.is_recovering) == (2, (2,), True)


@of_any_topic
def test_a_topic_that_allows_it_later_gets_its_leader_then(topic: str) -> None:
    lost = PartitionImage(NO_BROKER, 5, 10, (1, 2), isr=(), elr=(1,), last_known_leader=1)
    image = image_of(lost, alive={1: False, 2: True}, topic=topic)
    assert plan_unclean_elections(image, LiveBrokers(image), lambda _: 1, lambda _: False) == []
    after = applied(image, plan_unclean_elections(image, LiveBrokers(image), lambda _: 1, lambda _: True))
    assert (after.leader, after.leader_epoch, after.isr, after.is_recovering) == (2, 6, (2,), True)
    again = image_of(after, alive={2: True})
    assert plan_unclean_elections(again, LiveBrokers(again), lambda _: 1, lambda _: True) == []


class Alive:
    """Brokers that may lead."""

    def __init__(self, *brokers: int) -> None:
        self._brokers = brokers

    def is_candidate(self, broker_id: int, directory: str) -> bool:
        return broker_id in self._brokers

    def has_room(self, broker_id: int, directory: str) -> bool:
        return True


@of_any_topic
def test_preferred_replicas_lead_again_once_they_are_in_sync(topic: str) -> None:
    returned = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1, 2))
    behind = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(2,), elr=(1,))
    leaderless = PartitionImage(NO_BROKER, 5, 10, (1, 2), isr=(), elr=(1,), last_known_leader=1)
    image = image_of(returned, behind, leaderless, alive={1: True, 2: True}, topic=topic)
    operations = plan_preferred_elections(image, Alive(1, 2), lambda _: 2)
    after = image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])
    assert after.topics[topic].partitions == (PartitionImage(1, 5, 10, (1, 2), (1, 2)), behind, leaderless)
    assert plan_preferred_elections(after, Alive(1, 2), lambda _: 2) == []
    # Broker 1 wants to shut down.
    assert plan_preferred_elections(image, Alive(2), lambda _: 2) == []


def test_preferred_leaders_are_elected_a_thousand_at_a_time() -> None:
    returned = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1, 2))
    topics = {name: TopicImage(name, uuid.uuid5(TOPIC_ID, name), (returned,) * 64) for name in map(str, range(20))}
    image = replace(image_of(returned, alive={1: True, 2: True}), topics=topics)
    operations = plan_preferred_elections(image, Alive(1, 2), lambda _: 2)
    chunks = [decode_chunk(each.path, each.data) for each in operations if isinstance(each, SetData)]
    assert sum(each.leader == 1 for chunk in chunks for each in chunk) == PREFERRED_ELECTIONS_MAX


def test_a_broker_becomes_known_last_of_all_changes() -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1,), isr=(1,))
    operations = plan_registration(
        image_of(led, alive={1: False}), BrokerRegistration(1, "h", 1, None, 2), lambda _: 1, is_clean=lambda _: False
    )
    assert [each.path for each in operations] == [chunk_path("t", 0), paths.known_broker_path(1)]


def test_a_lower_minimum_ends_the_elr_of_replicas_that_miss_what_the_isr_then_commits() -> None:
    """KIP-966: with a minimum of 1 the lone leader commits; when it dies, no former member of the ISR may lead."""
    alone = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1,), elr=(2, 3))
    image = image_of(alone, alive={1: True, 2: True, 3: True})
    lowered = applied(image, plan_lower_min_isr(image, lambda _: 1))
    assert lowered == PartitionImage(1, 4, 10, (1, 2, 3), (1,))
    dead = departed(image_of(lowered, alive={1: True, 2: True, 3: True}), 1, min_isr=1).topics["t"].partitions[0]
    assert (dead.leader, dead.isr, dead.elr) == (NO_BROKER, (), (1,))


def test_an_elr_stays_while_nothing_is_committed() -> None:
    few = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1,), elr=(2, 3))
    none = PartitionImage(NO_BROKER, 4, 9, (1, 2, 3), isr=(), elr=(1, 2), last_known_leader=1)
    image = image_of(few, none, alive={1: True, 2: True, 3: True})
    assert plan_lower_min_isr(image, lambda _: 2) == []
