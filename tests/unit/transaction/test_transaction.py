"""Every transition of a transactional id, and what is refused in every state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import (
    PRODUCER_EPOCH_MAX,
    TRANSACTION_VERSION_CLASSIC,
    TRANSACTION_VERSION_WITH_EPOCH_BUMPS,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from headwater.logtier.transaction.transaction import ProducerIdNeededError, Transaction

ID = 7
NOW_MS = 1_000_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
V1, V2 = TRANSACTION_VERSION_CLASSIC, TRANSACTION_VERSION_WITH_EPOCH_BUMPS
PRODUCER = ProducerIdAndEpoch(ID, 4)
AFTER = ProducerIdAndEpoch(ID, 5)

METADATA = TransactionMetadata(ID, 4, timeout_ms=60_000, last_update_ms=NOW_MS - 10)
OPEN = replace(METADATA, state=TransactionState.ONGOING, partitions=frozenset({P0}), start_ms=NOW_MS - 10)


def in_state(state: TransactionState, **changes: object) -> Transaction:
    base = OPEN if state in (TransactionState.ONGOING, *PREPARED) else METADATA
    return Transaction("payments", replace(base, state=state, **changes))  # type: ignore[arg-type]


PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
IDLE = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
COMPLETE = IDLE[1:]


def refusal(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=f"^{code.name}")


# ---- InitProducerId ----


def test_the_first_producer_gets_epoch_0() -> None:
    transaction = Transaction("payments", TransactionMetadata(ID))
    begun = transaction.init_producer(None, 5_000, NOW_MS)
    assert begun is not None
    assert begun.producer == ProducerIdAndEpoch(ID, 0)
    transaction.complete()
    assert transaction.metadata.state is TransactionState.EMPTY
    assert transaction.metadata.timeout_ms == 5_000


@pytest.mark.parametrize("state", IDLE)
def test_a_new_producer_fences_the_one_before(state: TransactionState) -> None:
    transaction = in_state(state)
    begun = transaction.init_producer(None, 60_000, NOW_MS)
    assert begun is not None
    transaction.complete()
    assert begun.producer == AFTER
    with refusal(ErrorCode.producer_fenced):
        transaction.add_partitions(PRODUCER, {P0}, NOW_MS, client_version=V1)


@pytest.mark.parametrize("state", PREPARED)
def test_a_producer_waits_for_the_markers_of_the_transaction_before(state: TransactionState) -> None:
    with refusal(ErrorCode.concurrent_transactions):
        in_state(state).init_producer(None, 60_000, NOW_MS)


def test_an_open_transaction_has_to_be_aborted_first() -> None:
    transaction = in_state(TransactionState.ONGOING)
    assert transaction.init_producer(None, 60_000, NOW_MS) is None
    outcome = transaction.fence(NOW_MS)
    assert outcome.state is TransactionState.PREPARE_ABORT
    assert outcome.producer == AFTER
    assert outcome.partitions == {P0}


def test_a_producer_that_names_itself_goes_on_with_the_next_epoch() -> None:
    transaction = in_state(TransactionState.COMPLETE_ABORT)
    begun = transaction.init_producer(PRODUCER, 60_000, NOW_MS)
    assert begun is not None
    assert (begun.producer, begun.last_producer_epoch) == (AFTER, 4)


def test_a_repeated_request_to_go_on_gets_the_same_epoch_again() -> None:
    transaction = in_state(TransactionState.EMPTY)
    for _ in range(2):
        begun = transaction.init_producer(PRODUCER, 60_000, NOW_MS)
        transaction.complete()
        assert begun is not None
        assert begun.producer == AFTER


def test_a_producer_that_was_replaced_cannot_go_on() -> None:
    transaction = in_state(TransactionState.EMPTY)
    transaction.init_producer(None, 60_000, NOW_MS)
    transaction.complete()
    with refusal(ErrorCode.producer_fenced):
        transaction.init_producer(PRODUCER, 60_000, NOW_MS)


def test_a_producer_with_another_id_is_fenced() -> None:
    with refusal(ErrorCode.producer_fenced):
        in_state(TransactionState.EMPTY).init_producer(ProducerIdAndEpoch(ID + 1, 4), 60_000, NOW_MS)


def test_a_producer_that_was_fenced_by_the_time_out_goes_on_with_the_epoch_of_the_abort() -> None:
    transaction = in_state(TransactionState.ONGOING)
    transaction.fence(NOW_MS)
    transaction.complete()
    transaction.finish(NOW_MS)
    transaction.complete()
    begun = transaction.init_producer(PRODUCER, 60_000, NOW_MS)
    assert begun is not None
    assert begun.producer == AFTER


@pytest.mark.parametrize("expected_epoch", [None, PRODUCER_EPOCH_MAX - 1])
def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(expected_epoch: int | None) -> None:
    transaction = in_state(TransactionState.EMPTY, producer_epoch=PRODUCER_EPOCH_MAX - 1)
    expected = None if expected_epoch is None else ProducerIdAndEpoch(ID, expected_epoch)
    with pytest.raises(ProducerIdNeededError):
        transaction.init_producer(expected, 60_000, NOW_MS)
    begun = transaction.init_producer(expected, 60_000, NOW_MS, new_producer_id=99)
    transaction.complete()
    assert begun is not None
    assert (begun.producer, begun.previous_producer_id) == (ProducerIdAndEpoch(99, 0), ID)
    if expected is not None:
        again = transaction.init_producer(expected, 60_000, NOW_MS)
        assert again is not None
        assert again.producer == begun.producer


def test_the_last_epoch_is_never_given_to_a_producer() -> None:
    transaction = in_state(TransactionState.ONGOING, producer_epoch=PRODUCER_EPOCH_MAX - 1)
    transaction.fence(NOW_MS)
    transaction.complete()
    assert transaction.metadata.producer_epoch == PRODUCER_EPOCH_MAX
    transaction.finish(NOW_MS)
    transaction.complete()
    for expected in (None, ProducerIdAndEpoch(ID, PRODUCER_EPOCH_MAX - 1)):
        with pytest.raises(ProducerIdNeededError):
            transaction.init_producer(expected, 60_000, NOW_MS)


# ---- adding partitions ----


@pytest.mark.parametrize("state", IDLE)
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    transaction = in_state(state)
    added = transaction.add_partitions(PRODUCER, {P0}, NOW_MS, client_version=V2)
    assert added is not None
    assert (added.state, added.start_ms, added.partitions) == (TransactionState.ONGOING, NOW_MS, frozenset({P0}))
    assert added.client_version == V2


def test_more_partitions_keep_the_beginning() -> None:
    transaction = in_state(TransactionState.ONGOING)
    added = transaction.add_partitions(PRODUCER, {P1}, NOW_MS, client_version=V1)
    assert added is not None
    assert (added.start_ms, added.partitions) == (NOW_MS - 10, frozenset({P0, P1}))


def test_a_partition_that_is_in_is_not_written_again() -> None:
    assert in_state(TransactionState.ONGOING).add_partitions(PRODUCER, {P0}, NOW_MS, client_version=V1) is None


@pytest.mark.parametrize("state", PREPARED)
def test_nothing_is_added_while_the_markers_are_written(state: TransactionState) -> None:
    with refusal(ErrorCode.concurrent_transactions):
        in_state(state).add_partitions(PRODUCER, {P1}, NOW_MS, client_version=V1)


def test_nothing_is_added_while_another_write_is_under_way() -> None:
    transaction = in_state(TransactionState.ONGOING)
    transaction.add_partitions(PRODUCER, {P1}, NOW_MS, client_version=V1)
    with refusal(ErrorCode.concurrent_transactions):
        transaction.add_partitions(PRODUCER, {P1}, NOW_MS, client_version=V1)
    transaction.cancel()
    assert transaction.metadata == OPEN


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (ProducerIdAndEpoch(ID + 1, 4), ErrorCode.invalid_producer_id_mapping),
        (ProducerIdAndEpoch(ID, 3), ErrorCode.producer_fenced),
        (ProducerIdAndEpoch(ID, 5), ErrorCode.producer_fenced),
    ],
)
def test_only_the_present_producer_adds_and_verifies(producer: ProducerIdAndEpoch, code: ErrorCode) -> None:
    transaction = in_state(TransactionState.ONGOING)
    with refusal(code):
        transaction.add_partitions(producer, {P1}, NOW_MS, client_version=V1)
    with refusal(code):
        transaction.verify(producer, {P0})


def test_verification_names_what_was_not_added() -> None:
    assert in_state(TransactionState.ONGOING).verify(PRODUCER, {P0, P1}) == {P1}
    assert in_state(TransactionState.COMPLETE_COMMIT).verify(PRODUCER, {P0}) == {P0}


# ---- EndTxn, transaction.version 0 and 1 ----


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_keeps_the_epoch_before_version_2(commit: bool) -> None:
    transaction = in_state(TransactionState.ONGOING)
    outcome = transaction.end(PRODUCER, NOW_MS, commit=commit, client_version=V1)
    assert outcome is not None
    assert outcome.state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
    assert (outcome.producer, outcome.partitions) == (PRODUCER, frozenset({P0}))
    transaction.complete()
    finished = transaction.finish(NOW_MS + 1)
    assert finished.state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
    assert (finished.producer, finished.partitions) == (PRODUCER, frozenset())


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", list(TransactionState)[:6])
def test_what_ends_in_each_state_before_version_2(state: TransactionState, commit: bool) -> None:
    transaction = in_state(state)
    expected: dict[tuple[TransactionState, bool], ErrorCode | None] = {
        (TransactionState.EMPTY, True): ErrorCode.invalid_txn_state,
        (TransactionState.EMPTY, False): ErrorCode.invalid_txn_state,
        (TransactionState.ONGOING, True): None,
        (TransactionState.ONGOING, False): None,
        (TransactionState.PREPARE_COMMIT, True): ErrorCode.concurrent_transactions,
        (TransactionState.PREPARE_COMMIT, False): ErrorCode.invalid_txn_state,
        (TransactionState.PREPARE_ABORT, True): ErrorCode.invalid_txn_state,
        (TransactionState.PREPARE_ABORT, False): ErrorCode.concurrent_transactions,
        (TransactionState.COMPLETE_COMMIT, True): None,
        (TransactionState.COMPLETE_COMMIT, False): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, True): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, False): None,
    }
    code = expected[state, commit]
    if code is not None:
        with refusal(code):
            transaction.end(PRODUCER, NOW_MS, commit=commit, client_version=V1)
    else:
        outcome = transaction.end(PRODUCER, NOW_MS, commit=commit, client_version=V1)
        assert (outcome is None) == (state in COMPLETE)


@pytest.mark.parametrize("epoch", [3, 5])
@pytest.mark.parametrize("version", [V1, V2])
def test_a_producer_of_another_epoch_cannot_end(epoch: int, version: int) -> None:
    with refusal(ErrorCode.producer_fenced):
        in_state(TransactionState.ONGOING).end(
            ProducerIdAndEpoch(ID, epoch), NOW_MS, commit=True, client_version=version
        )


# ---- EndTxn, transaction.version 2: the table of KIP-890 ----

_PF, _ITS, _CT = ErrorCode.producer_fenced, ErrorCode.invalid_txn_state, ErrorCode.concurrent_transactions
_DONE, _BUMP = "nothing to do", "an epoch of its own"


@pytest.mark.parametrize(
    ("state", "commit", "is_retry", "expected"),
    [
        (TransactionState.EMPTY, False, True, _PF),
        (TransactionState.EMPTY, False, False, _BUMP),
        (TransactionState.EMPTY, True, True, _PF),
        (TransactionState.EMPTY, True, False, _ITS),
        (TransactionState.ONGOING, True, True, _PF),
        (TransactionState.ONGOING, True, False, _BUMP),
        (TransactionState.ONGOING, False, False, _BUMP),
        (TransactionState.PREPARE_COMMIT, True, True, _CT),
        (TransactionState.PREPARE_COMMIT, False, True, _ITS),
        (TransactionState.PREPARE_COMMIT, True, False, _PF),
        (TransactionState.PREPARE_ABORT, False, True, _CT),
        (TransactionState.PREPARE_ABORT, True, True, _ITS),
        (TransactionState.PREPARE_ABORT, False, False, _PF),
        (TransactionState.COMPLETE_ABORT, False, True, _DONE),
        (TransactionState.COMPLETE_ABORT, False, False, _BUMP),
        (TransactionState.COMPLETE_ABORT, True, True, _ITS),
        (TransactionState.COMPLETE_ABORT, True, False, _ITS),
        (TransactionState.COMPLETE_COMMIT, False, True, _ITS),
        (TransactionState.COMPLETE_COMMIT, False, False, _BUMP),
        (TransactionState.COMPLETE_COMMIT, True, True, _DONE),
        (TransactionState.COMPLETE_COMMIT, True, False, _ITS),
    ],
)
def test_what_ends_in_each_state_in_version_2(
    state: TransactionState, commit: bool, is_retry: bool, expected: object
) -> None:
    transaction = in_state(state, client_version=V2)
    producer = ProducerIdAndEpoch(ID, 3) if is_retry else PRODUCER
    if isinstance(expected, ErrorCode):
        with refusal(expected):
            transaction.end(producer, NOW_MS, commit=commit, client_version=V2)
        return
    outcome = transaction.end(producer, NOW_MS, commit=commit, client_version=V2)
    if expected is _DONE:
        assert outcome is None
    else:
        assert outcome is not None
        assert outcome.producer == AFTER
        assert outcome.last_producer_epoch == 4
        assert outcome.partitions == (frozenset({P0}) if state is TransactionState.ONGOING else frozenset())
        assert outcome.start_ms == (NOW_MS - 10 if state is TransactionState.ONGOING else NOW_MS)


def test_a_delayed_end_cannot_hit_the_next_transaction() -> None:
    """KIP-890: the epoch of each transaction is its own."""
    transaction = in_state(TransactionState.ONGOING)
    transaction.end(PRODUCER, NOW_MS, commit=True, client_version=V2)
    transaction.complete()
    transaction.finish(NOW_MS)
    transaction.complete()
    transaction.add_partitions(AFTER, {P1}, NOW_MS, client_version=V2)
    transaction.complete()
    with refusal(ErrorCode.producer_fenced):
        transaction.end(PRODUCER, NOW_MS, commit=False, client_version=V2)


def test_the_last_transaction_under_an_id_goes_on_under_a_new_one() -> None:
    last = ProducerIdAndEpoch(ID, PRODUCER_EPOCH_MAX - 1)
    transaction = in_state(TransactionState.ONGOING, producer_epoch=last.epoch)
    with pytest.raises(ProducerIdNeededError):
        transaction.end(last, NOW_MS, commit=True, client_version=V2)
    outcome = transaction.end(last, NOW_MS, commit=True, client_version=V2, new_producer_id=99)
    transaction.complete()
    assert outcome is not None
    # The markers still end the old id's transaction, above everything that it has written.
    assert (outcome.producer, outcome.next_producer_id) == (ProducerIdAndEpoch(ID, PRODUCER_EPOCH_MAX), 99)
    transaction.finish(NOW_MS)
    transaction.complete()
    assert transaction.metadata.producer == ProducerIdAndEpoch(99, 0)
    assert transaction.end(last, NOW_MS, commit=True, client_version=V2) is None


# ---- time ----


def test_a_transaction_times_out_after_its_own_timeout() -> None:
    assert not OPEN.is_timed_out(OPEN.start_ms + 60_000)
    assert OPEN.is_timed_out(OPEN.start_ms + 60_001)
    assert not replace(OPEN, state=TransactionState.PREPARE_COMMIT).is_timed_out(OPEN.start_ms + 60_001)


@pytest.mark.parametrize("state", list(TransactionState)[:6])
def test_an_id_expires_only_without_a_transaction(state: TransactionState) -> None:
    metadata = replace(METADATA, state=state)
    assert metadata.is_expired(NOW_MS, 10) == (state in IDLE)
    assert not metadata.is_expired(NOW_MS, 11)


def test_nothing_begins_while_an_id_is_removed() -> None:
    transaction = in_state(TransactionState.EMPTY)
    transaction.expire()
    assert transaction.is_expiring
    with refusal(ErrorCode.concurrent_transactions):
        transaction.init_producer(None, 60_000, NOW_MS)


@pytest.mark.parametrize("state", [TransactionState.ONGOING, *PREPARED])
def test_an_id_with_a_transaction_cannot_be_removed(state: TransactionState) -> None:
    with pytest.raises(AssertionError):
        in_state(state).expire()
