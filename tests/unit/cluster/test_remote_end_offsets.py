"""Which partitions a broker asks of which leader for the lag of its groups, and how long an answer counts."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headwater.logtier.cluster import remote_end_offsets
from headwater.logtier.cluster.remote_end_offsets import VALID_MS, EndQuestion, EndQuestions, RemoteEndOffsets
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.peers.leader_requests import ListedOffset
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

THIS_BROKER = 1
FLIGHTS_ID, OTHER_ID = uuid.UUID(int=5), uuid.UUID(int=6)
P0 = TopicPartition("flights", 0)


def image_of(*leaders: tuple[int, int], topic_id: uuid.UUID = FLIGHTS_ID) -> MetadataImage:
    """Topic `flights`, with the leader and the leader epoch of each partition."""
    states = tuple(PartitionImage(leader, epoch, 0, (1, 2, 3), (1, 2, 3)) for leader, epoch in leaders)
    return MetadataImage(topics={"flights": TopicImage("flights", topic_id, states)})


def questions(image: MetadataImage, *indexes: int, topic: str = "flights") -> EndQuestions:
    gathered = EndQuestions(THIS_BROKER, image)
    for index in indexes:
        gathered.add(TopicPartition(topic, index))
    return gathered


def batches(gathered: EndQuestions) -> dict[int, list[list[tuple[int, int]]]]:
    """By leader: the partitions and their epochs in each request."""
    return {
        leader: [[(each.topic_partition.partition, each.leader_epoch) for each in batch] for batch in found]
        for leader in gathered.leaders()
        if (found := list(gathered.batches(leader)))
    }


def test_each_leader_is_asked_for_its_partitions_in_their_leader_epochs() -> None:
    image = image_of((2, 7), (3, 8), (2, 9))
    assert batches(questions(image, 0, 1, 2)) == {2: [[(0, 7), (2, 9)]], 3: [[(1, 8)]]}


def test_a_partition_of_two_groups_is_asked_for_once() -> None:
    assert batches(questions(image_of((2, 7)), 0, 0)) == {2: [[(0, 7)]]}


def test_what_this_broker_leads_or_no_broker_leads_is_not_asked_for() -> None:
    assert batches(questions(image_of((THIS_BROKER, 1), (NO_BROKER, 2)), 0, 1)) == {}


def test_a_deleted_topic_and_a_partition_beyond_the_last_are_not_asked_for() -> None:
    image = image_of((2, 7))
    assert batches(questions(image, 1)) == {}
    assert batches(questions(image, 0, topic="deleted")) == {}


def test_many_partitions_of_a_leader_are_split_into_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_end_offsets, "PARTITIONS_PER_REQUEST_MAX", 2)
    image = image_of(*[(2, 0)] * 5)
    assert batches(questions(image, *range(5))) == {2: [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(4, 0)]]}


def answered(
    ends: RemoteEndOffsets,
    end: int,
    now_ms: int,
    *,
    image: MetadataImage | None = None,
    code: int = ErrorCode.none,
    epoch: int = 7,
) -> None:
    """The answer of broker 2 to a question in leader epoch 7."""
    asked = [EndQuestion(P0, FLIGHTS_ID, 7)]
    present = image_of((2, 7)) if image is None else image
    ends.answered(asked, {P0: ListedOffset(code, end, epoch)}, present, now_ms)


def test_the_last_answer_counts() -> None:
    ends = RemoteEndOffsets()
    assert ends.end_offset(P0, FLIGHTS_ID, 0) is None
    answered(ends, 10, 0)
    answered(ends, 12, 10)
    assert ends.end_offset(P0, FLIGHTS_ID, 10) == 12


@pytest.mark.parametrize(
    "code",
    [ErrorCode.not_leader_or_follower, ErrorCode.offset_not_available, ErrorCode.unknown_topic_or_partition],
)
def test_after_an_error_the_answer_before_counts_for_a_minute_and_no_longer(code: ErrorCode) -> None:
    ends = RemoteEndOffsets()
    answered(ends, 10, 1_000)
    answered(ends, -1, 11_000, code=code)
    assert ends.end_offset(P0, FLIGHTS_ID, 1_000 + VALID_MS) == 10
    assert ends.end_offset(P0, FLIGHTS_ID, 1_001 + VALID_MS) is None


def test_a_partition_that_is_missing_in_an_answer_keeps_its_end() -> None:
    ends = RemoteEndOffsets()
    answered(ends, 10, 0)
    ends.answered([EndQuestion(P0, FLIGHTS_ID, 7)], {}, image_of((2, 7)), 5)
    assert ends.end_offset(P0, FLIGHTS_ID, 5) == 10


@pytest.mark.parametrize(
    "present",
    [
        MetadataImage(),
        image_of((2, 7), topic_id=OTHER_ID),
        image_of((3, 8)),
        image_of((2, 8)),
        image_of((NO_BROKER, 8)),
    ],
    ids=["deleted", "recreated", "another leader", "a later epoch", "no leader"],
)
def test_an_answer_does_not_count_if_topic_or_leader_epoch_ended_meanwhile(present: MetadataImage) -> None:
    ends = RemoteEndOffsets()
    answered(ends, 10, 0)
    answered(ends, 12, 5, image=present)
    assert ends.end_offset(P0, FLIGHTS_ID, 5) == 10


def test_a_change_of_the_isr_does_not_outdate_an_answer() -> None:
    ends, image = RemoteEndOffsets(), image_of((2, 7))
    [state] = image.topics["flights"].partitions
    shrunk = replace(image.topics["flights"], partitions=(replace(state, isr=(2,), partition_epoch=4),))
    answered(ends, 12, 5, image=MetadataImage(topics={"flights": shrunk}))
    assert ends.end_offset(P0, FLIGHTS_ID, 5) == 12


def test_an_end_is_of_one_topic_and_not_of_another_with_its_name() -> None:
    ends = RemoteEndOffsets()
    answered(ends, 10, 0)
    assert ends.end_offset(P0, OTHER_ID, 0) is None


def test_ends_without_newer_answers_leave_the_memory() -> None:
    ends = RemoteEndOffsets()
    answered(ends, 10, 0)
    ends.expire(VALID_MS)
    assert len(ends) == 1
    ends.expire(VALID_MS + 1)
    assert len(ends) == 0
