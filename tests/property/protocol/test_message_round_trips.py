"""Every message at every version that we advertise, with arbitrary values in all of its fields."""

from __future__ import annotations

import struct
from functools import cache
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.produce_request import ProduceRequest
from tests.example_counts import examples
from tests.kio_messages import ZERO_ID, as_tree, entities, part_of, tokens, trees

#: For each version; many versions differ little.
EXAMPLES = examples(15)


def versions(api_key: int) -> range:
    first, last = HANDLERS[api_key].VERSIONS
    return range(first, last + 1)


def header(api_key: int, version: int) -> bytes:
    flexible = messages.is_flexible(api_key, version)
    return struct.pack(">hhih", api_key, version, 7, 1) + b"c" + (b"\x00" if flexible else b"")


@cache
def response_schemas(api_key: int) -> tuple[Any, ...]:
    return tuple(load_response_schema(api_key, version) for version in versions(api_key))


@cache
def response_trees(api_key: int) -> st.SearchStrategy[Any]:
    return trees(response_schemas(api_key))


@pytest.mark.parametrize("api_key", HANDLERS, ids=messages.api_name)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_a_request_is_read_as_it_was_written(api_key: int, data: st.DataObject) -> None:
    for version in versions(api_key):
        schema: Any = load_request_schema(api_key, version)
        entity = data.draw(entities(schema), label=f"version {version}")
        buffer = BytesIO()
        entity_writer(schema)(buffer, entity)
        assert b"".join(part.data for part in tokens(entity)) == buffer.getvalue()
        frame = header(api_key, version) + buffer.getvalue()
        request = messages.read_request(messages.read_request_header(frame), memoryview(frame))
        if isinstance(request, ProduceRequest):
            assert produce_tree(request) == kio_produce_tree(entity)
        else:
            assert request == entity


def produce_tree(request: ProduceRequest) -> Any:
    return [
        (request.transactional_id, request.acks, request.timeout_ms),
        [
            (each.name, each.topic_id, [(p.index, None if p.records is None else bytes(p.records)) for p in parts])
            for each in request.topic_data
            for parts in [each.partition_data]
        ],
    ]


def kio_produce_tree(entity: Any) -> Any:
    def topic_id(topic: Any) -> UUID | None:
        return (topic.topic_id or ZERO_ID) if hasattr(topic, "topic_id") else None

    return [
        (entity.transactional_id, entity.acks, messages.milliseconds(entity.timeout)),
        [
            (getattr(each, "name", ""), topic_id(each), [(p.index, p.records) for p in each.partition_data])
            for each in entity.topic_data
        ],
    ]


@pytest.mark.parametrize("api_key", HANDLERS, ids=messages.api_name)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_a_version_of_a_response_has_what_it_can_hold_of_a_tree(api_key: int, data: st.DataObject) -> None:
    tree = data.draw(response_trees(api_key))
    for version, schema in zip(versions(api_key), response_schemas(api_key), strict=True):
        body = messages.encode_response(api_key, version, tree)
        response, size = entity_reader(schema)(body, 0)
        assert size == len(body)
        assert as_tree(response) == part_of(schema, tree)
        assert b"".join(part.data for part in tokens(response)) == body
