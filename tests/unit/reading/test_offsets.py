"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch, answered as Apache Kafka 4.1.1 answers the same requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.handlers.records import (
    delete_records,
    list_offsets,
    offset_for_leader_epoch,
)
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.reading.conftest import NOW_MS, Denying

if TYPE_CHECKING:
    from tests.unit.reading.conftest import World

NONE = ErrorCode.none
NOT_FOUND = (NONE, -1, -1, -1)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def list_one(
    world: World,
    timestamp: int,
    *,
    version: int = 10,
    topic: str = "flights",
    index: int = 0,
    times: int = 1,
    **fields: Any,
) -> tuple[ErrorCode, int, int, int]:
    """Error, timestamp, offset and leader epoch of one partition."""
    partition = {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": -1, **fields}
    response = world.ask(
        list_offsets,
        version,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [partition] * times}],
        timeout=1000,
    )
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.timestamp, answer.offset, getattr(answer, "leader_epoch", -1)


def test_special_timestamps_are_answered(world: World) -> None:
    world.append("flights", 0, b"a", timestamp_ms=NOW_MS + 5)
    world.append("flights", 0, b"b", timestamp_ms=NOW_MS)
    assert list_one(world, LATEST) == (NONE, -1, 2, 0)
    assert list_one(world, EARLIEST) == (NONE, -1, 0, 0)
    assert list_one(world, EARLIEST_LOCAL) == (NONE, -1, 0, 0)
    assert list_one(world, MAX_TIMESTAMP) == (NONE, NOW_MS + 5, 0, 0)
    assert list_one(world, LATEST_TIERED) == NOT_FOUND
    assert list_one(world, NOW_MS + 1) == (NONE, NOW_MS + 5, 0, 0)
    assert list_one(world, NOW_MS + 6) == NOT_FOUND


def test_an_empty_partition_has_ends_but_no_timestamps(world: World) -> None:
    assert list_one(world, LATEST) == (NONE, -1, 0, 0)
    assert list_one(world, EARLIEST) == (NONE, -1, 0, 0)
    assert list_one(world, MAX_TIMESTAMP) == NOT_FOUND
    assert list_one(world, 0) == NOT_FOUND


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (-6, 99), (-7, 99)]
)
def test_a_special_timestamp_is_known_from_its_version_on(world: World, timestamp: int, first_version: int) -> None:
    for version in range(1, 11):
        error = list_one(world, timestamp, version=version)[0]
        assert error is (NONE if version >= first_version else ErrorCode.unsupported_version)


def test_a_partition_that_is_asked_for_twice_is_refused(world: World) -> None:
    assert list_one(world, LATEST, times=2)[0] is ErrorCode.invalid_request


def test_list_offsets_tells_what_is_not_there_from_what_is_not_allowed(world: World) -> None:
    assert list_one(world, LATEST, index=9)[0] is ErrorCode.unknown_topic_or_partition
    assert list_one(world, LATEST, current_leader_epoch=5)[0] is ErrorCode.unknown_leader_epoch
    world.services.authorizer = Denying((AclOperation.describe, ResourceType.topic, "flights"))
    assert list_one(world, LATEST)[0] is ErrorCode.topic_authorization_failed
    assert list_one(world, LATEST, topic="airports")[0] is NONE


def delete(world: World, offset: int, *, topic: str = "flights", index: int = 0) -> tuple[ErrorCode, int]:
    response = world.ask(
        delete_records,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": offset}]}],
        timeout=1000,
    )
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(world: World) -> None:
    world.append("flights", 0, *[b"x"] * 10)
    assert delete(world, 5) == (NONE, 5)
    assert delete(world, 3) == (NONE, 5), "the start never goes back"
    assert list_one(world, EARLIEST)[2] == 5
    assert delete(world, 11) == (ErrorCode.offset_out_of_range, -1)
    assert delete(world, -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete(world, -1) == (NONE, 10)
    assert list_one(world, EARLIEST)[2] == 10
    assert list_one(world, MAX_TIMESTAMP) == NOT_FOUND, "what is deleted is not found"


def test_records_of_a_log_that_is_only_compacted_are_not_deleted(world: World) -> None:
    world.append("counts", 0, b"one")
    assert delete(world, 1, topic="counts") == (ErrorCode.policy_violation, -1)


def test_deleting_records_needs_a_partition_and_the_right(world: World) -> None:
    assert delete(world, 0, index=7)[0] is ErrorCode.unknown_topic_or_partition
    assert delete(world, 0, topic="weather")[0] is ErrorCode.unknown_topic_or_partition
    world.services.authorizer = Denying((AclOperation.delete, ResourceType.topic, "flights"))
    assert delete(world, 0)[0] is ErrorCode.topic_authorization_failed


def test_of_two_offsets_for_one_partition_the_last_counts(world: World) -> None:
    world.append("flights", 0, *[b"x"] * 10)
    partitions = [{"partition_index": 0, "offset": 7}, {"partition_index": 0, "offset": 2}]
    response = world.ask(delete_records, 2, topics=[{"name": "flights", "partitions": partitions}], timeout=1000)
    [answer] = response.topics[0].partitions
    assert answer.low_watermark == 2


def end_of(
    world: World, leader_epoch: int, *, current: int = -1, topic: str = "flights", index: int = 0, version: int = 4
) -> tuple[ErrorCode, int, int]:
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": leader_epoch}
    response = world.ask(
        offset_for_leader_epoch, version, replica_id=-2, topics=[{"topic": topic, "partitions": [partition]}]
    )
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_present_epoch_ends_at_the_logs_end(world: World, version: int) -> None:
    assert end_of(world, 0, version=version) == (NONE, 0, 0)
    world.append("flights", 0, b"a", b"b")
    assert end_of(world, 0, version=version) == (NONE, 0, 2)
    assert end_of(world, 0, current=0, version=version) == (NONE, 0, 2)


def test_an_epoch_to_come_and_none_have_no_end(world: World) -> None:
    world.append("flights", 0, b"a")
    assert end_of(world, 1) == (NONE, -1, -1)
    assert end_of(world, -1) == (NONE, -1, -1)


def test_an_epoch_without_records_ends_where_the_last_one_before_it_does(world: World) -> None:
    world.append("flights", 0, b"a", b"b")
    world.replicas.partition(TopicPartition("flights", 0)).leadership(PartitionImage(1, 3, 3, (1,), (1,)), {}, 0)
    assert end_of(world, 0) == (NONE, 0, 2)
    assert end_of(world, 2) == (NONE, 0, 2)
    assert end_of(world, 3) == (NONE, 3, 2)
    world.append("flights", 0, b"c")
    assert end_of(world, 2) == (NONE, 0, 2)
    assert end_of(world, 3) == (NONE, 3, 3)


def test_the_end_of_an_epoch_is_told_by_the_leader_in_the_epoch_the_client_knows(world: World) -> None:
    assert end_of(world, 0, current=5)[0] is ErrorCode.unknown_leader_epoch
    assert end_of(world, 0, current=-2)[0] is ErrorCode.fenced_leader_epoch
    assert end_of(world, 0, index=9)[0] is ErrorCode.unknown_topic_or_partition


def test_either_the_right_to_describe_the_topic_or_that_of_brokers_will_do(world: World) -> None:
    cluster = (AclOperation.cluster_action, ResourceType.cluster, "kafka-cluster")
    topic = (AclOperation.describe, ResourceType.topic, "flights")
    world.services.authorizer = Denying(cluster)
    assert end_of(world, 0)[0] is NONE
    world.services.authorizer = Denying(topic)
    assert end_of(world, 0)[0] is NONE
    world.services.authorizer = Denying(cluster, topic)
    assert end_of(world, 0)[0] is ErrorCode.topic_authorization_failed
