"""The topic that a coordinator keeps its state in."""

from __future__ import annotations

import asyncio

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.state_topic.topic import StateTopic, create_state_topic, partition_for
from tests.unit.state_topic.surroundings import MemoryController, MemoryMetadata

TOPIC = StateTopic("__state", 4, 1, {"cleanup.policy": "compact"})


@pytest.mark.parametrize(
    ("name", "java_hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("äöü", 226986),
        ("\U0001f600", 1772899),
    ],
)
def test_the_partition_of_a_name_is_that_of_javas_hash_code(name: str, java_hash_code: int) -> None:
    positive = 0 if java_hash_code == -(2**31) else abs(java_hash_code)
    assert [partition_for(name, count) for count in (1, 50, 1000)] == [positive % count for count in (1, 50, 1000)]


def test_the_topic_is_created_as_it_is_described() -> None:
    metadata = MemoryMetadata()
    asyncio.run(create_state_topic(MemoryController(metadata), TOPIC))
    created = metadata.image.topic("__state")
    assert created is not None
    assert len(created.partitions) == 4


def test_a_topic_that_another_request_has_just_created_is_as_good() -> None:
    error = KafkaError(ErrorCode.topic_already_exists, "it is there")
    asyncio.run(create_state_topic(MemoryController(MemoryMetadata(), error=error), TOPIC))


def test_clients_come_again_when_the_topic_cannot_be_created() -> None:
    controller = MemoryController(MemoryMetadata(), error=KafkaError(ErrorCode.invalid_replication_factor, "too few"))
    with pytest.raises(KafkaError, match="__state cannot be created: too few") as refused:
        asyncio.run(create_state_topic(controller, TOPIC))
    assert refused.value.code is ErrorCode.coordinator_not_available
