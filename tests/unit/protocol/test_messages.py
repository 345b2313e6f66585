import struct
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, ProtocolViolationError

METADATA = {
    "throttle_time": 0,
    "brokers": [{"node_id": 1, "host": "localhost", "port": 9092, "rack": None}],
    "cluster_id": "c",
    "controller_id": 1,
    "topics": [
        {
            "error_code": ErrorCode.none,
            "name": "flights",
            "topic_id": None,
            "is_internal": False,
            "partitions": [
                {
                    "error_code": ErrorCode.none,
                    "partition_index": 0,
                    "leader_id": 1,
                    "leader_epoch": 0,
                    "replica_nodes": [1],
                    "isr_nodes": [1],
                    "offline_replicas": [],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("version", range(14))
def test_one_tree_makes_the_response_of_every_version(version: int) -> None:
    body = messages.encode_response(3, version, METADATA)
    response: Any
    response, size = entity_reader(load_response_schema(3, version))(body, 0)
    assert size == len(body)
    assert response.topics[0].name == "flights"
    assert response.topics[0].partitions[0].replica_nodes == (1,)


def test_a_field_of_no_version_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="has no field 'colour' in any version"):
        messages.encode_response(3, 12, METADATA | {"colour": "red"})


def test_durations_are_given_in_milliseconds() -> None:
    body = messages.encode_response(12, 4, {"throttle_time": 1500})
    assert struct.unpack_from(">i", body)[0] == 1500


def header(api_key: int, version: int, client_id: bytes = b"c", client_id_length: int | None = None) -> bytes:
    length = len(client_id) if client_id_length is None else client_id_length
    return struct.pack(">hhih", api_key, version, 7, length) + client_id


def test_header_of_a_flexible_request_has_tagged_fields_that_are_skipped() -> None:
    frame = header(3, 9) + b"\x01\x05\x02ab" + b"\x01\x00\x00\x00\x00"
    read = messages.read_request_header(frame)
    assert (read.api_key, read.api_version, read.correlation_id, read.client_id) == (3, 9, 7, "c")
    assert messages.read_request(read, frame).topics == ()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        header(3, 9)[:9],
        header(3, 9, client_id_length=500),
        header(3, 9, b"\xff\xfe"),
    ],
    ids=["empty", "short", "client id longer than the request", "client id not UTF-8"],
)
def test_a_broken_header_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolationError):
        messages.read_request_header(frame)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xff\xff\xff\x07",
        b"\x00\xff\xff\xff\x7f",
        b"\x00\x02\x7f",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x02\x00\x7f",
    ],
    ids=[
        "empty",
        "array of 2^31",
        "array of 2^28",
        "string past the end",
        "endless varint",
        "tag past the end",
    ],
)
def test_a_broken_body_is_refused(body: bytes) -> None:
    frame = header(3, 9) + body
    with pytest.raises(ProtocolViolationError):
        messages.read_request(messages.read_request_header(frame), frame)


def test_bytes_after_the_end_are_borne_as_librdkafka_sends_them() -> None:
    frame = header(3, 9) + b"\x00\x01\x00\x00\x00\x00" + b"\x00\x00\x00"
    assert messages.read_request(messages.read_request_header(frame), frame).topics == ()


def test_a_null_array_that_the_schema_does_not_allow_is_refused() -> None:
    frame = header(42, 0) + struct.pack(">i", -1)
    with pytest.raises(ProtocolViolationError, match="groups_names is null"):
        messages.read_request(messages.read_request_header(frame), frame)
    nested = header(2, 1) + struct.pack(">iih", -1, 1, 1) + b"t" + struct.pack(">i", -1)
    with pytest.raises(ProtocolViolationError, match="partitions is null"):
        messages.read_request(messages.read_request_header(nested), nested)


def test_a_tagged_field_that_is_not_known_is_skipped() -> None:
    frame = header(3, 9) + b"\x00" + b"\x01\x00\x00\x00" + b"\x01\x63\x01x"
    request = messages.read_request(messages.read_request_header(frame), frame)
    assert (request.topics, request.allow_auto_topic_creation) == ((), False)


def test_a_tagged_field_that_is_longer_than_the_request_is_refused_in_one_line() -> None:
    frame = header(3, 9) + b"\x00" + b"\x01\x00\x00\x00" + b"\x01\x63\x7fx"
    with pytest.raises(ProtocolViolationError):
        messages.read_request(messages.read_request_header(frame), frame)
