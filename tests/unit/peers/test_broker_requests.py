"""Requests between brokers beside kio's reader; responses as kio's writer has them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client.connection import Request
from headwater.logtier.peers.controller_requests import (
    AlteredPartition,
    AlterPartitionResult,
    BrokerHeartbeatResult,
    EnvelopeResult,
    ProducerIdBlock,
    ProposedPartition,
    ReplicaDirectoriesResult,
    allocate_producer_ids_request,
    alter_partition_request,
    assign_replicas_to_dirs_request,
    broker_heartbeat_request,
    envelope_request,
)
from headwater.logtier.peers.leader_requests import (
    LeaderEpochEnd,
    ListedOffset,
    TransactionMarker,
    VerificationResult,
    VerifiedTransaction,
    add_partitions_to_txn_request,
    list_offsets_request,
    offset_for_leader_epoch_request,
    write_txn_markers_request,
)
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import encode_response
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.kio_messages import as_tree

FLIGHTS, WEATHER, FOLDER = UUID(int=0xF), UUID(int=0xE), UUID(int=0xD)


def read(request: Request[Any]) -> Any:
    """The request as kio reads it, as a tree."""
    entity, size = entity_reader(load_request_schema(request.api_key, request.api_version))(request.body, 0)
    assert size == len(request.body)
    return as_tree(entity)


def answer(request: Request[Any], tree: dict[str, Any]) -> Any:
    """The decoded response that kio writes from a tree."""
    return request.decode(memoryview(encode_response(request.api_key, request.api_version, tree)))


def test_alter_partition_groups_proposals_by_topic() -> None:
    request = alter_partition_request(
        2,
        77,
        [
            ProposedPartition(FLIGHTS, 0, 5, {2: 77, 3: 78}, 9),
            ProposedPartition(WEATHER, 1, 6, {2: 77}, 10, is_recovering=True),
            ProposedPartition(FLIGHTS, 4, 7, {}, 11),
        ],
    )
    tree = read(request)
    assert (request.api_key, request.api_version, tree["broker_id"], tree["broker_epoch"]) == (56, 3, 2, 77)
    [flights, weather] = tree["topics"]
    assert (flights["topic_id"], weather["topic_id"]) == (FLIGHTS, WEATHER)
    assert [
        (each["partition_index"], each["leader_epoch"], each["partition_epoch"]) for each in flights["partitions"]
    ] == [
        (0, 5, 9),
        (4, 7, 11),
    ]
    assert flights["partitions"][0]["new_isr_with_epochs"] == [
        {"broker_id": 2, "broker_epoch": 77},
        {"broker_id": 3, "broker_epoch": 78},
    ]
    assert weather["partitions"][0]["leader_recovery_state"] == 1


def test_alter_partition_answers_by_partition_or_as_a_whole() -> None:
    request = alter_partition_request(2, 77, [])
    part = {
        "partition_index": 4,
        "error_code": ErrorCode.none,
        "leader_id": 2,
        "leader_epoch": 5,
        "isr": [2, 3],
        "leader_recovery_state": 1,
        "partition_epoch": 10,
    }
    fenced = part | {"partition_index": 5, "error_code": ErrorCode.fenced_leader_epoch, "isr": []}
    tree = {"topics": [{"topic_id": FLIGHTS, "partitions": [part, fenced]}]}
    assert answer(request, tree) == AlterPartitionResult(
        0,
        [
            AlteredPartition(FLIGHTS, 4, 0, 2, 5, (2, 3), 10, True),
            AlteredPartition(FLIGHTS, 5, 74, 2, 5, (), 10, True),
        ],
    )
    assert answer(request, {"error_code": ErrorCode.not_controller, "topics": []}) == AlterPartitionResult(41, [])


def test_a_heartbeat_reports_offline_folders_and_a_shutdown() -> None:
    request = broker_heartbeat_request(2, 77, 1234, want_shut_down=True, offline_log_dirs=[FOLDER])
    tree = read(request)
    assert (request.api_key, request.api_version) == (63, 2)
    assert tree["offline_log_dirs"] == [FOLDER]
    assert (tree["want_fence"], tree["want_shut_down"], tree["current_metadata_offset"]) == (False, True, 1234)
    told = {"is_caught_up": True, "is_fenced": False, "should_shut_down": True}
    assert answer(request, told) == BrokerHeartbeatResult(0, True, False, True)


def test_a_block_of_producer_ids_is_never_empty() -> None:
    request = allocate_producer_ids_request(2, 77)
    assert read(request) == {"broker_id": 2, "broker_epoch": 77}
    assert answer(request, {"producer_id_start": 5000, "producer_id_len": 1000}) == ProducerIdBlock(0, 5000, 1000)
    refused = {"error_code": ErrorCode.stale_broker_epoch, "producer_id_start": -1, "producer_id_len": 0}
    assert answer(request, refused).error_code == 77
    for start, length in ((5000, 0), (-1, 1000)):
        with pytest.raises(ValueError, match="a block of"):
            answer(request, {"producer_id_start": start, "producer_id_len": length})


def test_replicas_are_assigned_to_folders() -> None:
    request = assign_replicas_to_dirs_request(2, 77, {FOLDER: [(FLIGHTS, 0), (WEATHER, 1), (FLIGHTS, 2)]})
    [directory] = read(request)["directories"]
    assert directory["id_"] == FOLDER
    assert [
        (each["topic_id"], [part["partition_index"] for part in each["partitions"]]) for each in directory["topics"]
    ] == [
        (FLIGHTS, [0, 2]),
        (WEATHER, [1]),
    ]
    part = {"partition_index": 2, "error_code": ErrorCode.not_leader_or_follower}
    tree = {"directories": [{"id_": FOLDER, "topics": [{"topic_id": FLIGHTS, "partitions": [part]}]}]}
    assert answer(request, tree) == ReplicaDirectoriesResult(0, {(FLIGHTS, 2): 6})


@pytest.mark.parametrize("principal", [b"User:alice", None])
def test_an_envelope_holds_a_request_unchanged(principal: bytes | None) -> None:
    request = envelope_request(b"\0\x13request", principal, bytes([10, 0, 0, 1]))
    tree = read(request)
    assert (request.api_key, request.api_version) == (58, 0)
    assert tree == {
        "request_data": b"\0\x13request",
        "request_principal": principal,
        "client_host_address": bytes([10, 0, 0, 1]),
    }
    assert answer(request, {"response_data": b"response"}) == EnvelopeResult(0, b"response")
    refused = {"error_code": ErrorCode.not_controller, "response_data": None}
    assert answer(request, refused) == EnvelopeResult(41, None)


def test_epoch_ends_are_looked_up_by_partition() -> None:
    request = offset_for_leader_epoch_request(
        2, {("flights", 0): (5, 4), ("weather", 1): (6, 6), ("flights", 3): (5, 2)}
    )
    tree = read(request)
    assert (request.api_key, request.api_version, tree["replica_id"]) == (23, 4, 2)
    assert tree["topics"][0] == {
        "topic": "flights",
        "partitions": [
            {"partition": 0, "current_leader_epoch": 5, "leader_epoch": 4},
            {"partition": 3, "current_leader_epoch": 5, "leader_epoch": 2},
        ],
    }
    part = {"partition": 3, "leader_epoch": 2, "end_offset": 50}
    assert answer(request, {"topics": [{"topic": "flights", "partitions": [part]}]}) == {
        ("flights", 3): LeaderEpochEnd(0, 2, 50)
    }


def test_offsets_are_listed_for_a_replica() -> None:
    request = list_offsets_request(2, {("flights", 0): (5, -2)}, timeout_ms=1500)
    tree = read(request)
    assert (request.api_key, request.api_version) == (2, 10)
    assert (tree["replica_id"], tree["timeout"]) == (2, 1500)
    assert tree["topics"] == [
        {"name": "flights", "partitions": [{"partition_index": 0, "current_leader_epoch": 5, "timestamp": -2}]}
    ]
    part = {"partition_index": 0, "error_code": ErrorCode.none, "timestamp": -1, "offset": 7, "leader_epoch": 3}
    assert answer(request, {"topics": [{"name": "flights", "partitions": [part]}]}) == {
        ("flights", 0): ListedOffset(0, 7, 3)
    }


def test_markers_carry_the_coordinators_epoch_and_the_transaction_version() -> None:
    request = write_txn_markers_request(
        [TransactionMarker(9, 3, True, [("flights", 0), ("weather", 1), ("flights", 2)], 12, 2)]
    )
    assert (request.api_key, request.api_version) == (27, 2)
    assert read(request)["markers"] == [
        {
            "producer_id": 9,
            "producer_epoch": 3,
            "transaction_result": True,
            "topics": [
                {"name": "flights", "partition_indexes": [0, 2]},
                {"name": "weather", "partition_indexes": [1]},
            ],
            "coordinator_epoch": 12,
            "transaction_version": 2,
        }
    ]
    parts = [
        {"partition_index": 0, "error_code": ErrorCode.none},
        {"partition_index": 2, "error_code": ErrorCode.transaction_coordinator_fenced},
    ]
    tree = {"markers": [{"producer_id": 9, "topics": [{"name": "flights", "partitions": parts}]}]}
    assert answer(request, tree) == {(9, ("flights", 0)): 0, (9, ("flights", 2)): 52}


def test_partitions_are_verified_within_transactions_or_added_to_them() -> None:
    verified = VerifiedTransaction("loads", 9, 3, [("flights", 0), ("flights", 2)])
    extended = VerifiedTransaction("sales", 8, 0, [("flights", 1)], adds=True)
    request = add_partitions_to_txn_request([verified, extended])
    assert (request.api_key, request.api_version) == (24, 5)
    assert read(request)["transactions"] == [
        {
            "transactional_id": "loads",
            "producer_id": 9,
            "producer_epoch": 3,
            "verify_only": True,
            "topics": [{"name": "flights", "partitions": [0, 2]}],
        },
        {
            "transactional_id": "sales",
            "producer_id": 8,
            "producer_epoch": 0,
            "verify_only": False,
            "topics": [{"name": "flights", "partitions": [1]}],
        },
    ]
    part = {"partition_index": 2, "partition_error_code": ErrorCode.invalid_txn_state}
    tree = {
        "results_by_transaction": [
            {"transactional_id": "loads", "topic_results": [{"name": "flights", "results_by_partition": [part]}]}
        ]
    }
    assert answer(request, tree) == VerificationResult(0, {"loads": {TopicPartition("flights", 2): 48}})


REQUESTS: dict[str, Request[Any]] = {
    "AlterPartition": alter_partition_request(1, 1, []),
    "Envelope": envelope_request(b"", None, b""),
    "BrokerHeartbeat": broker_heartbeat_request(1, 1, 1),
    "AllocateProducerIds": allocate_producer_ids_request(1, 1),
    "AssignReplicasToDirs": assign_replicas_to_dirs_request(1, 1, {}),
    "OffsetForLeaderEpoch": offset_for_leader_epoch_request(1, {}),
    "ListOffsets": list_offsets_request(1, {}, timeout_ms=1),
    "WriteTxnMarkers": write_txn_markers_request([]),
    "AddPartitionsToTxn": add_partitions_to_txn_request([]),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("noise", [b"", b"\xff" * 40, b"\x7f" * 7, bytes(range(64))])
def test_noise_in_place_of_a_response_is_refused_by_a_typed_error(name: str, noise: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        REQUESTS[name].decode(memoryview(noise))
