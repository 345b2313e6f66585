"""An administrator's view of transactions: those of coordinators, and those hanging in a partition (KIP-664).

A transaction hangs if it is open in a partition and no coordinator will ever end it: read_committed readers and
compaction stop before it. Blocking.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.connection import Request
from headwater.logtier.client.coordinators import TRANSACTION, find_coordinator
from headwater.logtier.client.errors import ClientError, broker_error
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.wire import Cursor

__all__ = ["HangingTransaction", "OpenTransaction", "TransactionAdmin", "TransactionDescription", "TransactionListing"]

# States of a transaction that is open, or whose markers are being written.
_LIVE_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_TRANSACTIONAL_ID_NOT_FOUND = 105
_NO_OFFSET = -1

_HEAD = struct.Struct(">i")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_TIMES = struct.Struct(">iq")
_PRODUCER = struct.Struct(">qh")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a coordinator's list."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A coordinator's description of a transactional id. `start_ms` is None without an open transaction."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction that no coordinator will end, its transactional id if known, and that id's description."""

    transaction: OpenTransaction
    transactional_id: str | None
    why: str


class TransactionAdmin:
    """Lists a cluster's transactions and ends hanging ones."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def listings(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators that match the filters."""
        values = {
            "state_filters": tuple(states),
            "producer_id_filters": tuple(producer_ids),
            "duration_filter": duration_ms,
            "transactional_id_pattern": pattern,
        }

        def ask() -> list[TransactionListing]:
            self._cluster.refresh_metadata(())
            return [each for node in self._cluster.nodes() for each in self._listings_of(node, values)]

        found = self._cluster.retry("listing the transactions", ask)
        return sorted(found, key=lambda each: each.transactional_id)

    def _listings_of(self, node: int, values: Mapping[str, Any]) -> list[TransactionListing]:
        response = self._call(node, ApiKey.LIST_TRANSACTIONS, values)
        if response.error_code:
            raise broker_error(int(response.error_code), "listing the transactions")
        if response.unknown_state_filters:
            raise ClientError(f"there is no state {', '.join(map(repr, response.unknown_state_filters))}")
        return [
            TransactionListing(str(each.transactional_id), int(each.producer_id), str(each.transaction_state), node)
            for each in response.transaction_states
        ]

    def describe(self, transactional_id: str) -> TransactionDescription | None:
        """Returns the coordinator's description of a transactional id; None if the id is unknown."""
        what = f"describing transactional id {transactional_id!r}"

        def ask() -> TransactionDescription | None:
            node = find_coordinator(self._cluster, TRANSACTION, transactional_id)
            connection = self._cluster.connection(node)
            # kio rejects a time before 1970, which is the protocol's value for "no transaction".
            asked = kio_request(
                ApiKey.DESCRIBE_TRANSACTIONS,
                connection.version(ApiKey.DESCRIBE_TRANSACTIONS),
                {"transactional_ids": (transactional_id,)},
            )
            request: Request[list[tuple[int, TransactionDescription]]] = replace(asked, decode=_decode_descriptions)
            [(code, described)] = connection.call(request)
            if code == _TRANSACTIONAL_ID_NOT_FOUND:
                return None
            if code:
                raise broker_error(code, what)
            return replace(described, coordinator=node)

        return self._cluster.retry(what, ask)

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """Returns the transactions that are open in these partitions."""
        wanted = list(partitions)

        def ask() -> list[OpenTransaction]:
            by_leader: dict[int, dict[str, list[int]]] = {}
            for topic, partition in wanted:
                by_leader.setdefault(self._cluster.leader(topic, partition), {}).setdefault(topic, []).append(partition)
            return [each for node, topics in by_leader.items() for each in self._open_at(node, topics)]

        topics = {topic for topic, _ in wanted}
        found = self._cluster.retry("the producers of partitions", ask, topics=topics)
        return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))

    def _open_at(self, node: int, topics: Mapping[str, Sequence[int]]) -> list[OpenTransaction]:
        asked = tuple({"name": name, "partition_indexes": tuple(indexes)} for name, indexes in topics.items())
        response = self._call(node, ApiKey.DESCRIBE_PRODUCERS, {"topics": asked})
        found = []
        for topic in response.topics:
            for part in topic.partitions:
                if part.error_code:
                    raise broker_error(int(part.error_code), f"the producers of {topic.name}-{part.partition_index}")
                found += [
                    OpenTransaction(
                        str(topic.name),
                        int(part.partition_index),
                        int(each.producer_id),
                        int(each.producer_epoch),
                        int(each.coordinator_epoch),
                        int(each.current_txn_start_offset),
                        int(each.last_timestamp),
                    )
                    for each in part.active_producers
                    if each.current_txn_start_offset != _NO_OFFSET
                ]
        return found

    def find_hanging(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int, now_ms: int
    ) -> list[HangingTransaction]:
        """Returns the transactions that are open in a partition, but not at their coordinator.

        Args:
            older_than_ms: Minimum age: younger transactions may be beginning or ending.
        """
        candidates = [
            each for each in self.open_transactions(partitions) if now_ms - each.last_timestamp_ms >= older_than_ms
        ]
        if not candidates:
            return []
        producer_ids = sorted({each.producer_id for each in candidates})
        owners = {each.producer_id: each.transactional_id for each in self.listings(producer_ids=producer_ids)}
        described = {name: self.describe(name) for name in owners.values()}
        hanging = []
        for candidate in candidates:
            owner = owners.get(candidate.producer_id)
            why = _why_it_hangs(candidate, None if owner is None else described[owner])
            if why is not None:
                hanging.append(HangingTransaction(candidate, owner, why))
        return hanging

    def abort(self, transaction: OpenTransaction) -> None:
        """Ends an open transaction in its partition, independently of its coordinator."""
        what = f"aborting the transaction in {transaction.topic}-{transaction.partition}"
        values = {
            "markers": (
                {
                    "producer_id": transaction.producer_id,
                    "producer_epoch": transaction.producer_epoch,
                    "transaction_result": False,
                    "topics": ({"name": transaction.topic, "partition_indexes": (transaction.partition,)},),
                    "coordinator_epoch": max(transaction.coordinator_epoch, 0),
                },
            )
        }

        def ask() -> None:
            node = self._cluster.leader(transaction.topic, transaction.partition)
            response = self._call(node, ApiKey.WRITE_TXN_MARKERS, values)
            codes = [part.error_code for each in response.markers for topic in each.topics for part in topic.partitions]
            for code in filter(None, codes):
                raise broker_error(int(code), what)

        self._cluster.retry(what, ask, topics=(transaction.topic,))

    def _call(self, node: int, api_key: int, values: Mapping[str, Any]) -> Any:
        connection = self._cluster.connection(node)
        return connection.call(kio_request(api_key, connection.version(api_key), values))


def _why_it_hangs(candidate: OpenTransaction, owner: TransactionDescription | None) -> str | None:
    if owner is None:
        return "no coordinator knows its producer"
    if owner.state not in _LIVE_STATES:
        return f"its transactional id is in state {owner.state}"
    if (candidate.topic, candidate.partition) not in owner.partitions:
        return "the transaction of its transactional id does not include this partition"
    return None


def _decode_descriptions(body: memoryview) -> list[tuple[int, TransactionDescription]]:
    cursor = Cursor(body, flexible=True)
    cursor.unpack(_HEAD)  # throttle time
    described = []
    for _ in range(cursor.array(element_bytes_min=1)):
        (code,) = cursor.unpack(_I16)
        transactional_id = cursor.string() or ""
        state = cursor.string() or ""
        timeout_ms, start_ms = cursor.unpack(_TIMES)
        producer_id, producer_epoch = cursor.unpack(_PRODUCER)
        partitions: list[TopicPartition] = []
        for _ in range(cursor.array(element_bytes_min=1)):
            topic = cursor.string() or ""
            partitions += [(topic, cursor.unpack(_I32)[0]) for _ in range(cursor.array(element_bytes_min=_I32.size))]
            cursor.tags()
        cursor.tags()
        described.append(
            (
                code,
                TransactionDescription(
                    transactional_id,
                    -1,
                    state,
                    producer_id,
                    producer_epoch,
                    timeout_ms,
                    None if start_ms < 0 else start_ms,
                    tuple(partitions),
                ),
            )
        )
    return described
