"""A whole request that is refused: whatever its version, the client reads the error where it looks for it."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.refusals import refusal
from tests.kio_messages import filled, tokens

CODE = ErrorCode.unknown_server_error
PRODUCE, FETCH, DESCRIBE_LOG_DIRS = 0, 1, 35
#: Where a response of theirs has no place at its top, nothing is told.
WITHOUT_A_PLACE = (PRODUCE, FETCH, DESCRIBE_LOG_DIRS)

VERSIONS = [
    pytest.param(key, version, id=f"{messages.api_name(key)}-v{version}")
    for key, handler in sorted(HANDLERS.items())
    for version in range(handler.VERSIONS[0], handler.VERSIONS[1] + 1)
    if refusal(key, version, CODE, "") or key not in WITHOUT_A_PLACE
]


def request_of(api_key: int, version: int, **values: Any) -> Any:
    """One element in each array, as the broker reads it."""
    flexible = b"\x00" if messages.is_flexible(api_key, version) else b""
    body = b"".join(part.data for part in tokens(filled(load_request_schema(api_key, version), values)))
    frame = struct.pack(">hhih", api_key, version, 7, 1) + b"c" + flexible + body
    return messages.read_request(messages.read_request_header(frame), frame)


def refused(api_key: int, version: int, request: Any) -> Any:
    """The response, as a client reads it."""
    tree = refusal(api_key, version, CODE, "why", request)
    assert tree is not None
    body = messages.encode_response(api_key, version, tree)
    response: Any
    response, size = entity_reader(load_response_schema(api_key, version))(body, 0)
    assert size == len(body)
    return response


def errors(entity: Any) -> Iterator[ErrorCode]:
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if field.metadata.get("kafka_type") == "error_code":
            yield value
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from errors(each)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_every_version_of_every_api_says_the_error_and_no_success(api_key: int, version: int) -> None:
    said = list(errors(refused(api_key, version, request_of(api_key, version, acks=1))))
    assert said
    assert set(said) == {CODE}


def test_a_partition_is_told_by_its_topic_and_its_number() -> None:
    [listed] = refused(2, 5, request_of(2, 5)).topics
    assert (listed.name, listed.partitions[0].partition_index) == ("text", 1)
    [asked] = refused(23, 4, request_of(23, 4)).topics
    assert (asked.topic, asked.partitions[0].partition) == ("text", 1)
    [moved] = refused(34, 2, request_of(34, 2)).results
    assert (moved.topic_name, moved.partitions[0].partition_index) == ("text", 1)
    [marked] = refused(27, 1, request_of(27, 1)).markers
    assert (marked.producer_id, marked.topics[0].name, marked.topics[0].partitions[0].partition_index) == (1, "text", 1)


def test_things_that_are_only_names_keep_them() -> None:
    assert [group.group_id for group in refused(15, 5, request_of(15, 5)).groups] == ["text"]
    assert [found.key for found in refused(10, 4, request_of(10, 4)).coordinators] == ["text"]
    assert [found.name for found in refused(20, 1, request_of(20, 1)).responses] == ["text"]
    assert [state.transactional_id for state in refused(65, 0, request_of(65, 0)).transaction_states] == ["text"]
    [entry] = refused(49, 1, request_of(49, 1)).entries
    assert [(part.entity_type, part.entity_name) for part in entry.entity] == [("text", "text")]


def test_users_with_credentials_to_remove_and_to_set_are_all_told() -> None:
    assert [result.user for result in refused(51, 0, request_of(51, 0)).results] == ["text", "text"]


def test_what_was_asked_for_is_not_said_to_have_been_done() -> None:
    [topic] = refused(19, 7, request_of(19, 7)).topics
    assert (topic.name, topic.num_partitions, topic.replication_factor, topic.configs) == ("text", -1, -1, None)
    [offset] = refused(23, 4, request_of(23, 4)).topics
    assert (offset.partitions[0].leader_epoch, offset.partitions[0].end_offset) == (-1, -1)


def test_metadata_tells_every_topic_and_the_top_where_it_has_one() -> None:
    response = refused(3, 13, request_of(3, 13))
    assert (response.error_code, [topic.error_code for topic in response.topics]) == (CODE, [CODE])


def test_a_message_is_said_where_there_is_a_place_for_it() -> None:
    assert [topic.error_message for topic in refused(19, 5, request_of(19, 5)).topics] == ["why"]


def test_what_is_not_known_is_not_said_to_be_zero() -> None:
    [topic] = refused(21, 2, request_of(21, 2)).topics
    assert topic.partitions[0].low_watermark == -1
    [coordinator] = refused(10, 6, request_of(10, 6)).coordinators
    assert (coordinator.node_id, coordinator.host, coordinator.port) == (-1, "", -1)


def test_where_nothing_can_be_told_there_is_no_response() -> None:
    assert refusal(3, 12, CODE, "", request_of(3, 12, topics=())) is None
    assert refusal(3, 12, CODE, "") is None
    assert refusal(8, 9, CODE, "", request_of(8, 9, partitions=())) is None


@pytest.mark.parametrize(
    ("api_key", "version"), [(PRODUCE, 3), (PRODUCE, 9), (PRODUCE, 13), (FETCH, 4), (FETCH, 6), (DESCRIBE_LOG_DIRS, 2)]
)
def test_where_clients_do_better_without_a_response_there_is_none(api_key: int, version: int) -> None:
    assert refusal(api_key, version, CODE, "", request_of(api_key, version, acks=1)) is None
