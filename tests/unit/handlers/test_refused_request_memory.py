"""What a refused request was received into is free as soon as it is answered, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
import weakref
from collections.abc import Awaitable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from headwater.logtier.handlers.dispatcher import LONG_REQUEST_BYTES, Dispatcher
from headwater.logtier.handlers.records import produce
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.handlers.topics import (
    describe_log_dirs,
    metadata,
)
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.server import ClientConnection, Server, ServerLimits, shared_limits
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.request_counts import ELEMENTS_MAX
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.handlers.test_long_requests import frame_of
from tests.unit.handlers.test_transactional_produce import PRODUCER, TOPIC, V1, V2, Denying, World

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=1, connections_per_host_max=1, idle_ms_max=60_000)


class Received(bytearray):
    """A buffer whose end can be seen."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Stream:
    """The connection's other side: takes what is answered."""

    peer_host = "127.0.0.1"
    is_writing = False
    unsent_bytes = 0

    def __init__(self) -> None:
        self.answer = b""
        self.is_over = asyncio.Event()

    def write(self, parts: Sequence[Any]) -> None:
        self.answer = b"".join(map(bytes, parts))
        self.is_over.set()

    def close(self) -> None:
        self.is_over.set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def check_freed(world: World, frame: memoryview, told: bytes | None) -> None:
    """When a request is answered with `told`, or its connection is closed, the last use of its buffer is over."""

    async def main() -> None:
        dispatcher = Dispatcher(world.services, HANDLERS)
        in_use: list[weakref.ref[Received]] = []

        def dispatch(frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
            received = Received(frame)
            in_use.append(weakref.ref(received))
            return dispatcher.dispatch(memoryview(received), connection)

        server = Server(SocketNetwork(), SystemClock(), dispatch, LIMITS)
        connection = ClientConnection(server, SystemClock(), dispatch, LIMITS, shared_limits(LIMITS))
        stream = Stream()
        connection.connection_made(cast("Any", stream))
        left = memoryview(struct.pack(">i", len(frame)) + frame)
        while left:
            buffer = connection.get_buffer()
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            connection.buffer_updated(size)
            left = left[size:]
        await stream.is_over.wait()
        await asyncio.sleep(0)
        assert (told or b"") in stream.answer
        assert bool(stream.answer) is (told is not None)
        deadline_s = time.monotonic() + 10
        while in_use[0]() is not None and time.monotonic() < deadline_s:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)  # a thread that worked for it puts its work down a moment after its result
        assert [each() is None for each in in_use] == [True]

    asyncio.run(main())


def produced(records: bytes, *, topic: str = TOPIC, version: int = V1, acks: int = 1, txn: str | None = None) -> Any:
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return frame_of(
        produce, version, {"transactional_id": txn, "acks": acks, "timeout": timedelta(seconds=1), "topic_data": topics}
    )


def batch(**fields: int) -> bytes:
    return build_batch([Record(None, bytes(10_000), 1_000)], **fields)


def of_a_transaction() -> bytes:
    return batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)


def code(error: ErrorCode) -> bytes:
    return error.value.to_bytes(2, "big", signed=True)


@pytest.mark.parametrize("acks", [0, 1])
def test_of_a_topic_that_is_not_there(world: World, acks: int) -> None:
    check_freed(world, produced(batch(), topic="missing", acks=acks), b"no partition" if acks else None)


@pytest.mark.parametrize("acks", [0, 1])
def test_of_a_topic_that_may_not_be_written_to(world: World, acks: int) -> None:
    world.services.authorizer = Denying((AclOperation.write, ResourceType.topic))
    check_freed(world, produced(batch(), acks=acks), b"authorization" if acks else None)


@pytest.mark.parametrize("acks", [0, 1])
def test_of_a_batch_that_is_damaged(world: World, acks: int) -> None:
    damaged = batch()[:-1] + b"x"
    check_freed(world, produced(damaged, acks=acks), code(ErrorCode.corrupt_message) if acks else None)


@pytest.mark.parametrize("version", [V1, V2])
def test_of_a_transaction_in_a_topic_that_is_not_there(world: World, version: int) -> None:
    check_freed(
        world, produced(of_a_transaction(), topic="missing", txn="payments", version=version), b"no partition missing"
    )


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("is_late", [False, True])
def test_of_a_transaction_that_its_coordinator_refuses(world: World, acks: int, is_late: bool) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        raise KafkaError(ErrorCode.invalid_producer_id_mapping, "no such producer")

    def verify_partition(_: object) -> Awaitable[None]:
        if is_late:
            return asyncio.ensure_future(later())
        raise KafkaError(ErrorCode.invalid_producer_id_mapping, "no such producer")

    world.services.verifier = cast("Any", SimpleNamespace(verify_partition=verify_partition))
    check_freed(
        world,
        produced(of_a_transaction(), txn="payments", version=V2, acks=acks),
        b"no such producer" if acks else None,
    )


def test_of_records_of_several_producers(world: World) -> None:
    other = batch(producer_id=PRODUCER + 1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    partitions = [{"index": 0, "records": of_a_transaction()}, {"index": 1, "records": other}]
    frame = frame_of(
        produce,
        V1,
        {
            "transactional_id": "payments",
            "acks": 1,
            "timeout": timedelta(seconds=1),
            "topic_data": [{"name": TOPIC, "partition_data": partitions}],
        },
    )
    check_freed(world, frame, b"more than one producer ID")


def long_request(handler: ModuleType, version: int, body: bytes) -> memoryview:
    frame = messages._HEADER.pack(handler.API_KEY, version, 7, -1) + body
    assert len(frame) > LONG_REQUEST_BYTES
    return memoryview(frame)


def test_of_a_long_request_that_has_too_many_elements(world: World) -> None:
    count = ELEMENTS_MAX + 1
    frame = long_request(metadata, 1, count.to_bytes(4, "big") + b"\0\1x" * count)
    check_freed(world, frame, None)


def test_of_a_long_request_that_cannot_be_answered(world: World) -> None:
    """The fault, of logs that this broker does not have, is told."""
    world.services.replica_manager = cast("Any", SimpleNamespace())
    asked = [{"topic": f"{'x' * 200}{number}", "partitions": (0,)} for number in range(400)]
    check_freed(world, frame_of(describe_log_dirs, 4, {"topics": asked}), code(ErrorCode.unknown_server_error))
