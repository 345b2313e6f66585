"""WriteTxnMarkers between brokers: whom it is for, and what a marker carries (KIP-1228)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.registry import advertised_versions
from headwater.logtier.handlers.transactions import write_txn_markers
from headwater.logtier.protocol.errors import ErrorCode, ProtocolViolationError
from headwater.logtier.security.listener import PLAINTEXT_LISTENER
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.handlers.test_transactional_produce import P0, P1, PRODUCER, TOPIC, V2, Denying, World

OK = ErrorCode.none


def markers(*epochs: int, commit: bool = True, indexes: tuple[int, ...] = (0,), **fields: int) -> Any:
    """A request with a marker for each producer epoch."""
    topics = [SimpleNamespace(name=TOPIC, partition_indexes=indexes)]
    return SimpleNamespace(
        markers=[
            SimpleNamespace(
                producer_id=PRODUCER,
                producer_epoch=epoch,
                transaction_result=commit,
                coordinator_epoch=3,
                topics=topics,
                **fields,
            )
            for epoch in epochs
        ]
    )


def written(world: World, version: int, request: Any, listener: Any = PLAINTEXT_LISTENER) -> list[ErrorCode]:
    context = RequestContext(
        world.services,
        write_txn_markers.API_KEY,
        version,
        1,
        "broker",
        "10.0.0.2",
        "User:broker",
        listener=listener,
    )
    answer = asyncio.run(write_txn_markers.handle(request, context))
    return [
        part["error_code"] for each in answer["markers"] for topic in each["topics"] for part in topic["partitions"]
    ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_version_2_keeps_the_transaction_version_of_a_marker(world: World) -> None:
    """From 2 on the epoch is that of the producer's next transaction: the present one must not end this one."""
    assert world.produce(0, version=V2) == [OK]
    late = markers(0, transaction_version=2)
    assert written(world, 2, late) == [ErrorCode.invalid_producer_epoch]
    assert world.markers == []
    assert written(world, 2, markers(1, transaction_version=2)) == [OK]
    assert world.markers == [(P0, PRODUCER, 1, True)]
    [found] = world.fetch()
    assert found.last_stable_offset == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_of_an_earlier_transaction_version_has_the_present_epoch(world: World, version: int) -> None:
    assert world.produce(0) == [OK]
    request = markers(0) if version == 1 else markers(0, transaction_version=1)
    assert written(world, version, request) == [OK]
    assert world.markers == [(P0, PRODUCER, 1, True)]


def test_version_2_is_served_between_brokers_only(world: World) -> None:
    assert world.produce(0) == [OK]
    other = replace(PLAINTEXT_LISTENER, name="CLIENTS")
    with pytest.raises(ProtocolViolationError, match="WriteTxnMarkers 2 is served between brokers only"):
        written(world, 2, markers(0, transaction_version=1), other)
    assert (world.replicas.log(P0).log_end_offset, world.markers) == (1, [])
    # `kafka-transactions.sh abort` may use any listener, and sees no later version.
    assert written(world, 1, markers(0, commit=False), other) == [OK]
    assert advertised_versions()[write_txn_markers.API_KEY] == (1, 1)


def test_a_single_node_serves_version_2_to_nobody(world: World) -> None:
    world.services.inter_broker_listener = None
    with pytest.raises(ProtocolViolationError):
        written(world, 2, markers(0, transaction_version=1))


def test_brokers_need_cluster_action_and_nothing_else(world: World) -> None:
    assert world.produce(0) == [OK]
    world.services.authorizer = Denying((AclOperation.alter, ResourceType.cluster))
    assert written(world, 2, markers(0, transaction_version=1)) == [OK]


def test_a_refusal_concerns_its_partition_and_its_marker_only(world: World) -> None:
    assert world.produce(0, 0, 1) == [OK, OK]
    request = markers(0, indexes=(0, 7, 1), transaction_version=1)
    request.markers.append(SimpleNamespace(**{**vars(request.markers[0]), "producer_id": -1}))
    found = written(world, 2, request)
    assert found == [OK, ErrorCode.unknown_topic_or_partition, OK, *[ErrorCode.invalid_request] * 3]
    assert [each[0] for each in world.markers] == [P0, P1]
