from __future__ import annotations

import dataclasses
import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.client.messages import CLIENT_VERSIONS, ApiKey, kio_request, nested
from headwater.logtier.client.produce_codec import produce_request
from headwater.logtier.client.wire import Cursor

FETCH_VERSIONS = range(CLIENT_VERSIONS[ApiKey.FETCH][0], CLIENT_VERSIONS[ApiKey.FETCH][1] + 1)
PRODUCE_VERSIONS = range(CLIENT_VERSIONS[ApiKey.PRODUCE][0], CLIENT_VERSIONS[ApiKey.PRODUCE][1] + 1)


def read_request(api_key: int, version: int, body: bytes) -> Any:
    entity, size = entity_reader(load_request_schema(api_key, version))(body, 0)
    assert size == len(body)
    return entity


def build(schema: Any, **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def fetch_response(version: int, records: bytes) -> bytes:
    schema: Any = load_response_schema(ApiKey.FETCH, version)
    topic_schema = nested(schema, "responses")
    partition_schema = nested(topic_schema, "partitions")
    aborted = build(nested(partition_schema, "aborted_transactions"), producer_id=4, first_offset=5)
    partition = build(
        partition_schema,
        partition_index=3,
        error_code=ErrorCode.none,
        high_watermark=100,
        last_stable_offset=90,
        log_start_offset=7,
        aborted_transactions=(aborted,),
        preferred_read_replica=-1,
        records=records,
    )
    topic = build(topic_schema, topic="flights", partitions=(partition,))
    return written(
        build(
            schema,
            throttle_time=timedelta(0),
            error_code=ErrorCode.none,
            session_id=0,
            responses=(topic,),
        )
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_request_is_what_kio_reads(version: int) -> None:
    request = fetch_request(
        version,
        [FetchPosition("a", 0, 5, 100), FetchPosition("a", 2, 6, 200), FetchPosition("b", 1, 7, 300)],
        wait_ms=50,
        bytes_min=1,
        bytes_max=1000,
    )
    entity = read_request(ApiKey.FETCH, version, request.body)
    assert (entity.max_bytes, entity.min_bytes) == (1000, 1)
    assert [
        (topic.topic, part.partition, part.fetch_offset, part.partition_max_bytes)
        for topic in entity.topics
        for part in topic.partitions
    ] == [("a", 0, 5, 100), ("a", 2, 6, 200), ("b", 1, 7, 300)]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_response_written_by_kio_is_read_without_a_copy_of_the_records(version: int) -> None:
    body = memoryview(fetch_response(version, b"records"))
    request = fetch_request(version, [], wait_ms=0, bytes_min=0, bytes_max=0)
    (fetched,) = request.decode(body)
    assert (fetched.topic, fetched.partition, fetched.error_code) == ("flights", 3, 0)
    assert (fetched.high_watermark, fetched.last_stable_offset) == (100, 90)
    assert fetched.log_start_offset == (7 if version >= 5 else -1)
    assert bytes(fetched.records) == b"records"
    assert fetched.records.obj is body.obj


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_states_leader_epoch_and_rack_where_the_version_has_them(version: int) -> None:
    position = FetchPosition("a", 0, 5, 100, leader_epoch=9)
    request = fetch_request(version, [position], wait_ms=50, bytes_min=1, bytes_max=1000, rack="b")
    entity = read_request(ApiKey.FETCH, version, request.body)
    assert getattr(entity.topics[0].partitions[0], "current_leader_epoch", None) == (9 if version >= 9 else None)
    assert getattr(entity, "rack_id", None) == ("b" if version >= 11 else None)


def test_the_replica_to_read_from_and_the_current_leader_are_read() -> None:
    body = bytearray(fetch_response(12, b""))
    request = fetch_request(12, [], wait_ms=0, bytes_min=0, bytes_max=0)
    # The end: replica, no records, and the numbers of tagged fields of partition, topic and response.
    end = struct.pack(">iB", -1, 1) + bytes(3)
    assert body.endswith(end)
    leader = struct.pack(">BBiiB", 1, 9, 3, 6, 0)
    body[-len(end) :] = struct.pack(">iBB", 2, 1, 1) + leader + bytes(2)
    (fetched,) = request.decode(memoryview(body))
    assert (fetched.preferred_read_replica, fetched.current_leader) == (2, (3, 6))


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_cut_off_fetch_response_is_refused_wherever_it_is_cut(version: int) -> None:
    body = fetch_response(version, b"records")
    request = fetch_request(version, [], wait_ms=0, bytes_min=0, bytes_max=0)
    for end in range(len(body)):
        with pytest.raises((ValueError, IndexError)):
            request.decode(memoryview(body)[:end])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_request_is_what_kio_reads(version: int) -> None:
    request = produce_request(
        version, {"a": [(0, b"first"), (1, bytearray(b"second"))], "b": [(5, b"x" * 300)]}, timeout_ms=1000
    )
    entity = read_request(ApiKey.PRODUCE, version, request.body)
    assert entity.acks == -1
    assert [
        (topic.name, part.index, bytes(part.records)) for topic in entity.topic_data for part in topic.partition_data
    ] == [("a", 0, b"first"), ("a", 1, b"second"), ("b", 5, b"x" * 300)]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_response_written_by_kio_is_read(version: int) -> None:
    schema: Any = load_response_schema(ApiKey.PRODUCE, version)
    topic_schema = nested(schema, "responses")
    partition_schema = nested(topic_schema, "partition_responses")
    values: dict[str, Any] = {"index": 3, "error_code": ErrorCode.message_too_large, "base_offset": 77}
    if version >= 8:
        record_error = nested(partition_schema, "record_errors")(batch_index=0, batch_index_error_message="bad")
        values |= {"record_errors": (record_error,), "error_message": "too large"}
    partition = build(partition_schema, **values)
    body = written(
        schema(responses=(topic_schema(name="flights", partition_responses=(partition,)),), throttle_time=timedelta(0))
    )
    (produced,) = produce_request(version, {}, timeout_ms=0).decode(memoryview(body))
    assert (produced.topic, produced.partition, produced.error_code, produced.base_offset) == ("flights", 3, 10, 77)
    assert produced.error_message == ("too large" if version >= 8 else None)


@pytest.mark.parametrize("version", range(4, 13))
def test_plain_values_become_the_entity_of_each_version(version: int) -> None:
    request = kio_request(
        ApiKey.METADATA,
        version,
        {
            "topics": ({"name": "flights", "topic_id": None},),
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )
    entity = read_request(ApiKey.METADATA, version, request.body)
    assert [topic.name for topic in entity.topics] == ["flights"]


def test_a_hostile_array_length_is_refused() -> None:
    cursor = Cursor(memoryview(b"\x7f\xff\xff\xff" + b"x" * 10), flexible=False)
    with pytest.raises(ValueError, match="an array of 2147483647 elements"):
        cursor.array(element_bytes_min=1)
