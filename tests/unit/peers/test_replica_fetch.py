"""The follower's Fetch beside kio's reader and writer."""

from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import response as response_schema
from kio.schema.fetch.v18.request import FetchRequest
from kio.serial import entity_reader, entity_writer

from headwater.logtier.peers.replica_fetch import (
    ReplicaFetchedPartition,
    ReplicaFetchPartition,
    ReplicaFetchResponse,
    replica_fetch_request,
)

# Untyped: kio's types of numbers would be in the way.
schema: Any = response_schema
FLIGHTS, WEATHER = UUID(int=0xF), UUID(int=0xE)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
INDEXES = st.integers(0, 2**31 - 1)
IDS = st.uuids().filter(lambda value: value.int != 0)


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def decoded(response: Any) -> ReplicaFetchResponse:
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    return request.decode(memoryview(written(response)))


def response(*partitions: Any, **values: Any) -> Any:
    return schema.FetchResponse(
        throttle_time=timedelta(0),
        error_code=values.pop("error_code", ErrorCode.none),
        responses=(schema.FetchableTopicResponse(topic_id=FLIGHTS, partitions=partitions),) if partitions else (),
        **values,
    )


def partition(**values: Any) -> Any:
    usual = {
        "partition_index": 3,
        "error_code": ErrorCode.none,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 7,
        "aborted_transactions": None,
        "records": b"records",
    }
    return schema.PartitionData(**(usual | values))


@given(
    replica_id=st.integers(0, 2**31 - 1),
    broker_epoch=I64,
    session=st.tuples(I32, I32),
    partitions=st.dictionaries(
        IDS, st.lists(st.builds(ReplicaFetchPartition, INDEXES, I32, I64, I32, I64, I32), max_size=3), max_size=3
    ),
    forgotten=st.dictionaries(IDS, st.lists(INDEXES, max_size=3), max_size=3),
)
def test_a_request_is_what_kio_reads(
    replica_id: int,
    broker_epoch: int,
    session: tuple[int, int],
    partitions: dict[UUID, list[ReplicaFetchPartition]],
    forgotten: dict[UUID, list[int]],
) -> None:
    request = replica_fetch_request(
        replica_id,
        broker_epoch,
        partitions,
        wait_ms=500,
        bytes_min=1,
        bytes_max=10 << 20,
        session_id=session[0],
        session_epoch=session[1],
        forgotten=forgotten,
    )
    entity, size = entity_reader(FetchRequest)(request.body, 0)
    assert size == len(request.body)
    assert (request.api_key, request.api_version, request.flexible) == (1, 18, True)
    assert (entity.replica_state.replica_id, entity.replica_state.replica_epoch) == (replica_id, broker_epoch)
    assert (entity.session_id, entity.session_epoch) == session
    assert (entity.max_wait, entity.min_bytes, entity.max_bytes) == (timedelta(milliseconds=500), 1, 10 << 20)
    assert (entity.isolation_level, entity.rack_id, entity.cluster_id) == (0, "", None)
    assert {
        topic.topic_id: [
            ReplicaFetchPartition(
                each.partition,
                each.current_leader_epoch,
                each.fetch_offset,
                each.last_fetched_epoch,
                each.log_start_offset,
                each.partition_max_bytes,
            )
            for each in topic.partitions
        ]
        for topic in entity.topics
    } == partitions
    assert {topic.topic_id: list(topic.partitions) for topic in entity.forgotten_topics_data} == forgotten
    assert written(entity) == request.body, "the bytes are those of kio's writer"


def test_records_are_views_of_the_response() -> None:
    body = memoryview(written(response(partition())))
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    [fetched] = request.decode(body).partitions
    assert fetched == ReplicaFetchedPartition(FLIGHTS, 3, 0, 100, 90, 7, memoryview(b"records"), None, None)
    assert fetched.records.obj is body.obj


def test_a_response_names_a_diverging_epoch_and_the_current_leader() -> None:
    [diverging, elsewhere] = decoded(
        response(
            partition(diverging_epoch=schema.EpochEndOffset(epoch=4, end_offset=55), records=b""),
            partition(
                partition_index=4,
                error_code=ErrorCode.not_leader_or_follower,
                current_leader=schema.LeaderIdAndEpoch(leader_id=3, leader_epoch=9),
                snapshot_id=schema.SnapshotId(end_offset=1, epoch=1),
                records=None,
            ),
            node_endpoints=(schema.NodeEndpoint(node_id=3, host="localhost", port=9092),),
        )
    ).partitions
    assert (diverging.diverging_epoch, diverging.current_leader) == ((4, 55), None)
    assert (elsewhere.diverging_epoch, elsewhere.current_leader, elsewhere.error_code) == (None, (3, 9), 6)
    assert len(elsewhere.records) == 0


def test_an_epoch_of_minus_one_is_no_divergence() -> None:
    """kio leaves defaults out; a peer may write them."""
    body = written(response(partition()))
    assert body.endswith(b"\0\0\0")  # tags of partition, topic and response
    tagged = body[:-3] + b"\x02\0\x0d" + struct.pack(">iqB", -1, -1, 0) + b"\x01\x09" + struct.pack(">iiB", -1, -1, 0)
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    [fetched] = request.decode(memoryview(tagged + b"\0\0")).partitions
    assert (fetched.diverging_epoch, fetched.current_leader) == (None, None)


def test_aborted_transactions_are_skipped() -> None:
    aborted = tuple(schema.AbortedTransaction(producer_id=number, first_offset=number) for number in range(200))
    [fetched] = decoded(response(partition(aborted_transactions=aborted))).partitions
    assert bytes(fetched.records) == b"records"
    [fetched] = decoded(response(partition(aborted_transactions=()))).partitions
    assert bytes(fetched.records) == b"records"


def test_the_error_of_a_whole_request_comes_with_its_session() -> None:
    answer = decoded(response(error_code=ErrorCode.fetch_session_id_not_found, session_id=0))
    assert (answer.error_code, answer.session_id, answer.partitions) == (70, 0, [])


@pytest.mark.parametrize("records", [b"records", None])
def test_a_cut_off_response_is_refused_wherever_it_is_cut(records: bytes | None) -> None:
    body = written(response(partition(records=records, diverging_epoch=schema.EpochEndOffset(epoch=4, end_offset=55))))
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    for end in range(len(body)):
        with pytest.raises((ValueError, IndexError)):
            request.decode(memoryview(body)[:end])


@given(st.binary(max_size=120))
def test_noise_is_decoded_or_refused_by_a_typed_error(noise: bytes) -> None:
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    try:
        answer = request.decode(memoryview(noise))
    except (ValueError, IndexError):
        return
    assert isinstance(answer, ReplicaFetchResponse)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_byte_is_decoded_or_refused_by_a_typed_error(records: bytes, data: st.DataObject) -> None:
    body = bytearray(written(response(partition(records=records, diverging_epoch=schema.EpochEndOffset(epoch=1)))))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    request = replica_fetch_request(2, 1, {}, wait_ms=0, bytes_min=0, bytes_max=0)
    try:
        answer = request.decode(memoryview(body))
    except (ValueError, IndexError):
        return
    assert isinstance(answer, ReplicaFetchResponse)
