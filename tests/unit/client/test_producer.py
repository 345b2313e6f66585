"""The idempotent producer against a scripted cluster: what goes on the wire after each kind of failure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c
from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client import producer as producer_module
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.connection import Request, Response
from headwater.logtier.client.errors import (
    BrokerConnectionError,
    BrokerError,
    DeliveryTimeoutError,
    ProducerFencedError,
)
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.produce_codec import ProducedPartition
from headwater.logtier.client.producer import IdempotentProducer, ProducerConfig
from headwater.logtier.client.producer_state import PartitionSequencer, PendingBatch
from headwater.logtier.records.batch import RecordBatchHeader

PRODUCE_VERSION = 9


class ScriptedBroker:
    """Takes produce requests and answers each by the script: an error code, or an exception to break the connection.

    Keeps the sequence numbers it accepted per partition, and answers DUPLICATE or OUT_OF_ORDER as a broker would.
    """

    def __init__(self) -> None:
        self.script: deque[int | Exception] = deque()
        self.accepted: dict[tuple[str, int], list[int]] = {}
        self.connections = 0
        self.leader_forgotten = 0
        self.gone: int | None = None

    def append(self, topic: str, partition: int, records: bytes) -> int:
        header = RecordBatchHeader.parse(records)
        assert header.crc == crc32c(records[21:])
        sequences = self.accepted.setdefault((topic, partition), [])
        expected = sequences[-1] + 1 if sequences else 0
        if header.base_sequence < expected:
            return 46
        if header.base_sequence > expected:
            return 45
        sequences.extend(range(header.base_sequence, header.base_sequence + header.record_count))
        return 0


class ScriptedConnection:
    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.closed = False
        self.address = "scripted:1"
        self.answers: deque[list[ProducedPartition] | Exception] = deque()

    def version(self, api_key: int) -> int:
        return {ApiKey.PRODUCE: PRODUCE_VERSION, ApiKey.INIT_PRODUCER_ID: 4}[api_key]

    def call(self, request: Request[Any]) -> Any:
        assert request.api_key == ApiKey.INIT_PRODUCER_ID
        return SimpleNamespace(error_code=0, producer_id=1000, producer_epoch=0)

    def send(self, request: Request[Any]) -> None:
        if self.closed:
            raise BrokerConnectionError("closed")
        body, _ = entity_reader(load_request_schema(ApiKey.PRODUCE, PRODUCE_VERSION))(request.body, 0)
        step = self.broker.script.popleft() if self.broker.script else 0
        if isinstance(step, Exception):
            lost_after_append = "after append" in str(step)
            if lost_after_append:
                self._apply(cast(Any, body), 0)
            self.answers.append(step)
        else:
            self.answers.append(self._apply(cast(Any, body), step))

    def _apply(self, body: Any, code: int) -> list[ProducedPartition]:
        answers = []
        for topic in body.topic_data:
            for part in topic.partition_data:
                result = code or self.broker.append(topic.name, part.index, bytes(part.records))
                answers.append(ProducedPartition(topic.name, part.index, result, None, 0))
        return answers

    def receive(self) -> Response[object]:
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            self.close()
            raise answer
        return Response(0, answer)

    def close(self) -> None:
        self.closed = True


class ScriptedCluster:
    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker

    def any_connection(self) -> ScriptedConnection:
        return ScriptedConnection(self.broker)

    def open_node_connection(self, node_id: int) -> ScriptedConnection:
        if node_id == self.broker.gone:
            raise BrokerConnectionError(f"broker {node_id} refuses")
        self.broker.connections += 1
        return ScriptedConnection(self.broker)

    def leader(self, _topic: str, partition: int) -> int:
        # Once somebody has asked anew, the partitions of the broker that is gone are led by the other one.
        if self.broker.leader_forgotten and self.broker.gone is not None:
            return 1 - self.broker.gone
        return partition % 2

    def forget_leader(self, _topic: str) -> None:
        self.broker.leader_forgotten += 1

    def retry(self, _what: str, attempt: Callable[[], Any]) -> Any:
        return attempt()


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "RETRY_BACKOFF_MS", 0)


def new_producer(broker: ScriptedBroker, config: ProducerConfig | None = None) -> IdempotentProducer:
    return IdempotentProducer(cast(ClusterClient, ScriptedCluster(broker)), config)


def batch(record_count: int = 2) -> bytearray:
    data = bytearray(61 + 10)
    struct.pack_into(">qiibI", data, 0, 0, len(data) - 12, -1, 2, 0)
    struct.pack_into(">i", data, 57, record_count)
    return data


def produce(broker: ScriptedBroker, *, partitions: int = 3, batches: int = 12) -> None:
    producer = new_producer(broker)
    for number in range(batches):
        producer.send("t", number % partitions, batch(), 2)
    producer.flush()
    producer.close()


def assert_each_once(broker: ScriptedBroker, *, partitions: int = 3, batches: int = 12) -> None:
    assert broker.accepted == {("t", p): list(range(2 * batches // partitions)) for p in range(partitions)}


def test_batches_arrive_once_and_in_order(broker: ScriptedBroker) -> None:
    produce(broker)
    assert_each_once(broker)


@pytest.mark.parametrize("failures", [[6], [0, 6, 0, 7], [3, 3, 3], [19], [0, 0, 5]])
def test_a_retriable_error_is_retried_in_order(broker: ScriptedBroker, failures: list[int]) -> None:
    broker.script.extend(failures)
    produce(broker)
    assert_each_once(broker)
    assert broker.leader_forgotten


@pytest.mark.parametrize("text", ["lost before append", "lost after append"])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_lost_connection_neither_loses_nor_doubles(broker: ScriptedBroker, text: str, position: int) -> None:
    broker.script.extend([0] * position + [BrokerConnectionError(text)])
    produce(broker)
    assert_each_once(broker)
    assert broker.connections > 2


def test_batches_of_a_leader_that_is_gone_go_to_the_new_one(broker: ScriptedBroker) -> None:
    broker.gone = 1
    produce(broker)
    assert_each_once(broker)


def test_a_fatal_error_is_raised_with_its_name(broker: ScriptedBroker) -> None:
    broker.script.append(10)
    with pytest.raises(BrokerError, match=r"producing to t-0: the broker answered MESSAGE_TOO_LARGE \(10\)"):
        produce(broker)


def test_a_fenced_producer_says_so(broker: ScriptedBroker) -> None:
    broker.script.append(90)
    with pytest.raises(ProducerFencedError):
        produce(broker)


def test_out_of_order_without_an_earlier_failure_is_fatal(broker: ScriptedBroker) -> None:
    broker.script.append(45)
    with pytest.raises(BrokerError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        produce(broker)


def test_retries_end_at_the_delivery_timeout(broker: ScriptedBroker) -> None:
    broker.script.extend([6] * 10_000)
    producer = new_producer(broker, ProducerConfig(delivery_timeout_ms=0))
    producer.send("t", 0, batch(), 2)
    with pytest.raises(DeliveryTimeoutError, match="NOT_LEADER_OR_FOLLOWER"):
        producer.flush()


def test_memory_in_use_is_bounded_by_the_buffer(broker: ScriptedBroker) -> None:
    producer = new_producer(broker, ProducerConfig(buffer_bytes=500))
    for _ in range(100):
        producer.send("t", 0, batch(), 2)
    assert len(broker.accepted["t", 0]) >= 2 * (100 - 500 // 71 - 1)


def pending(order: int) -> PendingBatch:
    return PendingBatch("t", 0, bytearray(), 1, 0, order, 0.0)


def begun() -> PartitionSequencer:
    """One whose first batch is acknowledged."""
    sequencer = PartitionSequencer()
    sequencer.add(pending(0))
    sequencer.take(1)
    sequencer.delivered()
    return sequencer


def test_no_more_than_five_batches_of_a_partition_are_in_flight() -> None:
    sequencer = begun()
    for order in range(7):
        sequencer.add(pending(order))
    for _ in range(5):
        sequencer.take(1)
    assert not sequencer.sendable_to(1)
    sequencer.delivered()
    assert sequencer.sendable_to(1)


def test_a_new_leader_waits_until_the_old_one_has_answered() -> None:
    sequencer = PartitionSequencer()
    sequencer.add(pending(0))
    sequencer.add(pending(1))
    sequencer.take(1)
    assert not sequencer.sendable_to(2)
    sequencer.delivered()
    assert sequencer.sendable_to(2)


def test_failed_batches_go_first_and_in_order_after_all_are_answered() -> None:
    sequencer = begun()
    for order in range(4):
        sequencer.add(pending(order))
    first, second, third = (sequencer.take(1) for _ in range(3))
    sequencer.failed(second)
    sequencer.failed(first)
    assert sequencer.draining
    assert not sequencer.sendable_to(1)
    sequencer.failed(third)
    assert [sequencer.take(1).base_sequence for _ in range(4)] == [1, 2, 3, 4]
