"""A transactional producer that several processes share: one owns the transaction, the others send its batches.

The owner (a Spark driver) begins, commits and aborts. With `identity` and `first_sequences`, an `IdempotentProducer` in
another process (a Spark task) sends to partitions of its own. Blocking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.coordinators import GROUP, TRANSACTION, find_coordinator
from headwater.logtier.client.errors import (
    DUPLICATE_SEQUENCE_NUMBER,
    UNKNOWN_TOPIC_OR_PARTITION,
    AbortableTransactionError,
    BrokerConnectionError,
    ClientError,
    ProducerFencedError,
    RequestTimeoutError,
    broker_error,
)
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import produce_request
from headwater.logtier.client.producer_state import ProducerIdentity, seal_batch
from headwater.logtier.client.transaction_codes import Reaction, first_failure, reaction
from headwater.logtier.records.batch import Record, build_batch, increment_sequence

__all__ = ["TRANSACTION_TIMEOUT_MS", "TransactionConfig", "TransactionalProducer"]

# The coordinator aborts an open transaction after this time. If a producer dies for good, read_committed readers wait
# until then.
TRANSACTION_TIMEOUT_MS: Final = 300_000
FEATURE: Final = "transaction.version"
# From this level of transaction.version on, each transaction has an epoch of its own, and Produce and TxnOffsetCommit
# add partitions implicitly (KIP-890). Lower levels require older versions of these APIs.
EPOCH_A_TRANSACTION: Final = 2
PRODUCE_VERSION_CLASSIC: Final = 11
TXN_OFFSET_COMMIT_VERSION_CLASSIC: Final = 4
END_TXN_VERSION_CLASSIC: Final = 4
# Pause before a retry while the coordinator ends the previous transaction; the same as in Kafka's producer.
CONCURRENT_TRANSACTIONS_WAIT_S: Final = 0.02

_SOFTWARE: Final = {"client_software_name": "headwater", "client_software_version": "1"}


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Kafka's settings of a transactional producer."""

    transactional_id: str
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    request_timeout_ms: int = 30_000


class TransactionalProducer:
    """Owns the transactions of one transactional id. Not thread-safe.

    Call `initialise` first, then `begin`, sends, and `commit` or `abort`, repeatedly. After AbortableTransactionError
    the transaction can only be aborted. After ProducerFencedError a newer producer of this transactional id has begun:
    this one must end and never initialises again.

    Invariant: two transactions have different epochs if a request of the first may still arrive. So the broker rejects
    late requests (a batch of an abandoned task, an EndTxn whose connection broke), and none of them becomes part of the
    next transaction.
    """

    def __init__(self, cluster: ClusterClient, config: TransactionConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._producer: tuple[int, int] | None = None
        self._version = 0
        self._is_open = False
        self._needs_new_epoch = False
        self._fenced: ProducerFencedError | None = None
        self._groups: set[str] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    @property
    def transaction_version(self) -> int:
        """The cluster's level of `transaction.version` at the last `initialise`."""
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._is_open

    @property
    def identity(self) -> ProducerIdentity:
        """The identity for sending batches of the present transaction."""
        assert self._producer is not None, "not initialised"
        version_max = None if self._has_epoch_a_transaction else PRODUCE_VERSION_CLASSIC
        return ProducerIdentity(*self._producer, self._config.transactional_id, version_max)

    @property
    def first_sequences(self) -> dict[TopicPartition, int]:
        """Next sequence numbers, by partition; 0 for partitions not in the mapping."""
        return dict(self._sequences)

    def note_sequences(self, next_sequences: Mapping[TopicPartition, int]) -> None:
        """Registers the sequence numbers after other processes' batches in the present transaction."""
        assert self._is_open
        self._sequences.update(next_sequences)

    @property
    def _has_epoch_a_transaction(self) -> bool:
        return self._version >= EPOCH_A_TRANSACTION

    # -- the producer id ---------------------------------------------------------------------------------------------

    def initialise(self) -> None:
        """Takes over the transactional id, or gets a new epoch if this producer has it already (KIP-360).

        On return, a previous producer's transaction has ended: committed if that was decided, else aborted.
        """
        known = self._producer or (-1, -1)

        def ask(connection: BlockingConnection) -> Any:
            # Requested each time: the cluster may have been upgraded since.
            self._version = self._transaction_version(connection)
            return connection.call(
                kio_request(
                    ApiKey.INIT_PRODUCER_ID,
                    connection.version(ApiKey.INIT_PRODUCER_ID),
                    {
                        "transactional_id": self._config.transactional_id,
                        "transaction_timeout": timedelta(milliseconds=self._config.timeout_ms),
                        "producer_id": known[0],
                        "producer_epoch": known[1],
                    },
                )
            )

        response = self._ask("InitProducerId", ask, lambda answer: int(answer.error_code), initialising=True)
        self._become(int(response.producer_id), int(response.producer_epoch))
        self._is_open = self._needs_new_epoch = False

    def _become(self, producer_id: int, epoch: int) -> None:
        if self._producer != (producer_id, epoch):
            self._sequences.clear()  # sequence numbers restart with each epoch
        self._producer = (producer_id, epoch)

    def _transaction_version(self, connection: BlockingConnection) -> int:
        version = connection.version(ApiKey.API_VERSIONS)
        if version < 3:
            return 0
        response = connection.call(kio_request(ApiKey.API_VERSIONS, version, _SOFTWARE))
        if response.error_code:
            raise broker_error(int(response.error_code), f"ApiVersions at {connection.address}")
        levels = {str(each.name): int(each.max_version_level) for each in response.finalized_features}
        return levels.get(FEATURE, 0)

    # -- a transaction -----------------------------------------------------------------------------------------------

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Begins a transaction limited to these partitions."""
        if self._fenced is not None:
            raise self._fenced
        assert not self._is_open, "a transaction is open already"
        if self._producer is None or self._needs_new_epoch:
            self.initialise()
        self._groups.clear()
        self._is_open = True
        if not self._has_epoch_a_transaction:
            self._add_partitions(partitions)

    def send(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Sends the owner's own records as one batch and waits for the acknowledgement."""
        assert self._is_open
        key = (topic, partition)
        sequence = self._sequences.get(key, 0)
        batch = bytearray(build_batch(records))
        seal_batch(batch, self.identity, sequence)
        version_max = self.identity.produce_version_max

        def attempt() -> None:
            connection = self._cluster.connection(self._cluster.leader(topic, partition))
            version = connection.version(ApiKey.PRODUCE)
            request = produce_request(
                version if version_max is None else min(version, version_max),
                {topic: [(partition, batch)]},
                timeout_ms=self._config.request_timeout_ms,
                transactional_id=self._config.transactional_id,
            )
            [answer] = connection.call(request)
            # A duplicate: an earlier attempt was written, its response was lost.
            if answer.error_code and answer.error_code != DUPLICATE_SEQUENCE_NUMBER:
                if answer.current_leader is not None:
                    self._cluster.learn_leader(topic, partition, *answer.current_leader)
                self._cluster.forget_leader(topic)
                self._react(int(answer.error_code), f"producing to {topic}-{partition}", answer.error_message)

        # The sequence numbers distinguish a retry from a new batch.
        self._patiently(f"producing to {topic}-{partition}", attempt)
        self._sequences[key] = increment_sequence(sequence, len(records))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commits a group's offsets as part of the transaction.

        Omits partitions of topics that were deleted meanwhile.
        """
        assert self._is_open
        if not offsets:
            return
        assert self._producer is not None
        if not self._has_epoch_a_transaction and group not in self._groups:
            self._add_group(group)
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            by_topic.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": metadata,
                }
            )
        values = {
            **self._fields(),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items()),
        }

        def failure(answer: Any) -> int:
            codes = [int(part.error_code) for topic in answer.topics for part in topic.partitions]
            return first_failure([code for code in codes if code != UNKNOWN_TOPIC_OR_PARTITION])

        self._ask(
            f"committing the offsets of group {group!r}",
            lambda connection: self._call(
                connection, ApiKey.TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION_CLASSIC, values
            ),
            failure,
            coordinator=(GROUP, group),
        )

    def commit(self) -> None:
        """Commits: all records of the transaction become visible atomically.

        After a RequestTimeoutError the outcome is unknown; the next `initialise` of this transactional id settles it.
        """
        self._end(commit=True)

    def abort(self) -> None:
        """Aborts the open transaction, if any, and gets a new epoch, which fences late requests."""
        if self._is_open:
            try:
                self._end(commit=False)
            except AbortableTransactionError:
                # No transaction is open, or the coordinator has ended it: only the new epoch is necessary.
                self._is_open = False
                self._needs_new_epoch = True
        if self._needs_new_epoch:
            self.initialise()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        assert self._producer is not None
        return {
            "transactional_id": self._config.transactional_id,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
        }

    def _add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(set(partitions)):
            by_topic.setdefault(topic, []).append(partition)
        fields = {f"v3_and_below_{name}": value for name, value in self._fields().items()}
        topics = tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items())
        values = {**fields, "v3_and_below_topics": topics}

        def failure(answer: Any) -> int:
            return first_failure(
                [
                    int(part.partition_error_code)
                    for topic in answer.results_by_topic_v3_and_below
                    for part in topic.results_by_partition
                ]
            )

        self._ask(
            "AddPartitionsToTxn",
            lambda connection: self._call(connection, ApiKey.ADD_PARTITIONS_TO_TXN, None, values),
            failure,
        )

    def _add_group(self, group: str) -> None:
        self._ask(
            "AddOffsetsToTxn",
            lambda connection: self._call(
                connection, ApiKey.ADD_OFFSETS_TO_TXN, None, {**self._fields(), "group_id": group}
            ),
            lambda answer: int(answer.error_code),
        )
        self._groups.add(group)

    def _end(self, *, commit: bool) -> None:
        assert self._is_open
        asked = 0

        def ask(connection: BlockingConnection) -> Any:
            nonlocal asked
            asked += 1
            return self._call(
                connection, ApiKey.END_TXN, END_TXN_VERSION_CLASSIC, {**self._fields(), "committed": commit}
            )

        response = self._ask("EndTxn", ask, lambda answer: int(answer.error_code))
        self._is_open = False
        if self._has_epoch_a_transaction:
            self._become(int(response.producer_id), int(response.producer_epoch))
        else:
            # A request repeated after a lost response may arrive again, in the next transaction.
            self._needs_new_epoch = not commit or asked > 1

    def _call(
        self, connection: BlockingConnection, api_key: int, classic_version: int | None, values: Mapping[str, Any]
    ) -> Any:
        version = connection.version(api_key)
        if classic_version is not None and not self._has_epoch_a_transaction:
            version = min(version, classic_version)
        return connection.call(kio_request(api_key, version, values))

    def _ask(
        self,
        what: str,
        ask: Callable[[BlockingConnection], Any],
        code_of: Callable[[Any], int],
        *,
        coordinator: tuple[int, str] | None = None,
        initialising: bool = False,
    ) -> Any:
        """Repeats a request until the coordinator responds; raises the error that belongs to the response's code."""
        who = coordinator or (TRANSACTION, self._config.transactional_id)
        what = f"{what} of transactional id {self._config.transactional_id!r}"

        def attempt() -> Any:
            try:
                node_id = self._coordinators.get(who)
                if node_id is None:
                    node_id = self._coordinators[who] = find_coordinator(self._cluster, *who)
                response = ask(self._cluster.connection(node_id))
            except (BrokerConnectionError, RequestTimeoutError):
                self._coordinators.pop(who, None)
                raise
            code = code_of(response)
            if reaction(code) is Reaction.FIND_COORDINATOR:
                self._coordinators.pop(who, None)
            self._react(code, what, initialising=initialising)
            return response

        return self._patiently(what, attempt)

    def _patiently(self, what: str, attempt: Callable[[], Any]) -> Any:
        """Retries while brokers are unreachable or the coordinator ends the previous transaction."""
        deadline_s = time.monotonic() + self._cluster.config.api_timeout_ms / 1000
        while True:
            try:
                return self._cluster.retry(what, attempt)
            except _BusyError as error:
                if time.monotonic() > deadline_s:
                    raise RequestTimeoutError(
                        f"{what}: the coordinator did not end the transaction before within "
                        f"{self._cluster.config.api_timeout_ms} ms"
                    ) from error
                time.sleep(CONCURRENT_TRANSACTIONS_WAIT_S)

    def _react(self, code: int, what: str, detail: str | None = None, *, initialising: bool = False) -> None:
        todo = reaction(code, initialising=initialising)
        if todo is Reaction.GO_ON:
            return
        if todo is Reaction.WAIT:
            raise _BusyError(what)
        if todo is Reaction.FENCED:
            self._fenced = ProducerFencedError(code, what, detail)
            raise self._fenced
        if todo is Reaction.ABORT:
            raise AbortableTransactionError(code, what, detail)
        raise broker_error(code, what, detail)


class _BusyError(ClientError):
    """CONCURRENT_TRANSACTIONS: the caller repeats the request soon."""
