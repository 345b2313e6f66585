"""The APIs of transactions: who may ask, what each version is told, what is refused before a coordinator is asked."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups import (
    find_coordinator,
    offset_fetch,
)
from headwater.logtier.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
)
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import first_partition_state
from headwater.logtier.protocol import messages, name_regex
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata, TransactionState

some = SimpleNamespace
ID, PRODUCER = "payments", ProducerIdAndEpoch(7, 3)
OFFSETS = TopicPartition("__consumer_offsets", 4)


class Coordinator:
    """Answers everything, or refuses everything with `error`."""

    def __init__(self, error: ErrorCode | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def _answer(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise KafkaError(self.error, "because")

    async def init_producer(self, *asked: Any) -> ProducerIdAndEpoch:
        self._answer(*asked)
        return PRODUCER

    async def add_partitions(self, *asked: Any, client_version: int) -> None:
        self._answer(*asked, client_version)

    def verify_partitions(self, *asked: Any) -> set[TopicPartition]:
        self._answer(*asked)
        return {TopicPartition("t", 1)}

    def verify_partition(self, verified: Any) -> None:
        self._answer(*verified)

    async def end(self, *asked: Any, commit: bool, client_version: int) -> ProducerIdAndEpoch:
        self._answer(*asked, commit, client_version)
        return ProducerIdAndEpoch(7, 4)

    def describe(self, name: str) -> TransactionMetadata:
        self._answer(name)
        return TransactionMetadata(
            7,
            3,
            timeout_ms=5,
            state=TransactionState.ONGOING,
            start_ms=9,
            partitions=frozenset({TopicPartition("t", 1), TopicPartition("u", 0), TopicPartition("t", 0)}),
        )

    def transactions(self) -> list[tuple[str, TransactionMetadata]]:
        self._answer()
        metadata = TransactionMetadata(7, 3, state=TransactionState.ONGOING, start_ms=1000)
        return [(ID, metadata), ("orders", TransactionMetadata(8, state=TransactionState.EMPTY, start_ms=-1))]


class Denying:
    """Forbids operations on kinds of resources."""

    def __init__(self, *denied: tuple[AclOperation, ResourceType]) -> None:
        self.denied = denied

    def is_authorized(self, principal: str, host: str, operation: Any, resource_type: Any, name: str) -> bool:
        return (operation, resource_type) not in self.denied

    def is_authorized_for_any(self, principal: str, host: str, operation: Any, resource_type: Any) -> bool:
        return (operation, resource_type) not in self.denied


class World:
    """What the handlers see of a broker."""

    def __init__(self, error: ErrorCode | None = None, *denied: tuple[AclOperation, ResourceType]) -> None:
        self.coordinator = Coordinator(error)
        self.committed: list[Any] = []
        topics = {
            name: TopicImage(name, uuid.uuid4(), (first_partition_state((1,)),) * 2)
            for name in ("t", "u", "__consumer_offsets")
        }
        config = BrokerConfig.from_properties({})
        self.services: Any = some(
            clock=some(now_ms=lambda: 1500, monotonic_ms=lambda: 0),
            metadata=some(image=MetadataImage(topics=topics), config=config),
            transactions=self.coordinator,
            verifier=self.coordinator,
            authorizer=Denying(*denied) if denied else None,
            leadership_checks=None,
            replica_manager=some(begin_verification=lambda *_, **__: self.verification),
            groups=some(
                offsets_partition=self._offsets_partition,
                transactional=some(commit=self._commit, is_pending=lambda *_: True),
            ),
        )
        self.verification: object | None = object()

    async def _offsets_partition(self, group_id: str) -> TopicPartition:
        return OFFSETS

    async def _commit(self, group_id: str, **named: Any) -> None:
        self.committed.append((group_id, named))

    def call(self, handler: ModuleType, version: int, request: Any) -> dict[str, Any]:
        """Ask a handler; the answer can be encoded."""
        context = RequestContext(self.services, handler.API_KEY, version, 1, "client", "10.0.0.1", "User:a")
        result = handler.handle(request, context)
        if inspect.isawaitable(result):

            async def wait() -> Any:
                return await result

            result = asyncio.run(wait())
        assert messages.encode_response(handler.API_KEY, version, result)
        return result  # type: ignore[no-any-return]


def init(**named: Any) -> Any:
    return some(transactional_id=ID, transaction_timeout=timedelta(seconds=60), **named)


def added(*partitions: int, topic: str = "t") -> Any:
    topics = (some(name=topic, partitions=partitions),)
    return some(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=3,
        v3_and_below_topics=topics,
        transactions=(
            some(transactional_id=ID, producer_id=7, producer_epoch=3, verify_only=False, topics=topics),
            some(transactional_id=ID, producer_id=7, producer_epoch=3, verify_only=True, topics=topics),
        ),
    )


def of_producer(**named: Any) -> Any:
    return some(transactional_id=ID, producer_id=7, producer_epoch=3, **named)


def commit(topic: str = "t", index: int = 0, metadata: str | None = None, group_id: str = "g") -> Any:
    partition = some(partition_index=index, committed_offset=5, committed_leader_epoch=2, committed_metadata=metadata)
    return of_producer(group_id=group_id, topics=(some(name=topic, partitions=(partition,)),))


def codes(answer: dict[str, Any]) -> list[ErrorCode]:
    """Error codes of an AddPartitionsToTxn of one transaction."""
    results = answer.get("results_by_topic_v3_and_below") or answer["results_by_transaction"][0]["topic_results"]
    return [part["partition_error_code"] for topic in results for part in topic["results_by_partition"]]


def commit_code(answer: dict[str, Any]) -> ErrorCode:
    [topic] = answer["topics"]
    [partition] = topic["partitions"]
    code: ErrorCode = partition["error_code"]
    return code


# ---- what each version is told of a fenced producer ----


@pytest.mark.parametrize(
    ("handler", "request_", "version_from", "read"),
    [
        (init_producer_id, init(), 4, lambda answer: answer["error_code"]),
        (add_partitions_to_txn, added(0), 2, lambda answer: codes(answer)[0]),
        (add_offsets_to_txn, of_producer(group_id="g"), 2, lambda answer: answer["error_code"]),
        (end_txn, of_producer(committed=True), 2, lambda answer: answer["error_code"]),
    ],
)
def test_old_clients_are_told_that_a_fenced_epoch_is_invalid(
    handler: ModuleType, request_: Any, version_from: int, read: Callable[[dict[str, Any]], ErrorCode]
) -> None:
    for version in range(handler.VERSIONS[0], handler.VERSIONS[1] + 1):
        told = read(World(ErrorCode.producer_fenced).call(handler, version, request_))
        assert told is (ErrorCode.producer_fenced if version >= version_from else ErrorCode.invalid_producer_epoch)


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (ErrorCode.producer_fenced, 5, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, 3, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 4, ErrorCode.transaction_abortable),
        (ErrorCode.coordinator_load_in_progress, 1, ErrorCode.coordinator_not_available),
        (ErrorCode.coordinator_load_in_progress, 2, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.concurrent_transactions, 4, ErrorCode.concurrent_transactions),
        (ErrorCode.concurrent_transactions, 5, ErrorCode.concurrent_transactions),
    ],
)
def test_what_a_commit_of_offsets_is_refused_with(error: ErrorCode, version: int, told: ErrorCode) -> None:
    assert commit_code(World(error).call(txn_offset_commit, version, commit())) is told


# ---- who may ask ----


@pytest.mark.parametrize(
    ("handler", "request_", "denied", "code"),
    [
        (init_producer_id, init(), (AclOperation.write, ResourceType.transactional_id), 53),
        (add_offsets_to_txn, of_producer(group_id="g"), (AclOperation.write, ResourceType.transactional_id), 53),
        (add_offsets_to_txn, of_producer(group_id="g"), (AclOperation.read, ResourceType.group), 30),
        (end_txn, of_producer(committed=True), (AclOperation.write, ResourceType.transactional_id), 53),
    ],
)
def test_who_may_not_is_refused_as_a_whole(
    handler: ModuleType, request_: Any, denied: tuple[AclOperation, ResourceType], code: int
) -> None:
    world = World(None, denied)
    assert world.call(handler, 4, request_)["error_code"] == code
    assert not world.coordinator.asked


@pytest.mark.parametrize(
    ("denied", "code"),
    [
        ((AclOperation.write, ResourceType.transactional_id), ErrorCode.transactional_id_authorization_failed),
        ((AclOperation.write, ResourceType.topic), ErrorCode.topic_authorization_failed),
    ],
)
def test_partitions_are_refused_to_who_may_not_write(
    denied: tuple[AclOperation, ResourceType], code: ErrorCode
) -> None:
    world = World(None, denied)
    assert codes(world.call(add_partitions_to_txn, 3, added(0))) == [code]
    assert not world.coordinator.asked


def test_what_an_unauthorized_client_says_fills_no_log_and_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World(None, (AclOperation.write, ResourceType.transactional_id))
    context = RequestContext(world.services, init_producer_id.API_KEY, 4, 1, "c\nERROR: all is lost", "h", "User:a")
    told = iter([True, True, False])
    context.reader = some(logs_refusal=lambda host: next(told))
    for _ in range(3):
        asyncio.run(init_producer_id.handle(init(), context))
    assert len(caplog.records) == 2
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_only_brokers_send_several_transactions() -> None:
    world = World(None, (AclOperation.cluster_action, ResourceType.cluster))
    with pytest.raises(KafkaError, match="cluster_authorization_failed"):
        world.call(add_partitions_to_txn, 4, added(0))


@pytest.mark.parametrize(
    ("denied", "code"),
    [
        ((AclOperation.write, ResourceType.transactional_id), ErrorCode.transactional_id_authorization_failed),
        ((AclOperation.read, ResourceType.group), ErrorCode.group_authorization_failed),
        ((AclOperation.read, ResourceType.topic), ErrorCode.topic_authorization_failed),
    ],
)
def test_offsets_are_refused_to_who_may_not(denied: tuple[AclOperation, ResourceType], code: ErrorCode) -> None:
    world = World(None, denied)
    assert commit_code(world.call(txn_offset_commit, 5, commit())) is code
    assert not world.committed


def test_a_coordinator_is_found_for_who_may_describe_the_id() -> None:
    world = World(None, (AclOperation.describe, ResourceType.transactional_id))
    request = some(key=ID, key_type=1, coordinator_keys=(ID,))
    assert world.call(find_coordinator, 3, request)["error_code"] is ErrorCode.transactional_id_authorization_failed


def test_nobody_sees_ids_and_topics_that_he_may_not_describe() -> None:
    hidden = World(None, (AclOperation.describe, ResourceType.transactional_id))
    assert hidden.call(list_transactions, 2, some(state_filters=(), producer_id_filters=()))["transaction_states"] == []
    [state] = hidden.call(describe_transactions, 0, some(transactional_ids=(ID,)))["transaction_states"]
    assert state["error_code"] is ErrorCode.transactional_id_authorization_failed
    partly = World(None, (AclOperation.describe, ResourceType.topic))
    [state] = partly.call(describe_transactions, 0, some(transactional_ids=(ID,)))["transaction_states"]
    assert (state["transaction_state"], state["topics"]) == ("Ongoing", [])


# ---- what becomes of requests ----


def test_partitions_that_a_producer_adds_are_written_at_once() -> None:
    world = World()
    assert codes(world.call(add_partitions_to_txn, 3, added(0, 1))) == [ErrorCode.none] * 2
    partitions = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
    assert world.coordinator.asked == [(ID, PRODUCER, partitions, 0)]


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_that_a_leader_adds_may_be_written_with_those_of_others(version: int) -> None:
    world = World()
    assert codes(world.call(add_partitions_to_txn, version, added(0, 1))) == [ErrorCode.none] * 2
    assert world.coordinator.asked[:2] == [(ID, *PRODUCER, TopicPartition("t", each), True) for each in (0, 1)]


def test_partitions_are_verified_one_by_one() -> None:
    answer = World().call(add_partitions_to_txn, 5, added(0, 1))
    verified = answer["results_by_transaction"][1]["topic_results"][0]["results_by_partition"]
    assert [part["partition_error_code"] for part in verified] == [ErrorCode.none, ErrorCode.transaction_abortable]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (added(0, 2), [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]),
        (added(0, -1), [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]),
        (added(0, topic="missing"), [ErrorCode.unknown_topic_or_partition]),
        (added(0, topic="__consumer_offsets"), [ErrorCode.topic_authorization_failed]),
    ],
)
def test_one_partition_that_cannot_be_added_keeps_the_others_out(request_: Any, expected: list[ErrorCode]) -> None:
    world = World()
    assert codes(world.call(add_partitions_to_txn, 3, request_)) == expected
    assert not world.coordinator.asked


@pytest.mark.parametrize(("version", "client_version"), [(4, 0), (5, 2)])
def test_an_end_tells_the_next_epoch(version: int, client_version: int) -> None:
    world = World()
    answer = world.call(end_txn, version, of_producer(committed=False))
    assert (answer["producer_id"], answer["producer_epoch"]) == (7, 4)
    assert world.coordinator.asked == [(ID, PRODUCER, False, client_version)]


@pytest.mark.parametrize(("version", "adds"), [(4, False), (5, True)])
def test_offsets_join_the_transaction_before_they_are_committed(version: int, adds: bool) -> None:
    world = World()
    assert commit_code(world.call(txn_offset_commit, version, commit())) is ErrorCode.none
    assert world.coordinator.asked == [(ID, 7, 3, OFFSETS, adds)]
    [(group_id, named)] = world.committed
    assert (group_id, named["producer_id"], named["verification"]) == ("g", 7, world.verification)
    [(partition, committed)] = named["commits"].items()
    assert (partition, committed.offset, committed.leader_epoch) == (TopicPartition("t", 0), 5, 2)


@pytest.mark.parametrize(("version", "is_asked"), [(4, False), (5, True)])
def test_verification_is_switched_off_for_offsets_too_while_the_broker_runs(version: int, is_asked: bool) -> None:
    world = World()
    off = {"transaction.partition.verification.enable": "false"}
    world.services.metadata.config = world.services.metadata.config.with_properties(off)
    assert commit_code(world.call(txn_offset_commit, version, commit())) is ErrorCode.none
    assert bool(world.coordinator.asked) is is_asked


def test_offsets_of_a_transaction_that_is_open_there_need_no_question() -> None:
    world = World()
    world.verification = None
    assert commit_code(world.call(txn_offset_commit, 5, commit())) is ErrorCode.none
    assert not world.coordinator.asked


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (commit("missing"), ErrorCode.unknown_topic_or_partition),
        (commit(index=2), ErrorCode.unknown_topic_or_partition),
        (commit(metadata="x" * 5000), ErrorCode.offset_metadata_too_large),
        (commit(group_id=""), ErrorCode.invalid_group_id),
    ],
)
def test_offsets_that_cannot_be_committed(request_: Any, code: ErrorCode) -> None:
    world = World()
    assert commit_code(world.call(txn_offset_commit, 5, request_)) is code
    assert not world.committed


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_no_offset_is_committed_for_a_topic_that_was_deleted_during_the_verification(is_made_anew: bool) -> None:
    """The offsets of the topic have been forgotten by then: a new one of its name would inherit this one."""
    world = World()
    verify = world.coordinator.verify_partition

    def delete_and_verify(verified: Any) -> None:
        verify(verified)
        topics = dict(world.services.metadata.image.topics)
        topic = topics.pop("t")
        if is_made_anew:
            topics["t"] = replace(topic, topic_id=uuid.uuid4())
        world.services.metadata.image = MetadataImage(topics=topics)

    world.services.verifier = some(verify_partition=delete_and_verify)
    # The producer repeats the request, and is told what has become of the topic.
    assert commit_code(world.call(txn_offset_commit, 5, commit())) is ErrorCode.coordinator_not_available
    assert not world.committed
    world.services.verifier = world.coordinator
    again = commit_code(world.call(txn_offset_commit, 5, commit()))
    assert again is (ErrorCode.none if is_made_anew else ErrorCode.unknown_topic_or_partition)


def test_a_description_groups_partitions_by_topic() -> None:
    [state] = World().call(describe_transactions, 0, some(transactional_ids=(ID,)))["transaction_states"]
    assert [(topic["topic"], topic["partitions"]) for topic in state["topics"]] == [("t", [0, 1]), ("u", [0])]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [ID, "orders"]),
        ({"state_filters": ("Ongoing",)}, [ID]),
        ({"state_filters": ("Ongoing", "Nonsense")}, [ID]),
        ({"state_filters": ("Nonsense",)}, []),
        ({"producer_id_filters": (8, 9)}, ["orders"]),
        ({"duration_filter": 499}, [ID, "orders"]),
        ({"duration_filter": 500}, ["orders"]),
        ({"duration_filter": -1}, [ID, "orders"]),
        ({"transactional_id_pattern": "pay.*"}, [ID]),
        ({"transactional_id_pattern": "pay"}, []),
        ({"transactional_id_pattern": ""}, [ID, "orders"]),
    ],
)
def test_transactions_are_filtered(filters: dict[str, Any], expected: list[str]) -> None:
    request = some(**{"state_filters": (), "producer_id_filters": ()} | filters)
    answer = World().call(list_transactions, 2, request)
    assert [state["transactional_id"] for state in answer["transaction_states"]] == expected
    unknown = ["Nonsense"] if "Nonsense" in request.state_filters else []
    assert answer["unknown_state_filters"] == unknown


def test_an_expression_is_matched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_regex, "STEPS_PER_TURN", 1)
    request = some(state_filters=(), producer_id_filters=(), transactional_id_pattern=".*")
    context = RequestContext(World().services, list_transactions.API_KEY, 2, 1, "client", "10.0.0.1", "User:a")

    async def turns() -> int:
        answer = asyncio.ensure_future(list_transactions.handle(request, context))
        taken = 0
        while not answer.done():
            await asyncio.sleep(0)
            taken += 1
        assert len((await answer)["transaction_states"]) == 2
        return taken

    assert asyncio.run(turns()) > 2


def test_a_pattern_that_is_none_is_told() -> None:
    request = some(state_filters=(), producer_id_filters=(), transactional_id_pattern="(")
    assert World().call(list_transactions, 2, request)["error_code"] is ErrorCode.invalid_regular_expression


def test_a_consumer_that_wants_stable_offsets_waits_for_open_transactions() -> None:
    world = World()
    world.services.groups.committed = lambda *_, **__: some(get=lambda _: None, items=list)
    topics = (some(name="t", partition_indexes=(0,)),)
    for require_stable, code in ((True, ErrorCode.unstable_offset_commit), (False, ErrorCode.none)):
        request = some(group_id="g", topics=topics, require_stable=require_stable)
        [topic] = world.call(offset_fetch, 7, request)["topics"]
        [partition] = topic["partitions"]
        assert (partition["error_code"], partition["committed_offset"]) == (code, -1)
