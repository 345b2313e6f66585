"""An idempotent producer of whole record batches. Blocking, acks=all, requests pipelined."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import RETRY_BACKOFF_MS, RETRY_BACKOFF_MS_MAX, ClusterClient
from headwater.logtier.client.errors import (
    DUPLICATE_SEQUENCE_NUMBER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    BrokerConnectionError,
    ClientError,
    DeliveryTimeoutError,
    RequestTimeoutError,
    broker_error,
    error_name,
)
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import ProducedPartition, produce_request
from headwater.logtier.client.producer_state import PartitionSequencer, PendingBatch, ProducerIdentity, seal_batch

__all__ = ["IdempotentProducer", "ProducerConfig"]


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The subset of Kafka's producer settings that applies to a writer of whole batches."""

    request_bytes_max: int = 1 << 20
    requests_in_flight_max: int = 5
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    # Maximum bytes of batches in memory; `send` blocks above.
    buffer_bytes: int = 32 << 20


class IdempotentProducer:
    """Delivers encoded batches exactly once and in order for each partition, for the lifetime of this object.

    `send` queues batches and drives I/O; `flush` returns when all batches are acknowledged. The call that receives a
    fatal response raises its error; the producer is unusable afterwards. Not thread-safe.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig | None = None,
        identity: ProducerIdentity | None = None,
        first_sequences: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Creates a producer with an id of its own, or one that sends as `identity`, whose transaction is open.

        Args:
            first_sequences: Next sequence numbers of `identity`, by partition; 0 for partitions not in the mapping.
        """
        self._cluster = cluster
        self._config = config or ProducerConfig()
        self._identity = identity or self._init_producer_id()
        self._first_sequences = first_sequences or {}
        self._partitions: dict[tuple[str, int], PartitionSequencer] = {}
        self._requests: dict[int, deque[list[PendingBatch]]] = {}
        self._connections: dict[int, BlockingConnection] = {}
        self._queued_bytes = 0
        self._backoff_ms = RETRY_BACKOFF_MS

    def _init_producer_id(self) -> ProducerIdentity:
        values = {"transactional_id": None, "transaction_timeout": timedelta(0)}

        def ask() -> ProducerIdentity:
            connection = self._cluster.any_connection()
            response = connection.call(
                kio_request(ApiKey.INIT_PRODUCER_ID, connection.version(ApiKey.INIT_PRODUCER_ID), values)
            )
            if response.error_code:
                raise broker_error(int(response.error_code), "InitProducerId")
            return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))

        return self._cluster.retry("a producer id", ask)

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        """Queues a batch (v2; this method fills in the producer fields and the CRC) and sends ready batches.

        Blocks while `buffer_bytes` are queued.
        """
        sequencer = self._partitions.get((topic, partition))
        if sequencer is None:
            sequencer = PartitionSequencer(self._first_sequences.get((topic, partition), 0))
            self._partitions[topic, partition] = sequencer
        deadline_s = time.monotonic() + self._config.delivery_timeout_ms / 1000
        pending = PendingBatch(topic, partition, batch, record_count, 0, 0, deadline_s)
        sequencer.add(pending)
        seal_batch(batch, self._identity, pending.base_sequence)
        self._queued_bytes += len(batch)
        while self._queued_bytes > self._config.buffer_bytes:
            self._send_ready()
            self._receive_oldest()

    def next_sequences(self) -> dict[tuple[str, int], int]:
        """Next sequence numbers, by partition with sent batches."""
        return {key: sequencer.next_sequence for key, sequencer in self._partitions.items()}

    def flush(self) -> None:
        """Sends all batches and waits for their acknowledgements."""
        while any(sequencer.unfinished for sequencer in self._partitions.values()):
            self._send_ready()
            self._receive_oldest()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send_ready(self) -> None:
        """Fills the pipeline of every leader with its partitions' ready batches."""
        by_leader: dict[int, list[tuple[str, int]]] = {}
        for key, sequencer in self._partitions.items():
            if sequencer.waiting:
                by_leader.setdefault(self._cluster.leader(*key), []).append(key)
        for node_id, keys in by_leader.items():
            while len(self._requests.get(node_id, ())) < self._config.requests_in_flight_max:
                batches = self._collect(node_id, keys)
                # After a lost connection another broker may lead: the leaders are requested again.
                if not batches or not self._send_request(node_id, batches):
                    break

    def _collect(self, node_id: int, keys: list[tuple[str, int]]) -> list[PendingBatch]:
        """Takes one batch of each ready partition, up to the request size; the other partitions are first next time."""
        batches: list[PendingBatch] = []
        size = 0
        for key in list(keys):
            sequencer = self._partitions[key]
            if not sequencer.sendable_to(node_id):
                continue
            if batches and size + sequencer.peek_bytes() > self._config.request_bytes_max:
                break
            batches.append(sequencer.take(node_id))
            size += len(batches[-1].data)
            keys.remove(key)
            keys.append(key)
        return batches

    def _connection(self, node_id: int) -> BlockingConnection:
        """Returns the connection for this producer's Produce requests to a broker.

        Invariant: the connection is open while requests are in flight; `_connection_lost` drops both together.
        """
        known = self._connections.get(node_id)
        if known is None or known.closed:
            assert len(self._requests.get(node_id, ())) <= 1, "requests in flight on a closed connection"
            known = self._connections[node_id] = self._cluster.open_node_connection(node_id)
        return known

    def close(self) -> None:
        """Closes the connections and drops unacknowledged batches."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _send_request(self, node_id: int, batches: list[PendingBatch]) -> bool:
        """Sends batches to their leader; returns whether its connection is usable."""
        by_topic: dict[str, list[tuple[int, bytes | bytearray]]] = {}
        for batch in batches:
            by_topic.setdefault(batch.topic, []).append((batch.partition, batch.data))
        self._requests.setdefault(node_id, deque()).append(batches)
        try:
            connection = self._connection(node_id)
            version = connection.version(ApiKey.PRODUCE)
            if self._identity.produce_version_max is not None:
                version = min(version, self._identity.produce_version_max)
            connection.send(
                produce_request(
                    version,
                    by_topic,
                    timeout_ms=self._config.request_timeout_ms,
                    transactional_id=self._identity.transactional_id,
                )
            )
        except (BrokerConnectionError, RequestTimeoutError) as error:
            self._connection_lost(node_id, error)
            return False
        return True

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _receive_oldest(self) -> None:
        """Receives one response of the leader with the fullest pipeline."""
        node_id = max(self._requests, key=lambda node: len(self._requests[node]), default=None)
        if node_id is None or not self._requests[node_id]:
            return
        try:
            response = self._connection(node_id).receive().value
        except (BrokerConnectionError, RequestTimeoutError) as error:
            self._connection_lost(node_id, error)
            return
        assert isinstance(response, list)
        answers: dict[tuple[str, int], ProducedPartition] = {(part.topic, part.partition): part for part in response}
        retried: ClientError | None = None
        for batch in self._requests[node_id].popleft():
            answer = answers.get((batch.topic, batch.partition))
            retried = self._settle(batch, answer) or retried
        if retried is None:
            self._backoff_ms = RETRY_BACKOFF_MS
        else:
            self._back_off()

    def _settle(self, batch: PendingBatch, answer: ProducedPartition | None) -> ClientError | None:
        """Marks a batch as delivered, or as to be retried and returns the reason; raises if neither is possible."""
        what = f"producing to {batch.topic}-{batch.partition}"
        sequencer = self._partitions[batch.topic, batch.partition]
        if answer is None:
            raise BrokerConnectionError(f"{what}: the broker's answer does not name this partition")
        code = answer.error_code
        if code in (0, DUPLICATE_SEQUENCE_NUMBER):  # a duplicate: an earlier attempt was written, its response was lost
            sequencer.delivered()
            self._queued_bytes -= len(batch.data)
            return None
        error = broker_error(code, what, answer.error_message)
        follows_a_failure = code == OUT_OF_ORDER_SEQUENCE_NUMBER and sequencer.draining
        if not error.retriable and not follows_a_failure:
            raise error
        if answer.current_leader is not None:
            self._cluster.learn_leader(batch.topic, batch.partition, *answer.current_leader)
        self._cluster.forget_leader(batch.topic)
        self._retry(batch, f"{what}: {error_name(code)}")
        return error

    def _retry(self, batch: PendingBatch, reason: str) -> None:
        if time.monotonic() > batch.deadline_s:
            raise DeliveryTimeoutError(
                f"a batch was not delivered within {self._config.delivery_timeout_ms} ms; the last failure: {reason}"
            )
        self._partitions[batch.topic, batch.partition].failed(batch)

    def _connection_lost(self, node_id: int, error: ClientError) -> None:
        lost = self._connections.pop(node_id, None)
        if lost is not None:
            lost.close()
        for batches in self._requests.pop(node_id, deque()):
            for batch in batches:
                self._cluster.forget_leader(batch.topic)
                self._retry(batch, str(error))
        self._back_off()

    def _back_off(self) -> None:
        time.sleep(self._backoff_ms / 1000)
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MS_MAX)
