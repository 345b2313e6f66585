"""Markers and verifications at other brokers: their requests, and what becomes of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import RequestTimeoutError
from headwater.logtier.cluster.remote_transactions import RESPONSE_MS, RemoteTransactions
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.messages import encode_response
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.coordinator import WRITE_TIMEOUT_MS
from headwater.logtier.transaction.markers import TIMEOUT_MS, Marker
from headwater.logtier.transaction.verifier import VerifiedPartition
from tests.kio_messages import as_tree
from tests.unit.state_topic.surroundings import settle
from tests.virtual_time import run_virtually

P0, P1, Q0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
FIRST = Marker(producer_id=7, producer_epoch=3, is_commit=True, coordinator_epoch=5, transaction_version=2)
SECOND = Marker(producer_id=8, producer_epoch=0, is_commit=False, coordinator_epoch=6, transaction_version=0)

OK = ErrorCode.none
Codes = dict[TopicPartition, ErrorCode]


class ScriptedPeers:
    """Answers requests from `answers`, in their order; keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Purpose, int | None, Any]] = []
        self.answers: list[dict[str, Any] | Exception] = []
        #: With a gate, answers wait.
        self.gate: asyncio.Event | None = None

    async def call(self, broker_id: int, purpose: Purpose, request: Request[Any], timeout_ms: int | None = None) -> Any:
        entity, size = entity_reader(load_request_schema(request.api_key, request.api_version))(request.body, 0)
        assert size == len(request.body)
        self.asked.append((broker_id, purpose, timeout_ms, as_tree(entity)))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return request.decode(memoryview(encode_response(request.api_key, request.api_version, answer)))


def asking(scenario: Callable[[RemoteTransactions, ScriptedPeers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        peers = ScriptedPeers()
        remote = RemoteTransactions(cast("Peers", peers))
        await scenario(remote, peers)
        await remote.aclose()

    run_virtually(main())


async def code_of(work: Any) -> ErrorCode:
    try:
        await work
    except KafkaError as error:
        return error.code
    return OK


def by_topic(codes: Codes, partitions: str, index: str, code: str) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for key, value in codes.items():
        topics.setdefault(key.topic, []).append({index: key.partition, code: value})
    return [{"name": name, partitions: values} for name, values in topics.items()]


def marked(**producers: Codes) -> dict[str, Any]:
    """A WriteTxnMarkers response; producers are named like `p7`."""
    return {
        "markers": [
            {
                "producer_id": int(name[1:]),
                "topics": by_topic(codes, "partitions", "partition_index", "error_code"),
            }
            for name, codes in producers.items()
        ]
    }


def verified(error_code: ErrorCode = OK, **transactions: Codes) -> dict[str, Any]:
    """An AddPartitionsToTxn response."""
    return {
        "error_code": error_code,
        "results_by_transaction": [
            {
                "transactional_id": name,
                "topic_results": by_topic(codes, "results_by_partition", "partition_index", "partition_error_code"),
            }
            for name, codes in transactions.items()
        ],
    }


def test_markers_of_several_transactions_go_to_a_leader_in_one_request() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        refused = ErrorCode.not_leader_or_follower
        peers.answers = [marked(p7={P0: OK, Q0: refused}, p8={P0: OK})]
        first, second = await asyncio.gather(
            remote.write_marker(2, FIRST, {P0, Q0}), remote.write_marker(2, SECOND, {P0})
        )
        assert (first, second) == ({P0: OK, Q0: ErrorCode.not_leader_or_follower}, {P0: OK})
        [(broker_id, purpose, timeout_ms, tree)] = peers.asked
        assert (broker_id, purpose, timeout_ms) == (2, Purpose.MARKERS, TIMEOUT_MS + RESPONSE_MS)
        assert tree["markers"] == [
            {
                "producer_id": 7,
                "producer_epoch": 3,
                "transaction_result": True,
                "topics": [{"name": "t", "partition_indexes": [0]}, {"name": "u", "partition_indexes": [0]}],
                "coordinator_epoch": 5,
                "transaction_version": 2,
            },
            {
                "producer_id": 8,
                "producer_epoch": 0,
                "transaction_result": False,
                "topics": [{"name": "t", "partition_indexes": [0]}],
                "coordinator_epoch": 6,
                "transaction_version": 0,
            },
        ]

    asking(scenario)


def test_two_markers_of_one_producer_are_not_mixed_up() -> None:
    """The answer names a producer id and no epoch."""

    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        later = Marker(7, 4, False, 5, 2)
        peers.answers = [marked(p7={P0: OK}), marked(p7={P0: ErrorCode.invalid_producer_epoch})]
        ended, refused = await asyncio.gather(remote.write_marker(2, FIRST, {P0}), remote.write_marker(2, later, {P0}))
        assert (ended, refused) == ({P0: OK}, {P0: ErrorCode.invalid_producer_epoch})
        assert [len(tree["markers"]) for _, _, _, tree in peers.asked] == [1, 1]

    asking(scenario)


def test_without_an_answer_a_marker_may_be_written_or_not() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.answers = [RequestTimeoutError("broker 2 did not answer"), marked(p7={P0: OK})]
        asked = [remote.write_marker(2, FIRST, {P0}), remote.write_marker(2, SECOND, {P0})]
        assert [await code_of(each) for each in asked] == [ErrorCode.network_exception] * 2
        assert await remote.write_marker(2, FIRST, {P0}) == {P0: OK}

    asking(scenario)


def test_a_fault_of_this_broker_is_an_error_that_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.answers = [ValueError("a bad length")] * 2
        assert await code_of(remote.write_marker(2, FIRST, {P0})) is ErrorCode.unknown_server_error
        question = remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=True))
        assert await code_of(question) is ErrorCode.unknown_server_error
        assert caplog.text.count("a request to broker 2 failed") == 2

    asking(scenario)


def test_a_partition_that_an_answer_lacks_has_failed() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.answers = [marked(p7={P0: OK}), verified(payments={P0: OK})]
        codes = await remote.write_marker(2, FIRST, {P0, P1})
        assert codes == {P0: OK, P1: ErrorCode.unknown_server_error}
        asked = [remote.verify_partition(2, VerifiedPartition("payments", 7, 3, each, adds=True)) for each in (P0, P1)]
        found = await asyncio.gather(*map(code_of, asked))
        assert found == [OK, ErrorCode.unknown_server_error]

    asking(scenario)


def test_partitions_of_several_transactions_are_verified_in_one_request() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.answers = [
            verified(payments={P0: OK, P1: ErrorCode.transaction_abortable}, orders={P0: OK}),
        ]
        found = await asyncio.gather(
            *map(
                code_of,
                (
                    remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P1, adds=False)),
                    remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=False)),
                    remote.verify_partition(2, VerifiedPartition("orders", 8, 0, P0, adds=True)),
                    remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=False)),
                ),
            )
        )
        assert found == [ErrorCode.transaction_abortable, OK, OK, OK]
        [(broker_id, purpose, timeout_ms, tree)] = peers.asked
        assert (broker_id, purpose, timeout_ms) == (2, Purpose.VERIFICATIONS, WRITE_TIMEOUT_MS + RESPONSE_MS)
        assert tree["transactions"] == [
            {
                "transactional_id": "payments",
                "producer_id": 7,
                "producer_epoch": 3,
                "verify_only": True,
                "topics": [{"name": "t", "partitions": [0, 1]}],
            },
            {
                "transactional_id": "orders",
                "producer_id": 8,
                "producer_epoch": 0,
                "verify_only": False,
                "topics": [{"name": "t", "partitions": [0]}],
            },
        ]

    asking(scenario)


@pytest.mark.parametrize(("epoch", "add"), [(4, False), (3, True)], ids=["another epoch", "to be added"])
def test_questions_about_one_id_that_differ_wait_for_the_next_request(epoch: int, add: bool) -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.answers = [verified(payments={P0: OK}), verified(payments={P0: ErrorCode.producer_fenced})]
        asked = [
            remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=False)),
            remote.verify_partition(2, VerifiedPartition("payments", 7, epoch, P0, adds=add)),
        ]
        assert await asyncio.gather(*map(code_of, asked)) == [OK, ErrorCode.producer_fenced]
        told = [
            (each["producer_epoch"], each["verify_only"]) for *_, tree in peers.asked for each in tree["transactions"]
        ]
        assert told == [(3, True), (epoch, not add)]

    asking(scenario)


def test_what_a_refusal_or_no_answer_of_a_coordinator_is_to_the_producer() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        async def asked() -> ErrorCode:
            return await code_of(remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=True)))

        for answer, code in (
            (RequestTimeoutError("broker 2 did not answer"), ErrorCode.network_exception),
            # The producer cannot be authorized by trying again.
            (verified(ErrorCode.cluster_authorization_failed), ErrorCode.invalid_txn_state),
            (verified(ErrorCode.coordinator_not_available), ErrorCode.coordinator_not_available),
            (verified(), ErrorCode.unknown_server_error),
            (verified(payments={P0: ErrorCode.not_coordinator}), ErrorCode.not_coordinator),
            # Another leader's partition, which the coordinator's image lacks yet, holds up all of the request.
            (verified(payments={P0: ErrorCode.operation_not_attempted}), ErrorCode.coordinator_not_available),
        ):
            peers.answers = [answer]
            assert await asked() is code

    asking(scenario)


def test_a_close_ends_the_questions_that_wait() -> None:
    async def scenario(remote: RemoteTransactions, peers: ScriptedPeers) -> None:
        peers.gate = asyncio.Event()
        marker = asyncio.ensure_future(remote.write_marker(2, FIRST, {P0}))
        question = asyncio.ensure_future(remote.verify_partition(2, VerifiedPartition("payments", 7, 3, P0, adds=True)))
        await settle()
        assert len(peers.asked) == 2
        await remote.aclose()
        await settle()
        assert (marker.cancelled(), question.cancelled()) == (True, True)

    asking(scenario)
