"""A producer's reaction to each error code in a transaction (KIP-98, KIP-360, KIP-588, KIP-890). Pure."""

from __future__ import annotations

import enum
from typing import Final

from headwater.logtier.client.errors import (
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCER_FENCED,
    is_retriable,
)

__all__ = ["CONCURRENT_TRANSACTIONS", "OPERATION_NOT_ATTEMPTED", "Reaction", "first_failure", "reaction"]

COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
OPERATION_NOT_ATTEMPTED: Final = 55
UNKNOWN_PRODUCER_ID: Final = 59
TRANSACTION_ABORTABLE: Final = 120

_ABORT: Final = frozenset({
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    # The coordinator has aborted the transaction after its timeout, or a newer producer has begun. The response to
    # InitProducerId with the present id and epoch distinguishes the two (KIP-360).
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    INVALID_PRODUCER_ID_MAPPING,
    UNKNOWN_PRODUCER_ID,
    TRANSACTION_ABORTABLE,
})  # fmt: skip


class Reaction(enum.Enum):
    """Reaction to a response."""

    GO_ON = "go on"
    #: The coordinator still ends the previous transaction: repeat the request soon.
    WAIT = "wait"
    RETRY = "retry"
    FIND_COORDINATOR = "find coordinator"
    #: Abort the transaction, get a new epoch, begin another transaction.
    ABORT = "abort"
    #: A newer producer of this transactional id has begun: this one ends.
    FENCED = "fenced"
    FATAL = "fatal"


def reaction(code: int, *, initialising: bool = False) -> Reaction:
    """Returns the reaction to an error code; `initialising`: the code is from InitProducerId.

    >>> reaction(0), reaction(51), reaction(16), reaction(47), reaction(90), reaction(53)
    ... # doctest: +NORMALIZE_WHITESPACE
    (<Reaction.GO_ON: 'go on'>, <Reaction.WAIT: 'wait'>, <Reaction.FIND_COORDINATOR: 'find coordinator'>,
     <Reaction.ABORT: 'abort'>, <Reaction.FENCED: 'fenced'>, <Reaction.FATAL: 'fatal'>)
    >>> reaction(47, initialising=True)
    <Reaction.FENCED: 'fenced'>
    """
    if code == 0:
        return Reaction.GO_ON
    if code == CONCURRENT_TRANSACTIONS:
        return Reaction.WAIT
    if code in (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR):
        return Reaction.FIND_COORDINATOR
    if code == PRODUCER_FENCED or (initialising and code == INVALID_PRODUCER_EPOCH):
        return Reaction.FENCED
    if code in _ABORT:
        return Reaction.FATAL if initialising else Reaction.ABORT
    return Reaction.RETRY if is_retriable(code) else Reaction.FATAL


def first_failure(codes: list[int]) -> int:
    """Returns the decisive code of a request for several partitions, not OPERATION_NOT_ATTEMPTED of the skipped ones.

    >>> first_failure([0, 55, 3, 55]), first_failure([0, 0]), first_failure([])
    (3, 0, 0)
    """
    failures = [code for code in codes if code]
    return next((code for code in failures if code != OPERATION_NOT_ATTEMPTED), failures[0] if failures else 0)
