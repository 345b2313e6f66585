"""Log folders of brokers: a replica in a failed one is dead, and one in a full one gives way (KIP-858)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial

import pytest

from headwater.logtier.controller.alter_partition import PartitionAlteration, plan_alter_partitions
from headwater.logtier.controller.elections import plan_hand_overs, plan_registration
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.controller.partition_draft import PartitionDraft
from headwater.logtier.controller.replica_directories import ReplicaDirectory, plan_assign_directories
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.paths import BrokerProcess, CorruptNodeError
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.metadata.topic_nodes import (
    NO_BROKER,
    PartitionImage,
    chunk_path,
    decode_chunk,
    encode_chunk,
)
from headwater.logtier.protocol.errors import ErrorCode
from tests.topic_images import topic_changes

TOPIC_ID = uuid.UUID(int=5)
A, B = "a" * 22, "b" * 22
#: The partitions of coordinators have leaders like all others.
of_any_topic = pytest.mark.parametrize("topic", ["t", *sorted(INTERNAL_TOPICS)])
PLACED = PartitionImage(1, 4, 9, (1, 2, 3), (1, 2, 3), directories=(A, "", ""))


def registration(*folders: str, full: tuple[str, ...] = (), broker_id: int = 1, epoch: int = 1) -> BrokerRegistration:
    online = tuple(f"{each} /data/{each[0]}" for each in folders)
    process = BrokerProcess(online, "boot", -1, tuple(f"{each} /data/{each[0]}" for each in full))
    return BrokerRegistration(broker_id, "h", 1, None, epoch, process=process)


def image_of(partition: PartitionImage, *brokers: BrokerRegistration, topic: str = "t") -> MetadataImage:
    changes = topic_changes(topic, TOPIC_ID, [partition.replicas])
    changes.append((chunk_path(topic, 0), encode_chunk([partition])))
    given = {each.id: each for each in (registration(A, B), *(registration(A, broker_id=n) for n in (2, 3)), *brokers)}
    for each in given.values():
        data = paths.encode_known_broker(each.host, each.port, each.rack, each.epoch, process=each.process)
        changes.append((paths.known_broker_path(each.id), data))
    return MetadataImage().apply(changes)


def after(image: MetadataImage, operations: list[Operation]) -> PartitionImage:
    changes = [(each.path, each.data) for each in operations if isinstance(each, Create | SetData)]
    [topic] = image.apply(changes).topics.values()
    return topic.partitions[0]


def reported(image: MetadataImage, directory: str, minimum: int) -> PartitionImage:
    """The partition after broker 1 has reported that its replica is in a log folder."""
    place = ReplicaDirectory(directory, TOPIC_ID, 0)
    plan = plan_assign_directories(image, 1, [place], lambda _: minimum, LiveBrokers(image))
    return after(image, plan.operations)


def changed(partition: PartitionImage, now: BrokerRegistration, topic: str = "t") -> PartitionImage:
    """The partition after broker 1 has reported of its folders in the same epoch."""
    image = image_of(partition, topic=topic)
    return after(image, plan_registration(image, now, lambda _: 2, is_clean=lambda _: True))


@of_any_topic
def test_a_failed_folder_costs_the_leadership_and_the_place_in_the_isr_of_its_replicas_alone(topic: str) -> None:
    lost = changed(PLACED, registration(B), topic)
    assert (lost.leader, lost.isr, lost.leader_epoch) == (2, (2, 3), 5)
    assert lost.directories == PLACED.directories
    elsewhere = replace(PLACED, directories=(B, "", ""))
    assert changed(elsewhere, registration(B)) == elsewhere
    unknown = replace(PLACED, directories=())
    assert changed(unknown, registration(B)) == unknown


def test_a_replica_in_a_failed_folder_is_elected_in_no_way() -> None:
    alone = replace(PLACED, replicas=(1, 2), isr=(1,), elr=(2,), directories=(A, ""))
    image = image_of(alone, registration(B))
    draft = PartitionDraft(replace(alone, leader=NO_BROKER, last_known_leader=1), 2, LiveBrokers(image))
    draft.elect(unclean=True)
    assert draft.result().leader == 2
    draft = PartitionDraft(alone, 1, LiveBrokers(image_of(alone, registration(B))))
    draft.lose(1)
    assert (draft.result().leader, draft.result().elr) == (2, ())


@of_any_topic
def test_a_leader_in_a_full_folder_gives_way_to_one_with_room(topic: str) -> None:
    moved = changed(PLACED, registration(A, B, full=(A,)), topic)
    assert (moved.leader, moved.isr) == (2, (1, 2, 3))
    assert changed(replace(PLACED, directories=(B, "", "")), registration(A, B, full=(A,))).leader == 1
    # Brokers of one folder do not tell which: all of it is full.
    assert changed(replace(PLACED, directories=()), registration(A, full=(A,))).leader == 2
    assert changed(replace(PLACED, directories=()), registration(A, B, full=(A,))).leader == 1
    # Nobody else has room, or is in sync.
    image = image_of(PLACED, *(registration(A, full=(A,), broker_id=each) for each in (2, 3)))
    full = registration(A, B, full=(A,))
    assert after(image, plan_registration(image, full, lambda _: 2, is_clean=lambda _: True)) == PLACED
    assert changed(replace(PLACED, isr=(1,), elr=(2, 3)), full).leader == 1


def test_places_of_replicas_are_noted_one_by_one() -> None:
    image = image_of(replace(PLACED, directories=()))
    places = [
        ReplicaDirectory(A, TOPIC_ID, 0),
        ReplicaDirectory(A, TOPIC_ID, 1),
        ReplicaDirectory(A, TOPIC_ID, -1),
        ReplicaDirectory(A, uuid.UUID(int=6), 0),
    ]
    plan = plan_assign_directories(image, 1, places, lambda _: 2, LiveBrokers(image))
    unknown = ErrorCode.unknown_topic_or_partition
    assert plan.results == [ErrorCode.none, unknown, unknown, ErrorCode.unknown_topic_id]
    noted = after(image, plan.operations)
    assert noted == replace(PLACED, partition_epoch=10)
    again = image_of(noted)
    assert plan_assign_directories(again, 1, places[:1], lambda _: 2, LiveBrokers(again)).operations == []
    stranger = image_of(PLACED, registration(A, broker_id=4))
    assert plan_assign_directories(stranger, 4, places[:1], lambda _: 2, LiveBrokers(stranger)).results == [
        ErrorCode.not_leader_or_follower
    ]


def test_a_replica_that_is_told_to_be_in_a_failed_folder_leaves() -> None:
    """The folder failed before its replicas were reported."""
    image = image_of(replace(PLACED, directories=()), registration(B))
    left = reported(image, A, 2)
    assert (left.leader, left.isr, left.directories) == (2, (2, 3), (A, "", ""))


@of_any_topic
def test_a_replica_that_began_anew_beside_a_failed_folder_is_no_eligible_leader(topic: str) -> None:
    away = PartitionImage(NO_BROKER, 4, 9, (1, 2), (), elr=(1, 2), last_known_leader=1, directories=(A, ""))
    image = image_of(away, registration(B), topic=topic)
    anew = reported(image, B, 2)
    assert (anew.leader, anew.isr, anew.elr, anew.directories) == (2, (2,), (), (B, ""))
    # One that was moved between two folders keeps its place.
    image = image_of(PLACED, topic=topic)
    moved = reported(image, B, 2)
    assert moved == replace(PLACED, directories=(B, "", ""), partition_epoch=10)


def test_places_are_stored_only_where_they_are_known() -> None:
    known, unknown = PLACED, replace(PLACED, directories=())
    assert decode_chunk("/", encode_chunk([known, unknown])) == (known, unknown)
    assert b"aaa" not in encode_chunk([unknown])
    for damage in ('[["a"]]', '["a","b"]', '["a","b",3]', '["a","b","' + "c" * 65 + '"]'):
        data = b'{"version":1,"partitions":[[[1,2,3],[1],1,0,0,[],-1,false,' + damage.encode() + b"]]}"
        with pytest.raises(CorruptNodeError):
            decode_chunk("/", data)


def after_a_failure(now: BrokerRegistration) -> BrokerRegistration:
    """The registration of broker 1 after its folder A has failed."""
    return replace(now, process=now.process.with_folders((f"{B} /data/b",), ()))


def test_a_folder_that_failed_lacks_records_after_a_restart_in_the_same_boot() -> None:
    """What it had is read from the page cache perhaps, and never reached the device."""
    failed = after_a_failure(registration(A, B))
    assert not failed.process.has_online(A)
    again = registration(A, B, epoch=2)
    assert [again.has_all_records_of(failed, each) for each in (A, B, "")] == [False, True, False]
    assert all(again.has_all_records_of(registration(A, B), each) for each in (A, B, ""))
    # Its session ended: what is in the other folder is there.
    renewed = replace(failed, epoch=2, process=failed.process._replace(previous_epoch=1))
    assert [renewed.has_all_records_of(failed, each) for each in (A, B, "")] == [False, True, False]
    stored = paths.encode_known_broker("h", 1, None, 1, process=failed.process)
    assert paths.decode_known_broker("/", stored)[-1] == failed.process


@of_any_topic
def test_a_replica_whose_folder_had_failed_does_not_lead_before_one_with_all_records(topic: str) -> None:
    failed = after_a_failure(registration(A, B))
    image = image_of(replace(PLACED, isr=(1, 2)), topic=topic)
    without = after(image, plan_registration(image, failed, lambda _: 2, is_clean=lambda _: True))
    assert without.leader == 2
    back = registration(A, B, epoch=2)
    image = image_of(without, failed, topic=topic)
    is_clean = partial(back.has_all_records_of, failed)
    led = after(image, plan_registration(image, back, lambda _: 2, is_clean=is_clean))
    assert (led.leader, 1 in (*led.isr, *led.elr)) == (2, False)


def test_a_process_without_a_folder_that_can_be_used_is_no_candidate() -> None:
    lost = registration(A).process.with_folders((), ())
    assert [lost.has_online(each) for each in ("", A, B)] == [False, False, False]
    assert BrokerProcess().has_online(A)


def test_a_replica_in_a_failed_folder_joins_no_isr() -> None:
    """Its fetches before the failure were on the way: the leader learns of it by the answer."""
    waiting = replace(PLACED, leader=2, isr=(2, 3))
    asked = PartitionAlteration(TOPIC_ID, 0, 4, 9, ((2, 1), (3, 1), (1, 1)), is_recovering=False)
    for failed, code in ((False, ErrorCode.none), (True, ErrorCode.ineligible_replica)):
        image = image_of(waiting, after_a_failure(registration(A, B)) if failed else registration(A, B))
        [result] = plan_alter_partitions(image, 2, [asked], lambda _: 2, LiveBrokers(image)).results
        assert result.error_code is code


def test_a_lone_replica_on_a_new_disk_leads() -> None:
    alone = PartitionImage(1, 4, 9, (1,), (1,), directories=(A,))
    image = image_of(alone)
    operations = plan_registration(image, registration(B, epoch=2), lambda _: 1, is_clean=lambda _: False)
    waiting = after(image, operations)
    assert waiting.leader == NO_BROKER
    image = image_of(waiting, registration(B, epoch=2))
    led = reported(image, B, 1)
    assert (led.leader, led.isr, led.directories) == (1, (1,), (B,))


@of_any_topic
def test_a_leader_whose_folder_is_full_gives_way_when_another_one_has_room_again(topic: str) -> None:
    everywhere = [registration(A, full=(A,), broker_id=each) for each in (1, 2, 3)]
    image = image_of(PLACED, *everywhere, topic=topic)
    assert plan_hand_overs(image, LiveBrokers(image), lambda _: 2) == []
    image = image_of(PLACED, *everywhere[:2], topic=topic)
    assert after(image, plan_hand_overs(image, LiveBrokers(image), lambda _: 2)).leader == 3
    assert after(image, plan_hand_overs(image, LiveBrokers(image), lambda _: 2, {TOPIC_ID})).leader == 3
    assert plan_hand_overs(image, LiveBrokers(image), lambda _: 2, {uuid.UUID(int=9)}) == []
