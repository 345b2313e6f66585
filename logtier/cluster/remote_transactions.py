"""The parts of transactions that are on other brokers: markers at leaders, verifications at coordinators."""

import functools
import logging
from collections.abc import Awaitable, Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError
from headwater.logtier.cluster.request_batches import RequestBatches
from headwater.logtier.peers.leader_requests import (
    TransactionMarker,
    VerifiedTransaction,
    add_partitions_to_txn_request,
    write_txn_markers_request,
)
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.deferred import Deferred
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.transaction.coordinator import WRITE_TIMEOUT_MS
from headwater.logtier.transaction.markers import TIMEOUT_MS, Marker
from headwater.logtier.transaction.verifier import VerifiedPartition

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Codes = Mapping[TopicPartition, ErrorCode]

#: Time beyond that of the replication there for another broker's response.
RESPONSE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class _Marked:
    marker: Marker
    partitions: frozenset[TopicPartition]


class RemoteTransactions:
    """Asks other brokers, in one request at a time to each of them, for all transactions of this broker (KIP-890)."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._tasks = SpawnedTasks("requests about transactions")
        self._markers: RequestBatches[_Marked, Codes] = RequestBatches(
            self._write_markers, lambda each: each.marker.producer_id, lambda each: each, self._tasks
        )
        self._verifications: RequestBatches[VerifiedPartition, ErrorCode] = RequestBatches(
            self._verify,
            lambda each: each.transactional_id,
            lambda each: (each.producer, each.adds),
            self._tasks,
        )

    async def aclose(self) -> None:
        """End the requests under way; those who wait for them are cancelled."""
        await self._tasks.cancel()

    def write_marker(self, broker_id: int, marker: Marker, partitions: Set[TopicPartition]) -> Awaitable[Codes]:
        """Ask the leader of partitions to write a marker; return its error codes.

        Raises:
            KafkaError: network_exception: there is no answer, and the marker may be written.
        """
        return self._markers.ask(broker_id, _Marked(marker, frozenset(partitions)))

    def verify_partition(self, broker_id: int, verified: VerifiedPartition) -> Awaitable[None]:
        """Ask a transaction coordinator whether a transaction includes a partition; see `TransactionCoordinator`.

        Raises:
            KafkaError: from the awaitable: the coordinator's refusal; network_exception without an answer.
        """
        return Deferred(functools.partial(self._ask, broker_id, verified))

    async def _ask(self, broker_id: int, verified: VerifiedPartition) -> None:
        code = await self._verifications.ask(broker_id, verified)
        if code is ErrorCode.operation_not_attempted:
            # The coordinator does not know another partition of the request yet.
            code = ErrorCode.coordinator_not_available
        if code is not ErrorCode.none:
            raise KafkaError(
                code,
                f"broker {broker_id} refused {verified.topic_partition} in a transaction of "
                f"{verified.transactional_id[:249]!r}",
            )

    async def _write_markers(self, broker_id: int, items: list[_Marked]) -> list[Codes]:
        request = write_txn_markers_request(
            TransactionMarker(
                each.marker.producer_id,
                each.marker.producer_epoch,
                each.marker.is_commit,
                sorted(each.partitions),
                each.marker.coordinator_epoch,
                each.marker.transaction_version,
            )
            for each in dict.fromkeys(items)
        )
        codes = await self._call(broker_id, Purpose.MARKERS, request, TIMEOUT_MS)
        return [{each: _code(codes.get((item.marker.producer_id, each))) for each in item.partitions} for item in items]

    async def _verify(self, broker_id: int, items: list[VerifiedPartition]) -> list[ErrorCode]:
        partitions: dict[str, list[TopicPartition]] = {}
        for each in items:
            partitions.setdefault(each.transactional_id, []).append(each.topic_partition)
        by_id = {each.transactional_id: each for each in items}
        request = add_partitions_to_txn_request(
            VerifiedTransaction(
                name, by_id[name].producer_id, by_id[name].producer_epoch, sorted(set(of_id)), adds=by_id[name].adds
            )
            for name, of_id in partitions.items()
        )
        answer = await self._call(broker_id, Purpose.VERIFICATIONS, request, WRITE_TIMEOUT_MS)
        if answer.error_code == ErrorCode.cluster_authorization_failed:
            log.error("broker %d refuses AddPartitionsToTxn: this broker needs CLUSTER_ACTION there", broker_id)
            return [ErrorCode.invalid_txn_state] * len(items)
        if answer.error_code:
            return [_code(answer.error_code)] * len(items)
        return [_code(answer.transactions.get(each.transactional_id, {}).get(each.topic_partition)) for each in items]

    async def _call(self, broker_id: int, purpose: Purpose, request: Request[_T], timeout_ms: int) -> _T:
        """Return the response; the error of a broken one, or of a fault here, is one that is tried again."""
        try:
            return await self._peers.call(broker_id, purpose, request, timeout_ms + RESPONSE_MS)
        except ClientError as error:
            raise KafkaError(ErrorCode.network_exception, str(error)) from error
        except Exception as fault:
            log.exception("a request to broker %d failed", broker_id)
            raise KafkaError(ErrorCode.unknown_server_error, str(fault)) from fault


def _code(number: int | None) -> ErrorCode:
    """Return an error code of a response, which has been decoded; unknown_server_error if it is missing."""
    return ErrorCode.unknown_server_error if number is None else ErrorCode(number)
