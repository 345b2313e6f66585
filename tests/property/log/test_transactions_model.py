"""A log with transactions against a list: read_committed shows exactly the committed records, whatever happens."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.segments.active_checkpoint import write_active_checkpoint
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch, decode_records, iterate_batches
from headwater.logtier.runtime.disk import RealDisk
from tests.example_counts import examples

NOW_MS = 1_000_000
CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=150, file_delete_delay_ms=0)
PRODUCERS = st.integers(1, 3)
#: The third producer's transactions have an epoch each (transaction.version 2), the others' share one.
VERSION_2_PRODUCER = 3


@dataclass(frozen=True)
class Entry:
    """A batch: a marker has no values, a batch without a producer no producer id."""

    offset: int
    values: tuple[bytes, ...]
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    is_commit: bool | None = None

    @property
    def end(self) -> int:
        return self.offset + (1 if self.is_commit is not None else len(self.values))


class TransactionsMachine(RuleBasedStateMachine):
    """The model is the list of batches and markers; everything else is derived from it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headwater-log-"))
        self.directory = self.root / "flights-0"
        self.directory.mkdir()
        self.model: list[Entry] = []
        self.counter = 0
        self.log = self.open(clean=True)

    def teardown(self) -> None:
        self.log.release()
        shutil.rmtree(self.root)

    def open(self, *, clean: bool, recovery_point: int = 0) -> Log:
        return open_log(
            RealDisk(),
            str(self.directory),
            TopicPartition("flights", 0),
            uuid.UUID(int=1),
            CONFIG,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=0,
            now_ms=NOW_MS,
        )

    # -- what follows from the model

    @property
    def end_offset(self) -> int:
        return self.model[-1].end if self.model else 0

    def history(self, producer_id: int) -> list[Entry]:
        return [entry for entry in self.model if entry.producer_id == producer_id]

    def open_from(self, producer_id: int) -> int | None:
        """Where the producer's open transaction begins."""
        first = None
        for entry in self.history(producer_id):
            if entry.is_commit is not None:
                first = None
            elif first is None:
                first = entry.offset
        return first

    def epoch(self, producer_id: int) -> int:
        history = self.history(producer_id)
        return history[-1].epoch if history else 0

    def next_sequence(self, producer_id: int) -> int:
        epoch = self.epoch(producer_id)
        data = [entry for entry in self.history(producer_id) if entry.values and entry.epoch == epoch]
        return data[-1].sequence + len(data[-1].values) if data else 0

    def stable_offset(self, end: int) -> int:
        """The last stable offset if the high watermark were `end`, the end of the log."""
        firsts = [first for producer in (1, 2, 3) if (first := self.open_from(producer)) is not None]
        return min([end, *firsts])

    def outcome(self, index: int) -> bool | None:
        """Whether the batch's transaction was committed, None while it is open."""
        entry = self.model[index]
        return next(
            (
                later.is_commit
                for later in self.model[index + 1 :]
                if later.producer_id == entry.producer_id and later.is_commit is not None
            ),
            None,
        )

    # -- what happens

    def values(self, count: int) -> tuple[bytes, ...]:
        self.counter += count
        return tuple(b"%d" % (self.counter - i) for i in range(count))

    def send(self, producer_id: int, epoch: int, sequence: int, values: tuple[bytes, ...], *, verify: bool) -> int:
        verification = None
        if verify:
            verification = self.log.producers.begin_verification(
                producer_id, epoch, sequence, NOW_MS, is_epoch_bumped=producer_id == VERSION_2_PRODUCER
            )
        batch = build_batch(
            [Record(None, value, NOW_MS) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, verification=verification).first_offset

    @rule(count=st.integers(1, 3))
    def append_without_transaction(self, count: int) -> None:
        values = self.values(count)
        batch = build_batch([Record(None, value, NOW_MS) for value in values])
        offset = self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS).first_offset
        assert offset == self.end_offset
        self.model.append(Entry(offset, values))

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3))
    def append(self, producer_id: int, count: int) -> None:
        values = self.values(count)
        epoch, sequence = self.epoch(producer_id), self.next_sequence(producer_id)
        is_first = self.open_from(producer_id) is None
        offset = self.send(producer_id, epoch, sequence, values, verify=is_first)
        assert offset == self.end_offset
        self.model.append(Entry(offset, values, producer_id, epoch, sequence))

    @rule(producer_id=PRODUCERS, back=st.integers(0, 3))
    def retry(self, producer_id: int, back: int) -> None:
        epoch = self.epoch(producer_id)
        sent = [entry for entry in self.history(producer_id) if entry.values and entry.epoch == epoch]
        if back < len(sent):
            entry = sent[-1 - back]
            assert self.send(producer_id, epoch, entry.sequence, entry.values, verify=False) == entry.offset
            assert self.log.log_end_offset == self.end_offset

    @rule(producer_id=PRODUCERS)
    def come_late(self, producer_id: int) -> None:
        """New records of a transaction that is over, or never was."""
        if self.open_from(producer_id) is None:
            self.refused(producer_id, self.epoch(producer_id), ErrorCode.invalid_txn_state)
        if self.epoch(producer_id):
            self.refused(producer_id, self.epoch(producer_id) - 1, ErrorCode.invalid_producer_epoch)

    def refused(self, producer_id: int, epoch: int, code: ErrorCode) -> None:
        try:
            self.send(producer_id, epoch, 1_000, (b"late",), verify=False)
        except KafkaError as error:
            assert error.code == code
        else:
            raise AssertionError("a record outside of any transaction was accepted")

    @rule(producer_id=PRODUCERS, commit=st.booleans(), is_repeated=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool, is_repeated: bool) -> None:
        is_version_2 = producer_id == VERSION_2_PRODUCER
        epoch = self.epoch(producer_id) + (1 if is_version_2 else 0)
        for _ in range(2 if is_repeated else 1):
            info = self.log.append_end_txn_marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=0,
                committed=commit,
                transaction_version=2 if is_version_2 else 1,
                leader_epoch=0,
                now_ms=NOW_MS,
            )
            if not info.duplicate:
                assert info.first_offset == self.end_offset
                self.model.append(Entry(info.first_offset, (), producer_id, epoch, is_commit=commit))

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end_offset))
        self.log.truncate_to(offset)
        self.model = [entry for entry in self.model if entry.end <= offset]

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open(clean=True, recovery_point=self.end_offset)

    @rule(is_flushed=st.booleans())
    def kill(self, is_flushed: bool) -> None:
        if is_flushed:
            self.log.flush()
        recovery_point = self.log.durability.recovery_point
        self.log.release()
        self.log = self.open(clean=False, recovery_point=recovery_point)

    @rule()
    def checkpoint(self) -> None:
        """A start after a crash goes on from here, if the batches are on the device."""
        self.log.flush()
        known = self.log.active_checkpoint(0)
        if known is not None:
            write_active_checkpoint(RealDisk(), str(self.directory), known)

    @rule()
    def lose_snapshots(self) -> None:
        """They save time, nothing else."""
        self.log.close()
        for path in self.directory.glob("*.snapshot"):
            path.unlink()
        self.log = self.open(clean=True, recovery_point=self.end_offset)

    # -- what holds

    @invariant()
    def the_last_stable_offset_is_the_first_open_record(self) -> None:
        assert self.log.log_end_offset == self.end_offset
        assert self.log.last_stable_offset(self.end_offset) == self.stable_offset(self.end_offset)

    @invariant()
    def read_committed_shows_exactly_what_is_committed(self) -> None:
        stable = self.stable_offset(self.end_offset)
        expected = [
            value
            for i, entry in enumerate(self.model)
            if entry.offset < stable and (entry.producer_id < 0 or self.outcome(i))
            for value in entry.values
        ]
        found: list[bytes | None] = []
        offset = 0
        while offset < stable:
            part = self.log.read(offset, 250, upper_bound_offset=stable, min_one_batch=True)
            bound = min(stable, self.log.end_of_slice(part))
            aborted = sorted(self.log.aborted_transactions(offset, bound), key=lambda each: each.first_offset)
            skipped: set[int] = set()
            for header, batch in iterate_batches(part.file.pread(part.size, part.position)):
                offset = header.last_offset + 1
                assert offset <= bound
                while aborted and aborted[0].first_offset <= header.last_offset:
                    skipped.add(aborted.pop(0).producer_id)
                if header.is_control:
                    skipped.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in skipped):
                    found += [record.value for record in decode_records(batch)]
        assert found == expected

    @invariant()
    def the_index_has_each_aborted_transaction_once(self) -> None:
        first: dict[int, int] = {}
        expected = []
        for entry in self.model:
            if entry.is_commit is None and entry.producer_id >= 0:
                first.setdefault(entry.producer_id, entry.offset)
            elif entry.is_commit is not None:
                begun = first.pop(entry.producer_id, None)
                if begun is not None and not entry.is_commit:
                    expected.append((entry.producer_id, begun, entry.offset))
        assert [tuple(each[:3]) for each in self.log.aborted_transactions(0, self.end_offset)] == expected


TestTransactions = TransactionsMachine.TestCase
# Every step touches files: shrinking a failure would take minutes, and the steps are readable as they are.
TestTransactions.settings = settings(
    max_examples=examples(15), stateful_step_count=30, deadline=None, phases=[Phase.reuse, Phase.generate]
)
