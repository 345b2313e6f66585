import uuid

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.controller.elections import after_return, elected, plan_registration
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.store import Create, SetData
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, chunk_path, encode_chunk
from tests.topic_images import topic_changes

TOPIC_ID = uuid.UUID(int=5)


def image_of(*partitions: PartitionImage, alive: dict[int, bool]) -> MetadataImage:
    changes = topic_changes("t", TOPIC_ID, [each.replicas for each in partitions])
    changes.append((chunk_path("t", 0), encode_chunk(partitions)))
    changes += [
        (paths.known_broker_path(broker), paths.encode_broker("h", 1, None, 1, is_alive=is_alive))
        for broker, is_alive in alive.items()
    ]
    return MetadataImage().apply(changes)


def registered(image: MetadataImage, broker_id: int, epoch: int) -> MetadataImage:
    operations = plan_registration(image, BrokerRegistration(broker_id, "h", 1, None, epoch))
    return image.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])


def test_the_only_replica_leads_again_in_the_next_epoch() -> None:
    before = PartitionImage(leader=1, leader_epoch=4, partition_epoch=9, replicas=(1,), isr=(1,))
    image = registered(image_of(before, alive={1: True}), 1, epoch=2)
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
    operations = plan_registration(image, BrokerRegistration(1, "h", 1, None, 2))
    assert [each.path for each in operations] == [paths.known_broker_path(1)]


BROKERS = range(1, 5)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionImage:
    replicas = draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True))
    isr = [each for each in replicas if draw(st.booleans())]
    leader = draw(st.sampled_from([NO_BROKER, *isr]))
    return PartitionImage(leader, draw(st.integers(0, 9)), draw(st.integers(0, 9)), tuple(replicas), tuple(isr))


@given(partitions(), st.sampled_from(BROKERS), st.sets(st.sampled_from(BROKERS)))
def test_a_leader_is_a_live_member_of_the_isr_and_epochs_grow_with_each_election(
    before: PartitionImage, returned: int, alive: set[int]
) -> None:
    after = after_return(before, returned, alive.__contains__)
    if after is before:
        assert returned not in before.replicas or before.leader not in (returned, NO_BROKER)
        return
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    assert set(after.isr) <= set(before.isr)
    assert after.isr or not before.isr, "the last member of the ISR stays: it has the committed log"
    if after.leader != NO_BROKER:
        assert after.leader in after.isr
        assert after.leader in before.isr
        assert after.leader in alive | {returned}


@given(partitions(), st.sets(st.sampled_from(BROKERS)))
def test_the_preferred_replica_comes_first(before: PartitionImage, alive: set[int]) -> None:
    after = elected(before, alive.__contains__)
    candidates = [each for each in before.replicas if each in before.isr and each in alive]
    assert after.leader == (candidates[0] if candidates else NO_BROKER)
