"""Every advertised API at every version, with everything wrong that a field can be, on a live broker."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol.messages import api_name, is_flexible
from headwater.logtier.records.batch import Record, build_batch
from tests.hostile_messages import cuts, lies
from tests.kio_messages import filled, tokens

if TYPE_CHECKING:
    from tests.conformance.fuzz.conftest import Target, Wire

pytestmark = pytest.mark.slow

#: What the broker may come to hold in all of this, its start included.
MEMORY_BYTES_MAX = 400 << 20
CONNECTIONS = 16
#: Some requests wait for what does not come (a member of a group, more records): no fault.
PATIENCE_S = 0.3
#: Of each version: nearly all that there are.
MUTATIONS_MAX = 500
API_VERSIONS = 18
DELEGATION_TOKENS = (38, 39, 40)
TOPIC = "fuzzed"

VALUES: Mapping[str, Any] = {
    "name": TOPIC,
    "topic": TOPIC,
    "group_id": "fuzzed-group",
    "records": build_batch([Record(b"key", b"value", 1_700_000_000_000)]),
    "acks": -1,
    "replica_id": -1,
    "isolation_level": 0,
    "current_leader_epoch": -1,
    "timestamp": -1,
    "max_wait": timedelta(milliseconds=10),
    "session_timeout": timedelta(seconds=10),
    "rebalance_timeout": timedelta(seconds=10),
    "transaction_timeout": timedelta(seconds=10),
    "timeout": timedelta(seconds=1),
    "protocol_type": "consumer",
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": (),
    "validate_only": True,
    "resource_type": 2,
    "resource_name": TOPIC,
    "partition_index": 0,
    "partition": 0,
    "index": 0,
}


def header(api_key: int, version: int, correlation_id: int) -> bytes:
    flexible = b"\x00" if is_flexible(api_key, version) else b""
    return struct.pack(">hhih", api_key, version, correlation_id, 4) + b"fuzz" + flexible


@pytest.fixture(scope="module")
def topic_id(fuzzed_broker: Target) -> uuid.UUID:
    """The id of a topic that is there, with a record."""
    admin = AdminClient({"bootstrap.servers": fuzzed_broker.addresses["PLAINTEXT"]})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": fuzzed_broker.addresses["PLAINTEXT"]})
    producer.produce(TOPIC, b"value", b"key", partition=0)
    assert producer.flush(30) == 0
    [described] = admin.describe_topics(TopicCollection([TOPIC])).values()
    found = described.result().topic_id
    packed = struct.pack(">qq", found.get_most_significant_bits(), found.get_least_significant_bits())
    return uuid.UUID(bytes=packed)


def mutations(api_key: int, version: int, topic_id: uuid.UUID) -> Sequence[bytes]:
    schema: Any = load_request_schema(api_key, version)
    given = dict(VALUES)
    if api_key == 64:  # the broker itself would go away, as it was told to
        given["broker_id"] = 12345
    parts = tokens(filled(schema, {**given, "topic_id": topic_id}))
    whole = b"".join(part.data for part in parts)
    found = [*cuts(parts), *lies(parts)]
    chosen = random.Random(f"{api_key} {version}").sample(found, min(MUTATIONS_MAX, len(found)))
    return [whole, *chosen, whole + b"\x00\xff"]


def check_response(api_key: int, version: int, frame: bytes) -> None:
    """It is of the version, and takes up the whole frame."""
    schema = load_response_schema(api_key, version)
    _, size = entity_reader(schema.__header_schema__)(frame, 0)
    body = frame[size:]
    if api_key in DELEGATION_TOKENS:
        # Kafka's -1 for "no time", which kio writes but does not read.
        body = body.replace(b"\xff" * 8, bytes(8))
    _, body_size = entity_reader(schema)(body, 0)
    assert body_size == len(body)


async def send_hostile(wire: type[Wire], address: str, api_key: int, version: int, body: bytes) -> None:
    connection = await wire.open(address)
    try:
        connection.send(header(api_key, version, 1) + body)
        connection.send(header(API_VERSIONS, 0, 2))
        while frame := await connection.receive(PATIENCE_S):
            [correlation_id] = struct.unpack_from(">i", frame)
            if correlation_id == 2:
                return
            assert correlation_id == 1
            answered = 0 if api_key == API_VERSIONS and len(frame) > 6 and frame[4:6] == b"\x00\x23" else version
            check_response(api_key, answered, frame)
    finally:
        connection.close()


@pytest.mark.parametrize("api_key", HANDLERS, ids=api_name)
def test_hostile_requests_are_answered_or_end_their_own_connection(
    target: Target, wire: type[Wire], topic_id: uuid.UUID, api_key: int
) -> None:
    first, last = HANDLERS[api_key].VERSIONS

    async def fuzz() -> None:
        room = asyncio.Semaphore(CONNECTIONS)

        async def one(version: int, body: bytes) -> None:
            async with room:
                await send_hostile(wire, target.addresses["PLAINTEXT"], api_key, version, body)

        async with asyncio.TaskGroup() as tasks:
            for version in range(first, last + 1):
                for body in mutations(api_key, version, topic_id):
                    tasks.create_task(one(version, body))

    asyncio.run(fuzz())
    target.check()
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX
