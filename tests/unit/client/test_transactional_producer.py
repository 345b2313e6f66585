"""The transactional producer against a scripted cluster: what it asks, and what it does about each answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client import cluster as cluster_module
from headwater.logtier.client import transactional_producer as module
from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import (
    AbortableTransactionError,
    BrokerConnectionError,
    BrokerError,
    ProducerFencedError,
    RequestTimeoutError,
)
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.produce_codec import ProducedPartition
from headwater.logtier.client.producer_state import PartitionSequencer, PendingBatch
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.logtier.records.batch import Record, check_batch

TOPIC = "fences"
VERSIONS = {
    ApiKey.PRODUCE: 12,
    ApiKey.API_VERSIONS: 3,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.FIND_COORDINATOR: 6,
}


class Coordinator:
    """Answers as scripted: an error code by API, or an exception that breaks the connection; else it does as asked."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.script: dict[int, deque[int | Exception]] = {}
        self.asked: list[tuple[int, int, Any]] = []
        self.producer = (7, -1)
        self.address = "scripted:1"
        self.closed = False

    def version(self, api_key: int) -> int:
        return VERSIONS[api_key]

    def names(self) -> list[str]:
        names = {value: name for name, value in vars(ApiKey).items() if isinstance(value, int)}
        return [f"{names[key]}.{version}" for key, version, _ in self.asked]

    def call(self, request: Request[Any]) -> Any:
        schema = cast(Any, load_request_schema(request.api_key, request.api_version))
        body, _ = entity_reader(schema)(bytes(request.body), 0)
        self.asked.append((request.api_key, request.api_version, body))
        script = self.script.get(request.api_key)
        answer = script.popleft() if script else 0
        if isinstance(answer, Exception):
            raise answer
        return self.answer(request, body, answer)

    def answer(self, request: Request[Any], body: Any, code: int) -> Any:
        part = SimpleNamespace(error_code=code, partition_error_code=code)
        match request.api_key:
            case ApiKey.FIND_COORDINATOR:
                found = SimpleNamespace(error_code=code, error_message=None, node_id=1)
                return SimpleNamespace(coordinators=[found])
            case ApiKey.API_VERSIONS:
                feature = SimpleNamespace(name="transaction.version", max_version_level=self.level)
                return SimpleNamespace(error_code=0, finalized_features=[feature])
            case ApiKey.INIT_PRODUCER_ID:
                if not code:
                    self.producer = (self.producer[0], self.producer[1] + 1)
            case ApiKey.END_TXN if request.api_version >= 5 and not code:
                self.producer = (self.producer[0], self.producer[1] + 1)
            case ApiKey.PRODUCE:
                return [ProducedPartition(TOPIC, 0, code, None, 0)]
            case ApiKey.TXN_OFFSET_COMMIT:
                return SimpleNamespace(topics=[SimpleNamespace(partitions=[part])])
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                topic = SimpleNamespace(results_by_partition=[part])
                return SimpleNamespace(results_by_topic_v3_and_below=[topic])
        return SimpleNamespace(error_code=code, producer_id=self.producer[0], producer_epoch=self.producer[1])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[TransactionalProducer, Coordinator]]:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(cluster_module, "time", clock)
    monkeypatch.setattr(module, "time", clock)

    def make(level: int) -> tuple[TransactionalProducer, Coordinator]:
        coordinator = Coordinator(level)
        cluster: Any = ClusterClient(ClientConfig((("scripted", 1),)))
        cluster._metadata.brokers = {1: ("scripted", 1)}
        cluster.any_connection = lambda: coordinator
        cluster.connection = lambda node_id: coordinator
        cluster.refresh_metadata = lambda topics: None
        cluster.leader = lambda topic, partition: 1
        return TransactionalProducer(cluster, TransactionConfig("tx")), coordinator

    return make


def transaction(producer: TransactionalProducer) -> None:
    producer.begin([(TOPIC, 0), ("out", 1)])
    producer.send(TOPIC, 0, [Record(b"k", b"v", 1)])
    producer.commit_offsets("group", {("in", 0): 5}, "batch=1")
    producer.commit()


def test_from_transaction_version_2_on_what_is_sent_adds_itself(world: Any) -> None:
    producer, coordinator = world(2)
    transaction(producer)
    assert coordinator.names() == [
        "FIND_COORDINATOR.6", "API_VERSIONS.3", "INIT_PRODUCER_ID.5", "PRODUCE.12", "FIND_COORDINATOR.6",
        "TXN_OFFSET_COMMIT.5", "END_TXN.5",
    ]  # fmt: skip
    assert producer.identity.producer_epoch == 1, "each transaction has an epoch of its own"
    assert producer.first_sequences == {}
    assert not producer.is_open


@pytest.mark.parametrize("level", [0, 1])
def test_before_it_partitions_and_group_are_added_and_older_versions_spoken(level: int, world: Any) -> None:
    producer, coordinator = world(level)
    transaction(producer)
    transaction(producer)
    assert coordinator.names() == [
        "FIND_COORDINATOR.6", "API_VERSIONS.3", "INIT_PRODUCER_ID.5", "ADD_PARTITIONS_TO_TXN.3", "PRODUCE.11",
        "ADD_OFFSETS_TO_TXN.4", "FIND_COORDINATOR.6", "TXN_OFFSET_COMMIT.4", "END_TXN.4",
        "ADD_PARTITIONS_TO_TXN.3", "PRODUCE.11", "ADD_OFFSETS_TO_TXN.4", "TXN_OFFSET_COMMIT.4", "END_TXN.4",
    ]  # fmt: skip
    added = coordinator.asked[3][2].v3_and_below_topics
    assert {(topic.name, topic.partitions) for topic in added} == {(TOPIC, (0,)), ("out", (1,))}
    assert producer.identity.producer_epoch == 0, "the epoch stays"
    assert producer.identity.produce_version_max == 11
    assert producer.first_sequences == {(TOPIC, 0): 2}, "and the sequence numbers go on"


def test_a_batch_carries_producer_sequence_and_the_transactional_bit(world: Any) -> None:
    producer, coordinator = world(1)
    producer.begin([(TOPIC, 0)])
    producer.send(TOPIC, 0, [Record(b"k", b"v", 1), Record(b"k", b"w", 2)])
    producer.send(TOPIC, 0, [Record(b"k", b"x", 3)])
    batches = [body.topic_data[0].partition_data[0].records for key, _, body in coordinator.asked if key == 0]
    headers = [check_batch(batch) for batch in batches]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence, h.is_transactional) for h in headers] == [
        (7, 0, 0, True),
        (7, 0, 2, True),
    ]


@pytest.mark.parametrize("level", [0, 2])
def test_an_abort_brings_a_new_epoch_so_that_late_batches_are_refused(level: int, world: Any) -> None:
    producer, coordinator = world(level)
    producer.begin([(TOPIC, 0)])
    producer.send(TOPIC, 0, [Record(b"k", b"v", 1)])
    producer.note_sequences({("out", 1): 40})
    before = producer.identity
    producer.abort()
    assert producer.identity.producer_epoch == before.producer_epoch + 1
    assert producer.first_sequences == {}
    ends = [body.committed for key, _, body in coordinator.asked if key == ApiKey.END_TXN]
    assert ends == [False]


@pytest.mark.parametrize("level", [0, 2])
def test_a_new_epoch_is_asked_for_with_the_own_id_and_epoch(level: int, world: Any) -> None:
    producer, coordinator = world(level)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.END_TXN] = deque([47])  # the coordinator has aborted it, since it took too long
    producer.abort()
    inits = [(b.producer_id, b.producer_epoch) for key, _, b in coordinator.asked if key == ApiKey.INIT_PRODUCER_ID]
    assert inits == [(-1, -1), (7, 0)]
    assert not producer.is_open


@pytest.mark.parametrize("code", [47, 90])
def test_a_producer_that_was_fenced_does_not_take_over_again(code: int, world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.END_TXN] = deque([47])
    coordinator.script[ApiKey.INIT_PRODUCER_ID] = deque([code])
    for again in (producer.abort, lambda: producer.begin([(TOPIC, 0)])):
        with pytest.raises(ProducerFencedError):
            again()


@pytest.mark.parametrize("code", [47, 48, 49, 59, 120])
def test_a_commit_that_is_refused_can_only_be_aborted(code: int, world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.END_TXN] = deque([code])
    with pytest.raises(AbortableTransactionError):
        producer.commit()
    assert producer.is_open


def test_a_commit_whose_answer_was_lost_is_asked_for_again(world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.END_TXN] = deque([BrokerConnectionError("gone"), 16, 51, 0])
    producer.commit()
    assert coordinator.names()[3:] == [
        "END_TXN.5", "FIND_COORDINATOR.6", "END_TXN.5", "FIND_COORDINATOR.6", "END_TXN.5", "END_TXN.5",
    ]  # fmt: skip


def test_a_batch_that_a_dead_leader_had_replicated_is_not_refused_when_it_is_sent_again(world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.PRODUCE] = deque([BrokerConnectionError("gone"), 6, 46])
    producer.send(TOPIC, 0, [Record(b"k", b"v", 1)])
    assert producer.first_sequences == {(TOPIC, 0): 1}
    producer.commit()


def test_before_transaction_version_2_a_late_end_of_a_transaction_cannot_end_the_next(world: Any) -> None:
    producer, coordinator = world(1)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.END_TXN] = deque([BrokerConnectionError("gone"), 0])
    producer.commit()
    producer.begin([(TOPIC, 0)])
    assert producer.identity.producer_epoch == 1, "a new epoch: the first EndTxn may still be on its way"


def test_the_transaction_before_is_waited_for_but_not_for_ever(world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.PRODUCE] = deque([51, 51, 0])
    producer.send(TOPIC, 0, [Record(b"k", b"v", 1)])
    coordinator.script[ApiKey.PRODUCE] = deque([51] * 10_000)
    with pytest.raises(RequestTimeoutError, match="did not end the transaction before"):
        producer.send(TOPIC, 0, [Record(b"k", b"v", 1)])


@pytest.mark.parametrize("code", [50, 53])
def test_what_the_broker_does_not_allow_is_told(code: int, world: Any) -> None:
    producer, coordinator = world(2)
    coordinator.script[ApiKey.INIT_PRODUCER_ID] = deque([code])
    with pytest.raises(BrokerError) as caught:
        producer.begin([(TOPIC, 0)])
    assert caught.value.code == code
    assert "transactional id 'tx'" in str(caught.value)


def test_offsets_of_a_topic_that_was_deleted_do_not_hold_up_the_transaction(world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    coordinator.script[ApiKey.TXN_OFFSET_COMMIT] = deque([3])
    producer.commit_offsets("group", {("gone", 0): 5}, "batch=1")
    producer.commit()


def test_no_offsets_are_no_request(world: Any) -> None:
    producer, coordinator = world(2)
    producer.begin([(TOPIC, 0)])
    producer.commit_offsets("group", {}, "")
    assert ApiKey.TXN_OFFSET_COMMIT not in [key for key, _, _ in coordinator.asked]


def test_the_first_batch_of_a_partition_goes_alone() -> None:
    sequencer = PartitionSequencer(40)
    batches = [PendingBatch("t", 0, bytearray(), 2, 0, 0, 0.0) for _ in range(4)]
    for batch in batches:
        sequencer.add(batch)
    assert [batch.base_sequence for batch in batches] == [40, 42, 44, 46]
    assert sequencer.next_sequence == 48
    first = sequencer.take(1)
    assert not sequencer.sendable_to(1)
    sequencer.failed(first)
    assert sequencer.take(1) is first
    assert not sequencer.sendable_to(1)
    sequencer.delivered()
    sequencer.take(1)
    assert sequencer.sendable_to(1)
