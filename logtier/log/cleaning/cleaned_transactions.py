"""Transactions as the cleaner walks over them: which records never count, which markers have outlived theirs. Pure."""

import heapq
from collections.abc import Iterable

from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.records.batch import CONTROL_ABORT, CONTROL_COMMIT


class CleanedTransactions:
    """Follows the transactional and control batches of a log in their order.

    Invariants: no record of an aborted transaction is kept; a marker is discardable only when no batch of its
    transaction was seen before it, so that it never goes before its data (KAFKA-8351); an aborted transaction whose
    marker must stay is kept for the cleaned segment's transaction index.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: every aborted transaction with records in the range that will be walked over."""
        self._waiting = [(transaction.first_offset, transaction) for transaction in aborted]
        heapq.heapify(self._waiting)
        #: By producer: the aborted transaction, and whether a batch of it was seen.
        self._open_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._open_committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def on_data(self, producer_id: int, last_offset: int) -> bool:
        """Take in a transactional batch of records; tell whether its transaction was aborted."""
        self._begin_up_to(last_offset)
        found = self._open_aborted.get(producer_id)
        if found is None:
            self._open_committed.add(producer_id)
            return False
        self._open_aborted[producer_id] = (found[0], True)
        return True

    def on_control(self, producer_id: int, offset: int, control_type: int | None) -> bool:
        """Take in a control batch; tell whether it says nothing of any record that is still there.

        A type of None is that of an emptied batch, which only keeps its producer's epoch.
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
        """Aborted transactions whose marker stays, since the last call: the index of the segment just written."""
        kept, self._kept = self._kept, []
        return kept

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            transaction = heapq.heappop(self._waiting)[1]
            self._open_aborted.setdefault(transaction.producer_id, (transaction, False))
