import uuid
from dataclasses import replace

import pytest

from headwater.logtier.controller.alter_partition import PartitionAlteration, plan_alter_partitions
from headwater.logtier.controller.elections import (
    PREFERRED_ELECTIONS_MAX,
    plan_departure,
    plan_hand_overs,
    plan_lower_min_isr,
    plan_preferred_elections,
    plan_registration,
    plan_unclean_elections,
)
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, chunk_path, decode_chunk, encode_chunk
from tests.topic_images import topic_changes

TOPIC_ID = uuid.UUID(int=5)


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


def test_a_broker_that_bounced_within_its_session_gives_its_leadership_away() -> None:
    """KIP-380: its unflushed records may be gone, and the others of the ISR have them."""
    before = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2))
    after = registered(image_of(before, alive={1: True, 2: True, 3: True}), 1, epoch=2).topics["t"].partitions[0]
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


def test_a_broker_that_dies_leaves_every_isr_and_its_partitions_get_other_leaders() -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))
    followed = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(2, 1), isr=(2, 1))
    other = PartitionImage(leader=3, leader_epoch=4, partition_epoch=9, replicas=(3, 2), isr=(3, 2))
    image = departed(image_of(led, followed, other, alive={1: True, 2: True, 3: True}), 1)
    assert image.topics["t"].partitions == (
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


def test_a_follower_that_dies_and_returns_brings_no_leader_to_a_coordinator_whose_leader_is_away() -> None:
    led = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(2, 1, 3), isr=(2, 1, 3))
    topic = "__consumer_offsets"
    image = departed(image_of(led, alive={1: True, 2: True, 3: True}, topic=topic), 2)
    image = registered(departed(image, 3), 3, epoch=2, is_clean=False)
    waiting = image.topics[topic].partitions[0]
    assert (waiting.leader, waiting.last_known_leader, waiting.isr) == (NO_BROKER, 2, (2, 1))
    back = registered(image, 2, epoch=2).topics[topic].partitions[0]
    assert (back.leader, back.leader_epoch) == (2, waiting.leader_epoch + 1)


def applied(image: MetadataImage, operations: list[Operation]) -> PartitionImage:
    after = image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])
    return after.topics["t"].partitions[0]


def test_a_topic_may_allow_a_replica_without_all_committed_records_to_lead() -> None:
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1,))
    image = image_of(led, alive={1: True, 2: True})
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


def test_a_topic_that_allows_it_later_gets_its_leader_then() -> None:
    lost = PartitionImage(NO_BROKER, 5, 10, (1, 2), isr=(), elr=(1,), last_known_leader=1)
    image = image_of(lost, alive={1: False, 2: True})
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


def test_preferred_replicas_lead_again_once_they_are_in_sync() -> None:
    returned = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(1, 2))
    behind = PartitionImage(leader=2, leader_epoch=4, partition_epoch=9, replicas=(1, 2), isr=(2,), elr=(1,))
    leaderless = PartitionImage(NO_BROKER, 5, 10, (1, 2), isr=(), elr=(1,), last_known_leader=1)
    image = image_of(returned, behind, leaderless, alive={1: True, 2: True})
    operations = plan_preferred_elections(image, Alive(1, 2), lambda _: 2)
    after = image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])
    assert after.topics["t"].partitions == (PartitionImage(1, 5, 10, (1, 2), (1, 2)), behind, leaderless)
    assert plan_preferred_elections(after, Alive(1, 2), lambda _: 2) == []
    # Broker 1 wants to shut down, or the partition is that of a coordinator, whose state does not move.
    assert plan_preferred_elections(image, Alive(2), lambda _: 2) == []
    internal = image_of(returned, alive={1: True, 2: True}, topic="__consumer_offsets")
    assert plan_preferred_elections(internal, Alive(1, 2), lambda _: 2) == []


def test_a_coordinator_that_may_have_lost_records_leads_again_when_it_has_caught_up() -> None:
    """Its clients wait; the others would be cut to a log that lacks what it had acknowledged and not flushed."""
    led = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))
    topic = "__consumer_offsets"

    def internal(partition: PartitionImage, *alive: int) -> MetadataImage:
        return image_of(partition, alive={each: each in alive for each in (1, 2, 3)}, topic=topic)

    def after(image: MetadataImage, operations: list[Operation]) -> PartitionImage:
        changes = [(each.path, each.data) for each in operations if isinstance(each, Create | SetData)]
        return image.apply(changes).topics[topic].partitions[0]

    def back(partition: PartitionImage, broker_id: int, *alive: int, is_clean: bool) -> PartitionImage:
        image = internal(partition, *alive)
        registration = BrokerRegistration(broker_id, "h", 1, None, 2)
        return after(image, plan_registration(image, registration, lambda _: 2, is_clean=lambda _: is_clean))

    def gone(partition: PartitionImage, broker_id: int) -> PartitionImage:
        image = internal(partition, 1, 2, 3)
        return after(image, plan_departure(image, broker_id, lambda _: 2))

    waiting = gone(led, 1)
    assert (waiting.leader, waiting.isr, waiting.last_known_leader, waiting.coordinator) == (
        NO_BROKER,
        (1, 2, 3),
        1,
        -1,
    )
    again = back(waiting, 1, 2, 3, is_clean=True)
    assert (again.leader, again.isr, again.coordinator) == (1, (1, 2, 3), 1)
    # Broker 2 leads in its place, and the leadership goes on while the broker comes and goes.
    for before, alive in ((waiting, (2, 3)), (led, (1, 2, 3))):
        in_place = back(before, 1, *alive, is_clean=False)
        assert (in_place.leader, in_place.isr, in_place.last_known_leader, in_place.coordinator) == (2, (2, 3), 1, -1)
    third = gone(in_place, 2)
    assert (third.leader, third.isr, third.last_known_leader) == (3, (3,), 1)
    assert back(gone(in_place, 1), 1, 2, 3, is_clean=True).leader == 2
    # It leads again as soon as it is in sync.
    members = dict.fromkeys((1, 2, 3), 1)
    image = internal(in_place, 1, 2, 3)
    asked = PartitionAlteration(TOPIC_ID, 0, in_place.leader_epoch, in_place.partition_epoch, tuple(members.items()))
    plan = plan_alter_partitions(image, 2, [asked], lambda _: 2, LiveBrokers(image))
    in_sync = after(image, plan.operations)
    assert (in_sync.leader, in_sync.isr, in_sync.coordinator) == (2, (1, 2, 3), NO_BROKER)
    again = after(internal(in_sync, 1, 2, 3), plan_hand_overs(internal(in_sync, 1, 2, 3), Alive(1, 2, 3), lambda _: 2))
    assert (again.leader, again.leader_epoch, again.isr, again.coordinator) == (
        1,
        in_sync.leader_epoch + 1,
        (1, 2, 3),
        1,
    )
    assert plan_hand_overs(internal(again, 1, 2, 3), Alive(1, 2, 3), lambda _: 2) == []
    assert plan_hand_overs(image, Alive(1, 2, 3), lambda _: 2) == []
    # The others of the ISR are away, so it waits for one of them, which has all if it has lost no power.
    lone = back(waiting, 1, is_clean=False)
    assert (lone.leader, lone.isr, lone.last_known_leader) == (NO_BROKER, (2, 3), 1)
    complete = back(lone, 3, 1, is_clean=True)
    assert (complete.leader, complete.isr, complete.elr, complete.coordinator) == (3, (3,), (2,), NO_BROKER)
    assert back(lone, 3, 1, is_clean=False).leader == NO_BROKER
    assert back(replace(lone, isr=(3,), elr=()), 3, 1, is_clean=True).leader == 3


def test_the_isr_of_a_coordinator_that_is_away_keeps_those_who_go_and_return_with_all_their_records() -> None:
    """Nothing is committed meanwhile. Else the coordinator that lost power would lead and lose records."""
    topic = "__consumer_offsets"
    state = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))
    alive = {1, 2, 3}

    def step(broker_id: int, kind: str) -> None:
        nonlocal state
        image = image_of(state, alive={each: each in alive for each in (1, 2, 3)}, topic=topic)
        if kind == "goes":
            alive.discard(broker_id)
            operations = plan_departure(image, broker_id, lambda _: 1)
        else:
            alive.add(broker_id)
            registration = BrokerRegistration(broker_id, "h", 1, None, 2)
            operations = plan_registration(image, registration, lambda _: 1, is_clean=lambda _: kind == "returns")
        changes = [(each.path, each.data) for each in operations if isinstance(each, Create | SetData)]
        state = image.apply(changes).topics[topic].partitions[0]

    for broker_id, kind in ((1, "goes"), (2, "goes"), (2, "returns"), (3, "goes"), (3, "returns")):
        step(broker_id, kind)
    assert (state.leader, state.isr) == (NO_BROKER, (1, 2, 3))
    step(1, "has lost power")
    assert (state.leader, state.isr, state.is_recovering) == (2, (2, 3), False)
    # The one that leads in its place is the last with all records, even if it has lost some of them itself.
    step(3, "goes")
    step(2, "goes")
    step(2, "has lost power")
    assert (state.leader, state.isr, state.coordinator, state.is_recovering) == (2, (2,), NO_BROKER, True)


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
