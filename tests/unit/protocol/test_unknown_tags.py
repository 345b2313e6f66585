"""Requests with tagged fields that no schema has: at every version of every API they are skipped."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ProtocolViolationError
from headwater.logtier.protocol.unknown_tags import without_unknown_tags
from tests.unit.reading.conftest import encoded, make

UNKNOWN = b"\x63\x03new"
"""Tag 99, three bytes."""

METADATA_BODY = b"\x01\x00\x00\x00\x00"
"""No topics, three flags, no tagged fields (version 9)."""


def fetch_body(topic_tags: bytes, partition_tags: bytes, tags: bytes) -> bytes:
    """A Fetch of version 12 for one partition, each level with the tagged fields given."""
    partition = b"\0" * 4 + b"\xff" * 4 + b"\0" * 8 + b"\xff" * 4 + b"\xff" * 8 + b"\0\x10\0\0" + partition_tags
    topic = b"\x02t" + b"\x02" + partition + topic_tags
    head = b"\xff\xff\xff\xff" + b"\0\0\0\x64" + b"\0\0\0\x01" + b"\0\x10\0\0" + b"\0" + b"\0" * 4 + b"\xff" * 4
    return head + b"\x02" + topic + b"\x01" + b"\x01" + tags


def newest_requests() -> list[tuple[int, int]]:
    return [(key, max(schema_name_map[name])) for key, name in api_key_map.items()]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_unknown_fields_are_left_out_at_every_level(level: int) -> None:
    plain = [b"\0", b"\0", b"\0"]
    tagged = [b"\x01" + UNKNOWN if i == level else b"\0" for i in range(3)]
    body = fetch_body(*tagged)
    assert without_unknown_tags(load_request_schema(1, 12), body) == fetch_body(*plain)
    header = messages.RequestHeader(1, 12, 7, None, 0)
    request = messages.read_request(header, b"\0" + body)
    assert request.topics[0].topic == "t"


def test_known_fields_beside_unknown_ones_are_kept() -> None:
    cluster_id = b"\x00\x04\x04abc"
    body = fetch_body(b"\0", b"\0", b"\x02" + cluster_id + UNKNOWN)
    kept = without_unknown_tags(load_request_schema(1, 12), body)
    request: Any = entity_reader(load_request_schema(1, 12))(kept, 0)[0]
    assert request.cluster_id == "abc"


def test_a_known_field_that_holds_a_structure_is_cleaned_inside() -> None:
    # Version 15: tag 1 is the replica's state, a structure with tagged fields of its own.
    state = b"\0\0\0\x05" + b"\0" * 7 + b"\x09" + b"\x01" + UNKNOWN
    head = b"\0\0\0\x64" + b"\0\0\0\x01" + b"\0\x10\0\0" + b"\0" + b"\0" * 4 + b"\xff" * 4
    body = head + b"\x01" + b"\x01" + b"\x01" + b"\x01" + bytes([1, len(state)]) + state
    schema = load_request_schema(1, 15)
    request: Any = entity_reader(schema)(without_unknown_tags(schema, body), 0)[0]
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (5, 9)


def test_a_request_without_unknown_fields_is_copied_unchanged() -> None:
    values = {"topics": [{"name": "a", "topic_id": uuid.uuid4()}], "allow_auto_topic_creation": True}
    for version in range(10, 14):
        body = encoded(
            make(
                load_request_schema(3, version),
                values | {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": True},
            )
        )
        assert without_unknown_tags(load_request_schema(3, version), body + b"rest") == body + b"rest"


def test_every_request_can_be_copied() -> None:
    for key, version in newest_requests():
        schema = load_request_schema(key, version)
        if not schema.__flexible__:
            continue
        with pytest.raises(ProtocolViolationError):
            without_unknown_tags(schema, b"")


def test_a_known_field_that_is_longer_than_its_size_is_refused() -> None:
    body = fetch_body(b"\0", b"\0", b"\x02" + b"\x00\x02\x04abc" + UNKNOWN)
    with pytest.raises(ProtocolViolationError):
        without_unknown_tags(load_request_schema(1, 12), body)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_requests_are_refused_in_one_way(seed: int) -> None:
    noise = random.Random(seed)
    body = bytearray(fetch_body(b"\x01" + UNKNOWN, b"\x01" + UNKNOWN, b"\x01" + UNKNOWN))
    for _ in range(noise.randrange(1, 4)):
        body[noise.randrange(len(body))] = noise.choice([0, 1, 0x7F, 0x80, 0xFF])
    del body[noise.randrange(len(body) // 2, len(body) + 1) :]
    try:
        without_unknown_tags(load_request_schema(1, 12), bytes(body))
    except ProtocolViolationError as refusal:
        assert "\n" not in str(refusal)
