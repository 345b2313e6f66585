"""Every API in every advertised version: a whole request is answered, a damaged one disturbs nobody.

Requests are built by kio from the schema of each version, with a small valid value for each of its fields.
"""

from __future__ import annotations

import dataclasses
import random
import socket
import struct
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol.messages import api_name
from headwater.logtier.records.batch import Record, build_batch

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess

pytestmark = pytest.mark.slow

ANSWER_S = 20
#: Some damage makes a request wait (a long `max_wait`, a group that expects more members): no fault.
PATIENCE_S = 0.3
DAMAGES_PER_VERSION = 3
TOPIC = "test-every-version"
DELEGATION_TOKENS = (38, 39, 40)

VERSIONS = [
    pytest.param(key, version, id=f"{api_name(key)}-v{version}")
    for key, handler in sorted(HANDLERS.items())
    # Versions above those that ApiVersions lists are for brokers.
    for version in range(
        handler.VERSIONS[0], min(handler.VERSIONS[1], getattr(handler, "ADVERTISED_VERSIONS", handler.VERSIONS)[1]) + 1
    )
]


@pytest.fixture(scope="module")
def topic_id(bootstrap_servers: str) -> Iterator[uuid.UUID]:
    """The id of a topic that the requests name."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"})])[TOPIC].result(30)
    [described] = admin.describe_topics(TopicCollection([TOPIC])).values()
    yield uuid.UUID(bytes=_uuid_bytes(described.result().topic_id))
    admin.delete_topics([TOPIC])[TOPIC].result(30)


def _uuid_bytes(topic_id: Any) -> bytes:
    return struct.pack(">qq", topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())


def request_values(topic_id: uuid.UUID) -> Mapping[str, Any]:
    """Values by field name that make a request which can be served; other fields take the smallest of their type."""
    return {
        "name": TOPIC,
        "topic": TOPIC,
        "topic_id": topic_id,
        "topic_names": (TOPIC + "-missing",),
        "group_id": f"group-{uuid.uuid4().hex[:8]}",
        "key": "group",
        "coordinator_keys": ("group",),
        "records": build_batch([Record(b"key", b"value", 1_700_000_000_000)]),
        "acks": -1,
        "replica_id": -1,
        "isolation_level": 0,
        "max_bytes": 1_000_000,
        "partition_max_bytes": 1_000_000,
        "current_leader_epoch": -1,
        "timestamp": -1,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "transaction_timeout": timedelta(seconds=10),
        "protocol_type": "consumer",
        "protocol_name": "range",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": (),
        "configs": (),
        "count": 2,
        "validate_only": True,
        "resource_type": 2,
        "resource_name": TOPIC,
        "producer_id": -1,
        "producer_epoch": -1,
        "generation_id_or_member_epoch": -1,
        "client_software_name": "test",
        "client_software_version": "1",
    }


def build(schema: Any, values: Mapping[str, Any]) -> Any:
    """An entity of one version with one element in each array."""
    return schema(
        **{
            field.name: values[field.name] if field.name in values else smallest(field.type, values)
            for field in dataclasses.fields(schema)
            if field.default is dataclasses.MISSING or field.name in values
        }
    )


def smallest(annotation: Any, values: Mapping[str, Any]) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = (member for member in get_args(annotation) if member is not NoneType)
    if get_origin(annotation) is tuple:
        return (smallest(get_args(annotation)[0], values),)
    if dataclasses.is_dataclass(annotation):
        return build(annotation, values)
    bases = annotation.__mro__ if isinstance(annotation, type) else ()
    known: dict[type, Any] = {
        bool: False,
        int: 0,
        bytes: b"",
        uuid.UUID: uuid.UUID(int=1),
        timedelta: timedelta(0),
        float: 0.0,
    }
    for base in bases:
        if base in known:
            return known[base]
    if "datetime" in getattr(annotation, "__name__", "").lower():
        return datetime(2026, 1, 1, tzinfo=UTC)
    return "" if "str" in str(bases).lower() else 0


def encode(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def header_of(api_key: int, version: int, correlation_id: int) -> bytes:
    schema: Any = load_request_schema(api_key, version).__header_schema__
    return encode(
        schema(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id="every-version",
        )
    )


def body_of(api_key: int, version: int, topic_id: uuid.UUID) -> bytes:
    return encode(build(load_request_schema(api_key, version), request_values(topic_id)))


def read_response(api_key: int, version: int, correlation_id: int, frame: bytes) -> Any:
    """The response, which must take up the whole frame."""
    schema = load_response_schema(api_key, version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id
    if api_key in DELEGATION_TOKENS:
        # Kafka's -1 for "no time", which kio writes but does not read.
        frame = frame[:size] + frame[size:].replace(b"\xff" * 8, bytes(8))
    response, body_size = entity_reader(schema)(frame, size)
    assert size + body_size == len(frame)
    return response


class Connection:
    """One socket to the broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), ANSWER_S)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, timeout_s: float = ANSWER_S) -> bytes | None:
        """One frame; b"" at the end of the stream, None when nothing comes."""
        self.socket.settimeout(timeout_s)
        try:
            size = self._exactly(4)
            return self._exactly(struct.unpack(">i", size)[0]) if size else b""
        except TimeoutError:
            return None
        except ConnectionResetError:
            return b""

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                return b""
            data += some
        return bytes(data)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_request_of_every_version_is_answered(
    bootstrap_servers: str, topic_id: uuid.UUID, api_key: int, version: int
) -> None:
    connection = Connection(bootstrap_servers)
    with connection.socket:
        connection.send(header_of(api_key, version, 7) + body_of(api_key, version, topic_id))
        frame = connection.receive()
        assert frame, f"no answer: {frame!r}"
        read_response(api_key, version, 7, frame)


@pytest.mark.parametrize("api_key", HANDLERS, ids=api_name)
def test_damaged_requests_are_answered_or_closed_and_no_fault_of_ours_is_logged(
    headwater_broker: BrokerProcess, topic_id: uuid.UUID, api_key: int
) -> None:
    bystander = Connection(headwater_broker.address)
    first, last = HANDLERS[api_key].VERSIONS
    logged_before = len(headwater_broker.log())
    with bystander.socket:
        for version in range(first, last + 1):
            noise = random.Random(f"{api_key} {version}")
            whole = body_of(api_key, version, topic_id)
            for _ in range(DAMAGES_PER_VERSION):
                send_damaged(headwater_broker.address, api_key, version, whole[: noise.randrange(len(whole) or 1)])
                damaged = bytearray(whole)
                for _ in range(noise.choice([1, 1, 2, 8])):
                    if damaged:
                        damaged[noise.randrange(len(damaged))] = noise.choice(
                            [0, 1, 0x7F, 0x80, 0xFF, noise.randrange(256)]
                        )
                send_damaged(headwater_broker.address, api_key, version, bytes(damaged))
        bystander.send(header_of(18, 0, 5))
        frame = bystander.receive()
        assert frame
        read_response(18, 0, 5, frame)
    assert headwater_broker.is_running()
    logged = headwater_broker.log()[logged_before:]
    assert "Traceback" not in logged and "ERROR" not in logged, logged


def send_damaged(address: str, api_key: int, version: int, body: bytes) -> None:
    """Whatever answer comes must be whole; the request after it shows that the connection lives, or it is closed."""
    connection = Connection(address)
    with connection.socket:
        connection.send(header_of(api_key, version, 1) + body)
        try:
            connection.send(header_of(18, 0, 2))
        except (BrokenPipeError, ConnectionResetError):
            return
        frame = connection.receive(PATIENCE_S)
        if not frame:
            return
        [correlation_id] = struct.unpack_from(">i", frame)
        assert correlation_id in {1, 2}
        if correlation_id == 1:
            read_response(api_key, version, 1, frame)
