"""Transactions in one log: what is stable, what was aborted, which late or repeated requests change nothing."""

from __future__ import annotations

import pytest

from headwater.logtier.log.producers.producer_state import NO_OFFSET
from headwater.logtier.log.segments.transaction_index import AbortedTransaction
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import CONTROL, TRANSACTIONAL, Record, build_batch, decode_records, iterate_batches
from tests.unit.log.conftest import NOW_MS, LogFolder

TV1, TV2 = 1, 2


class Transactions:
    """Producers that write into a log as clients and their coordinator do."""

    def __init__(self, folder: LogFolder) -> None:
        self.folder = folder

    def write(
        self,
        producer_id: int,
        sequence: int,
        *,
        epoch: int = 0,
        count: int = 1,
        is_verified: bool = True,
        is_epoch_bumped: bool = False,
    ) -> int:
        """Append a batch of a transaction; return its first offset."""
        log = self.folder.log
        verification = None
        if is_verified:
            verification = log.producers.begin_verification(
                producer_id, epoch, sequence, NOW_MS, is_epoch_bumped=is_epoch_bumped
            )
        batch = build_batch(
            [Record(b"%d" % producer_id, b"%d" % (sequence + i), NOW_MS) for i in range(count)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, verification=verification).first_offset

    def end(
        self, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, version: int = TV1
    ) -> int | None:
        """Append a marker; return its offset, None if it was a repetition."""
        info = self.folder.log.append_end_txn_marker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            committed=commit,
            transaction_version=version,
            leader_epoch=0,
            now_ms=NOW_MS,
        )
        return None if info.duplicate else info.first_offset

    @property
    def stable(self) -> int:
        log = self.folder.log
        return log.last_stable_offset(log.log_end_offset)

    def aborted(self, start: int = 0, end: int | None = None) -> list[tuple[int, int, int]]:
        log = self.folder.log
        found = log.aborted_transactions(start, log.log_end_offset if end is None else end)
        return [(each.producer_id, each.first_offset, each.last_offset) for each in found]

    def committed(self) -> list[tuple[bytes | None, bytes | None]]:
        """What a read_committed consumer shows, found as it finds it."""
        log = self.folder.log
        found: list[tuple[bytes | None, bytes | None]] = []
        offset = log.log_start_offset
        while offset < self.stable:
            part = log.read(offset, 300, upper_bound_offset=self.stable, min_one_batch=True)
            aborted = sorted(
                log.aborted_transactions(offset, min(self.stable, log.end_of_slice(part))),
                key=lambda each: each.first_offset,
            )
            skipped: set[int] = set()
            for header, batch in iterate_batches(part.file.pread(part.size, part.position)):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    skipped.add(aborted.pop(0).producer_id)
                offset = header.last_offset + 1
                if header.is_control:
                    skipped.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in skipped):
                    found += [(record.key, record.value) for record in decode_records(batch)]
        return found


@pytest.fixture
def transactions(small_segments: LogFolder) -> Transactions:
    return Transactions(small_segments)


def code_of(refused: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return refused.value.code


def test_the_last_stable_offset_waits_for_the_first_open_transaction(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.write(2, 0, count=3)
    assert transactions.stable == 0
    transactions.end(2, commit=True)
    assert transactions.stable == 0
    transactions.end(1, commit=True)
    assert transactions.stable == transactions.folder.log.log_end_offset == 6


def test_a_transaction_is_unstable_until_its_marker_is_below_the_high_watermark(transactions: Transactions) -> None:
    transactions.write(1, 0)
    marker = transactions.end(1, commit=True)
    log = transactions.folder.log
    assert marker == 1
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2
    # Neither number ever goes back, so that what is settled is forgotten.
    assert log.last_stable_offset(2) == 2


def test_read_committed_shows_exactly_what_is_committed(transactions: Transactions) -> None:
    transactions.write(1, 0, count=2)
    transactions.write(2, 0)
    transactions.folder.append(build_batch([Record(b"plain", b"x", NOW_MS)]))
    transactions.write(1, 2)
    transactions.end(1, commit=False)
    transactions.write(1, 3)
    transactions.end(2, commit=True)
    transactions.end(1, commit=True)
    transactions.write(3, 0)
    assert transactions.committed() == [(b"2", b"0"), (b"plain", b"x"), (b"1", b"3")]
    assert transactions.aborted() == [(1, 0, 5)]


def test_aborted_transactions_are_found_across_segments_and_only_where_they_have_records(
    transactions: Transactions,
) -> None:
    for sequence in range(0, 60, 2):
        transactions.write(1, sequence)
        transactions.write(1, sequence + 1)
        transactions.end(1, commit=sequence % 4 == 0)
    assert transactions.folder.log.segment_count > 5
    everything = transactions.aborted()
    assert everything == [(1, first, first + 2) for first in range(3, 90, 6)]
    assert transactions.aborted(30, 40) == [(1, 33, 35), (1, 39, 41)]
    assert transactions.aborted(42, 45) == []
    assert transactions.aborted(41, 42) == [(1, 39, 41)]


def test_a_transaction_over_several_segments_is_found_from_its_first_one(transactions: Transactions) -> None:
    transactions.write(1, 0)
    while transactions.folder.log.segment_count < 4:
        transactions.folder.append(build_batch([Record(None, b"x" * 50, NOW_MS)]))
    marker = transactions.end(1, commit=False)
    assert transactions.aborted(0, 1) == [(1, 0, marker)]


def test_the_stable_offset_in_the_index_is_that_without_the_ended_transaction(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.write(2, 0)
    transactions.end(1, commit=False)
    transactions.end(2, commit=False)
    assert transactions.folder.log.aborted_transactions(0, 9) == [
        AbortedTransaction(1, 0, 2, 1),
        AbortedTransaction(2, 1, 3, 4),
    ]


def test_a_marker_without_records_is_appended_and_aborts_nothing(transactions: Transactions) -> None:
    assert transactions.end(1, commit=False) == 0
    assert (transactions.stable, transactions.aborted()) == (1, [])


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_brings_open_and_aborted_transactions_back(transactions: Transactions, clean: bool) -> None:
    for sequence in range(0, 20, 2):
        transactions.write(1, sequence)
        transactions.write(1, sequence + 1)
        transactions.end(1, commit=False, coordinator_epoch=3)
    transactions.write(2, 0, count=2)
    transactions.write(1, 20)
    before = transactions.aborted(), transactions.stable, transactions.committed()
    assert transactions.folder.log.segment_count > 2
    if clean:
        transactions.folder.reopen()
    else:
        transactions.folder.crash()
    assert (transactions.aborted(), transactions.stable, transactions.committed()) == before
    # The transaction goes on without a question, and the coordinator that ended the last one is known.
    transactions.write(2, 2, is_verified=False)
    with pytest.raises(KafkaError) as refused:
        transactions.end(1, commit=True, coordinator_epoch=2)
    assert code_of(refused) == ErrorCode.transaction_coordinator_fenced
    transactions.end(1, commit=True, coordinator_epoch=3)
    transactions.end(2, commit=True, coordinator_epoch=3)
    assert transactions.stable == transactions.folder.log.log_end_offset


def test_a_crash_after_the_recovery_point_keeps_the_indexes_before_it(transactions: Transactions) -> None:
    for sequence in range(40):
        transactions.write(1, sequence)
        transactions.end(1, commit=False)
    transactions.folder.log.flush()
    recovery_point = transactions.folder.log.durability.recovery_point
    transactions.write(1, 40)
    transactions.end(1, commit=False)
    before = transactions.aborted()
    transactions.folder.crash(recovery_point=recovery_point)
    assert transactions.aborted() == before


def test_a_damaged_transaction_index_is_built_anew(transactions: Transactions) -> None:
    for sequence in range(0, 40, 2):
        transactions.write(1, sequence)
        transactions.write(2, sequence)
        transactions.write(1, sequence + 1)
        transactions.write(2, sequence + 1)
        transactions.end(1, commit=False)
        transactions.end(2, commit=sequence % 8 == 0)
    before = transactions.aborted()
    transactions.folder.log.close()
    names = transactions.folder.names(".txnindex")
    assert len(names) > 3
    for name in (names[0], names[2], names[-1]):
        path = transactions.folder.path / name
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    transactions.folder.open(recovery_point=transactions.folder.log.log_end_offset)
    assert transactions.aborted() == before


def test_only_segments_with_aborted_transactions_have_an_index_of_them(transactions: Transactions) -> None:
    for sequence in range(20):
        transactions.write(1, sequence)
        transactions.end(1, commit=True)
    transactions.folder.reopen()
    assert transactions.folder.names(".txnindex") == []


def test_truncation_takes_transactions_back(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.end(1, commit=False)
    transactions.write(1, 1)
    marker = transactions.end(1, commit=False)
    assert marker == 3
    transactions.folder.log.truncate_to(marker)
    assert (transactions.aborted(), transactions.stable) == ([(1, 0, 1)], 2)
    transactions.write(1, 2, is_verified=False)
    transactions.end(1, commit=True)
    assert transactions.committed() == [(b"1", b"1"), (b"1", b"2")]
    transactions.folder.log.truncate_to(1)
    assert (transactions.aborted(), transactions.stable) == ([], 0)
    transactions.folder.reopen()
    assert (transactions.aborted(), transactions.stable) == ([], 0)


def test_deleted_segments_take_their_transaction_index_along(transactions: Transactions) -> None:
    for sequence in range(30):
        transactions.write(1, sequence)
        transactions.end(1, commit=False)
    log = transactions.folder.log
    log.roll(NOW_MS)
    log.delete_records_before(30, log.log_end_offset)
    log.delete_old_segments(NOW_MS, log.log_end_offset)
    log.remove_deleted_files(NOW_MS + 10**9)
    kept = {name.removesuffix(".log") for name in transactions.folder.names(".log")}
    assert {name.removesuffix(".txnindex") for name in transactions.folder.names(".txnindex")} <= kept
    assert [first for _, first, _ in transactions.aborted(30)] == list(range(30, 60, 2))


def test_the_last_stable_offset_is_never_before_the_logs_start(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.write(1, 1)
    transactions.folder.log.delete_records_before(1, transactions.folder.log.log_end_offset)
    assert transactions.stable == 1


# -- late, repeated and foreign requests


def test_a_late_produce_after_the_abort_marker_begins_no_transaction(transactions: Transactions) -> None:
    """KIP-890: it would hang for ever, since the coordinator believes that the transaction is over."""
    transactions.write(1, 0)
    transactions.end(1, commit=False)
    with pytest.raises(KafkaError) as refused:
        transactions.write(1, 1, is_verified=False)
    assert code_of(refused) == ErrorCode.invalid_txn_state
    assert transactions.stable == 2


def test_a_late_produce_after_the_abort_marker_with_the_next_epoch_is_fenced(transactions: Transactions) -> None:
    transactions.write(1, 0, is_epoch_bumped=True)
    transactions.end(1, commit=False, epoch=1, version=TV2)
    for is_verified in (True, False):
        with pytest.raises(KafkaError) as refused:
            transactions.write(1, 1, epoch=0, is_verified=is_verified)
        assert code_of(refused) == ErrorCode.invalid_producer_epoch


def test_a_marker_between_question_and_answer_makes_the_answer_worthless(transactions: Transactions) -> None:
    producers = transactions.folder.log.producers
    stale = producers.begin_verification(1, 0, 0, NOW_MS, is_epoch_bumped=False)
    transactions.end(1, commit=False)
    batch = build_batch(
        [Record(None, b"late", NOW_MS)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    producers.begin_verification(1, 0, 0, NOW_MS, is_epoch_bumped=False)
    with pytest.raises(KafkaError) as refused:
        transactions.folder.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, verification=stale)
    assert code_of(refused) == ErrorCode.invalid_txn_state


def test_a_delayed_end_of_one_transaction_does_not_end_the_next(transactions: Transactions) -> None:
    """KIP-890: with an epoch for each transaction, the marker that comes again bears the next one's epoch."""
    transactions.write(1, 0, is_epoch_bumped=True)
    assert transactions.end(1, commit=True, epoch=1, version=TV2) == 1
    assert transactions.end(1, commit=True, epoch=1, version=TV2) is None
    transactions.write(1, 0, epoch=1, is_epoch_bumped=True)
    with pytest.raises(KafkaError) as refused:
        transactions.end(1, commit=True, epoch=1, version=TV2)
    assert code_of(refused) == ErrorCode.invalid_producer_epoch
    assert transactions.stable == 2
    transactions.end(1, commit=False, epoch=2, version=TV2)
    assert transactions.committed() == [(b"1", b"0")]


def test_sequences_used_again_after_an_abort_are_no_duplicates_in_the_next_epoch(transactions: Transactions) -> None:
    """Sequence reuse after an abort.

    Without an epoch of its own a new transaction's batch would be taken for a retry of the aborted one's.
    """
    transactions.write(1, 0, count=2, is_epoch_bumped=True)
    transactions.end(1, commit=False, epoch=1, version=TV2)
    assert transactions.write(1, 0, epoch=1, count=2, is_epoch_bumped=True) == 3
    transactions.end(1, commit=True, epoch=2, version=TV2)
    assert len(transactions.committed()) == 2


def test_a_retry_in_a_transaction_returns_the_original_offset_even_after_its_end(transactions: Transactions) -> None:
    assert transactions.write(1, 0, count=2) == 0
    assert transactions.write(1, 0, count=2, is_verified=False) == 0
    transactions.end(1, commit=True)
    assert transactions.write(1, 0, count=2, is_verified=False) == 0
    assert transactions.folder.log.log_end_offset == 3


def test_a_marker_of_an_older_epoch_is_refused(transactions: Transactions) -> None:
    transactions.write(1, 0, epoch=4)
    for version in (TV1, TV2):
        with pytest.raises(KafkaError) as refused:
            transactions.end(1, commit=True, epoch=3, version=version)
        assert code_of(refused) == ErrorCode.invalid_producer_epoch


def test_a_marker_of_a_former_coordinator_is_refused(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.end(1, commit=True, coordinator_epoch=5)
    transactions.write(1, 1)
    with pytest.raises(KafkaError) as refused:
        transactions.end(1, commit=False, coordinator_epoch=4)
    assert code_of(refused) == ErrorCode.transaction_coordinator_fenced
    transactions.end(1, commit=True, coordinator_epoch=5)


def test_records_outside_of_the_open_transaction_are_refused(transactions: Transactions) -> None:
    transactions.write(1, 0)
    plain = build_batch([Record(None, b"x", NOW_MS)], producer_id=1, producer_epoch=0, base_sequence=1)
    with pytest.raises(KafkaError) as refused:
        transactions.folder.append(plain)
    assert code_of(refused) == ErrorCode.invalid_txn_state


def test_the_first_batch_of_a_transaction_comes_first_though_its_verification_failed(
    transactions: Transactions,
) -> None:
    """The second request's answer comes, the first one's is retried: appended now, the first would be lost."""
    producers = transactions.folder.log.producers
    producers.begin_verification(1, 0, 0, NOW_MS, is_epoch_bumped=False)
    with pytest.raises(KafkaError) as refused:
        transactions.write(1, 5)
    assert code_of(refused) == ErrorCode.out_of_order_sequence_number
    transactions.write(1, 0, count=5)
    transactions.write(1, 5)


def test_a_producer_with_an_epoch_a_transaction_begins_at_sequence_0(transactions: Transactions) -> None:
    with pytest.raises(KafkaError) as refused:
        transactions.write(1, 3, is_epoch_bumped=True)
    assert code_of(refused) == ErrorCode.out_of_order_sequence_number
    transactions.end(1, commit=False, epoch=1, version=TV2)
    with pytest.raises(KafkaError) as refused:
        transactions.write(1, 3, epoch=1, is_epoch_bumped=True)
    assert code_of(refused) == ErrorCode.out_of_order_sequence_number


def test_a_coordinators_own_batches_have_no_sequence(transactions: Transactions) -> None:
    log = transactions.folder.log
    batch = build_batch(
        [Record(b"group", b"offset", NOW_MS)], producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL
    )
    with pytest.raises(KafkaError) as refused:
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    assert code_of(refused) == ErrorCode.invalid_record
    with pytest.raises(KafkaError) as refused:
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, is_coordinator=True)
    assert code_of(refused) == ErrorCode.invalid_txn_state
    verification = log.producers.begin_verification(1, 0, -1, NOW_MS, is_epoch_bumped=False)
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, is_coordinator=True, verification=verification)
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, is_coordinator=True)
    assert transactions.stable == 0
    transactions.folder.crash()
    assert transactions.stable == 0
    transactions.end(1, commit=True)
    assert transactions.stable == 3


def test_a_client_cannot_write_markers(transactions: Transactions) -> None:
    batch = build_batch(
        [Record(b"\0\0\0\1", b"\0\0\0\0\0\0", NOW_MS)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL | CONTROL,
    )
    with pytest.raises(KafkaError) as refused:
        transactions.folder.append(batch)
    assert code_of(refused) == ErrorCode.invalid_record


def test_a_silent_producer_with_an_open_transaction_is_not_forgotten(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.write(2, 0)
    transactions.end(2, commit=True)
    producers = transactions.folder.log.producers
    assert producers.remove_expired(NOW_MS + 10_000, 5_000) == 1
    state = producers.get(1)
    assert state is not None
    assert (state.transaction_first_offset, producers.get(2)) == (0, None)
    transactions.end(1, commit=True)
    assert state.transaction_first_offset == NO_OFFSET
    assert producers.remove_expired(NOW_MS + 10_000, 5_000) == 1


def test_a_followers_markers_end_transactions_too(transactions: Transactions) -> None:
    transactions.write(1, 0)
    transactions.end(1, commit=False)
    transactions.write(1, 1)
    leader = transactions.folder
    copied = b"".join(leader.log.batches())
    follower = LogFolder(leader.path.with_name("flights-1"), leader.config)
    follower.log.append_as_follower(copied)
    copy = Transactions(follower)
    assert (copy.aborted(), copy.stable) == (transactions.aborted(), 2)


def test_log_append_time_stamps_markers(folder: LogFolder) -> None:
    folder.configure(message_timestamp_type="LogAppendTime")
    transactions = Transactions(folder)
    transactions.write(1, 0)
    transactions.end(1, commit=True)
    headers = [header for batch in folder.log.batches() for header, _ in iterate_batches(batch)]
    assert [header.is_log_append_time for header in headers] == [True, True]
