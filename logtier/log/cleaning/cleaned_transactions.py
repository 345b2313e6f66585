"""Transactions during a cleaning: records to discard, and markers without remaining records. Pure."""

import heapq
from collections.abc import Iterable

from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.records.batch import CONTROL_ABORT, CONTROL_COMMIT


class CleanedTransactions:
    """Follows the transactional and control batches of a log in their order.

    Invariants: no record of an aborted transaction is kept; a marker may be discarded only if no batch of its
    transaction came before it, so that it is never removed before its records (KAFKA-8351); an aborted transaction
    whose marker stays is kept for the transaction index of the cleaned segment.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` has every aborted transaction with records in the range to be cleaned."""
        self._waiting = [(transaction.first_offset, transaction) for transaction in aborted]
        heapq.heapify(self._waiting)
        #: By producer: the aborted transaction, and whether a batch of it has come.
        self._open_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._open_committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def on_data(self, producer_id: int, last_offset: int) -> bool:
        """Process a transactional batch of records; return whether its transaction was aborted."""
        self._begin_up_to(last_offset)
        found = self._open_aborted.get(producer_id)
        if found is None:
            self._open_committed.add(producer_id)
            return False
        self._open_aborted[producer_id] = (found[0], True)
        return True

    def on_control(self, producer_id: int, offset: int, control_type: int | None) -> bool:
        """Process a control batch; return whether it concerns no remaining record.

        `control_type` is None for an emptied batch, which only preserves its producer's epoch.
        """
        self._begin_up_to(offset)
        if control_type == CONTROL_ABORT:
            found = self._open_aborted.pop(producer_id, None)
            if found is not None and found[1]:
                self._kept.append(found[0])
                return False
            return True
        if control_type == CONTROL_COMMIT:
            if producer_id in self._open_committed:
                self._open_committed.remove(producer_id)
                return False
            return True
        return control_type is None

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the aborted transactions since the last call whose marker stays, for the written segment's index."""
        kept, self._kept = self._kept, []
        return kept

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            transaction = heapq.heappop(self._waiting)[1]
            self._open_aborted.setdefault(transaction.producer_id, (transaction, False))
