"""Clients from before zstd (KIP-110): they may neither send it nor read topics that have it as their own codec."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.handlers.records import (
    fetch,
    produce,
)
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.records.compression import CODECS, ZSTD
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.reading.conftest import NOW_MS, Denying
from tests.unit.reading.test_fetch_sessions import fields_of

if TYPE_CHECKING:
    from tests.unit.reading.conftest import World

PACKED = uuid.UUID(int=9)
UNSUPPORTED = ErrorCode.unsupported_compression_type


def sent(world: World, version: int, topic: str, *batches: bytes) -> list[ErrorCode]:
    """The codes of a topic's partitions, each with its batch."""
    partitions = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    response = world.ask(
        produce,
        version,
        transactional_id=None,
        acks=-1,
        timeout=1_000,
        topic_data=[{"name": topic, "partition_data": partitions}],
    )
    return [partition.error_code for partition in response.responses[0].partition_responses]


def batch_in(codec: int, size: int = 100) -> bytes:
    return build_batch([Record(b"key", bytes(size), NOW_MS)], codec=codec)


def fetched(world: World, version: int, *topics: str) -> list[tuple[ErrorCode, int, int]]:
    """Code, high watermark and bytes of each topic's first partition."""
    response = world.ask(fetch, version, **fields_of(version, (0, -1), [(topic, 0, 0) for topic in topics]))
    return [
        (partition.error_code, partition.high_watermark, len(partition.records or b""))
        for topic in response.responses
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("version", [3, 6])
def test_zstd_is_refused_in_versions_of_produce_from_before_it(world: World, version: int) -> None:
    others = [codec for codec in CODECS.values() if codec != ZSTD]
    for codec in others:
        assert sent(world, version, "flights", batch_in(codec), batch_in(ZSTD)) == [ErrorCode.none, UNSUPPORTED]
    assert world.replicas.log(TopicPartition("flights", 0)).log_end_offset == len(others)
    assert world.replicas.log(TopicPartition("flights", 1)).log_end_offset == 0


def test_zstd_is_taken_in_the_first_version_of_produce_that_has_it(world: World) -> None:
    assert sent(world, 7, "flights", batch_in(ZSTD)) == [ErrorCode.none]


@pytest.mark.parametrize("size", [100, 100_000])
def test_zstd_is_refused_although_the_topic_would_compress_it_anew(world: World, size: int) -> None:
    world.create("archive", PACKED, 2, {"compression.type": "gzip"})
    batches = [batch_in(ZSTD, size), build_batch([Record(None, bytes(size), NOW_MS)])]
    assert sent(world, 6, "archive", *batches) == [UNSUPPORTED, ErrorCode.none]
    assert world.replicas.log(TopicPartition("archive", 0)).log_end_offset == 0


def test_who_may_not_write_is_told_so_before_the_codec_is_looked_at(world: World) -> None:
    world.services.authorizer = Denying((AclOperation.write, ResourceType.topic, "flights"))
    assert sent(world, 6, "flights", batch_in(ZSTD)) == [ErrorCode.topic_authorization_failed]


@pytest.mark.parametrize("version", [4, 9])
def test_a_topic_stored_in_zstd_is_refused_to_fetches_from_before_it(world: World, version: int) -> None:
    world.create("packed", PACKED, 1, {"compression.type": "zstd"})
    for topic in ("packed", "flights"):
        world.append(topic, 0, b"x")
    refused, served = fetched(world, version, "packed", "flights")
    assert refused == (UNSUPPORTED, -1, 0)
    assert (served[0], served[1]) == (ErrorCode.none, 1)
    assert served[2] > 0


def test_a_topic_stored_in_zstd_is_served_to_the_first_version_that_has_it(world: World) -> None:
    world.create("packed", PACKED, 1, {"compression.type": "zstd"})
    world.append("packed", 0, b"x")
    [(code, high_watermark, size)] = fetched(world, 10, "packed")
    assert (code, high_watermark) == (ErrorCode.none, 1)
    assert size > 0


def test_who_may_not_read_is_not_told_the_codec_of_a_topic(world: World) -> None:
    world.create("packed", PACKED, 1, {"compression.type": "zstd"})
    world.services.authorizer = Denying((AclOperation.read, ResourceType.topic, "packed"))
    assert [code for code, *_ in fetched(world, 4, "packed")] == [ErrorCode.topic_authorization_failed]
