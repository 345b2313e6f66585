"""The cleaner against a dictionary: whatever is written, cleaned, crashed and reopened, the last of each key stays."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.cleaning.cleaner import LogCleaner
from headwater.logtier.log.cleaning.cleaner_job import CleanerJob, CleanerReport, report_from_line, report_to_line
from headwater.logtier.log.cleaning.cleaner_rewrite import LogCleaning
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    TRANSACTIONAL,
    Record,
    build_batch,
    check_batch,
    decode_end_transaction_marker,
    decode_records,
)
from headwater.logtier.runtime.disk import Buffer, DirectoryEntry, File, RealDisk, RealFile
from tests.example_counts import examples
from tests.manual_clock import ManualClock

TP = TopicPartition("flights", 0)
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=500,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=100,
    file_delete_delay_ms=0,
)
BROKER = BrokerConfig.from_properties({})
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"a key that takes more than one word"]
# As many as the largest batch has, but fewer than there are: cleanings end in the middle of a log.
SMALL_MAP_KEYS = 6
IDEMPOTENT = 1
TRANSACTIONAL_IDS = (10, 11)


class Crash(BaseException):
    """The process ends here."""


class CrashingDisk(RealDisk):
    """Ends the process before one of the operations that change something, and for good."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Crash
            self.left -= 1

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self.step()
        return CrashingFile(self, path, create)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.step()
        super().write_atomic(path, data, sync=False)

    def rename(self, path: str, new_path: str) -> None:
        self.step()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)

    def fsync_directory(self, path: str) -> None:
        pass

    def in_background(self, work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        work()
        done.set_result(None)
        return done

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Future[None]:
        return self.in_background(lambda: None)

    def listdir(self, path: str) -> list[DirectoryEntry]:
        self.step()
        return super().listdir(path)


class CrashingFile(RealFile):
    def __init__(self, disk: CrashingDisk, path: str, create: bool) -> None:
        super().__init__(path, 0o102 if create else 2)
        self.disk = disk

    def append(self, buffers: Sequence[Buffer]) -> int:
        self.disk.step()
        return super().append(buffers)

    def truncate(self, size: int) -> None:
        self.disk.step()
        super().truncate(size)

    def fsync(self) -> None:
        pass


class InProcess:
    """The cleaner's work without its process; jobs and reports take the way over the wire all the same."""

    def __init__(self, disk: RealDisk, keys_max: int | None) -> None:
        self.disk = disk
        self.keys_max = keys_max

    async def clean(self, job: CleanerJob) -> AsyncIterator[CleanerReport]:
        if self.keys_max is not None:
            job = dataclasses.replace(job, dedupe_buffer_bytes=0, load_factor=(self.keys_max + 0.5) / 1024)
        cleaning = LogCleaning(CleanerJob.from_line(job.to_line()), self.disk, lambda size: None)
        for group in cleaning.run():
            yield report_from_line(report_to_line(group))
        yield report_from_line(report_to_line(cleaning.result()))

    async def stop(self) -> None:
        pass


class CleanerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headwater-cleaner-"))
        (self.root / "flights-0").mkdir()
        self.disk = CrashingDisk()
        self.clock = ManualClock(1_000)
        #: Every record whose fate is known or does not depend on a transaction: offset to (key, value).
        self.settled: dict[int, tuple[bytes, bytes | None]] = {}
        self.open: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}
        self.aborted: set[int] = set()
        self.epochs = dict.fromkeys((IDEMPOTENT, *TRANSACTIONAL_IDS), 0)
        self.sequences = dict.fromkeys((IDEMPOTENT, *TRANSACTIONAL_IDS), 0)
        self.counter = 0
        self.keys_max: int | None = None
        self.reopen()

    def teardown(self) -> None:
        self.log.release()
        shutil.rmtree(self.root)

    def reopen(self, *, recovery_point: int = 0) -> None:
        self.disk.left = None
        self.log = self.open_log(self.root / "flights-0", recovery_point)
        logs = {TP: self.log}
        self.cleaner = LogCleaner(
            lambda: BROKER,
            self.disk,
            self.clock,
            logs,
            lambda _: self.log.last_stable_offset(self.log.log_end_offset),
            new_worker=lambda: InProcess(self.disk, self.keys_max),
        )
        self.cleaner.load_checkpoints()

    def open_log(self, path: Path, recovery_point: int = 0) -> Log:
        return open_log(
            self.disk,
            str(path),
            TP,
            uuid.UUID(int=1),
            CONFIG,
            was_stopped_cleanly=False,
            recovery_point=recovery_point,
            log_start_offset=0,
            now_ms=self.clock.ms,
        )

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        tombstones=st.sets(st.integers(0, 5)),
        codec=st.sampled_from([0, 0, 1, 3, 4]),
        writer=st.sampled_from([-1, IDEMPOTENT, *TRANSACTIONAL_IDS]),
        span_ms=st.sampled_from([1, 300]),
    )
    def write(self, keys: list[bytes], tombstones: set[int], codec: int, writer: int, span_ms: int) -> None:
        records = []
        for i, key in enumerate(keys):
            self.counter += 1
            value = None if i in tombstones else b"%d" % self.counter + b"." * (self.counter % 40)
            headers = (("header", b"x"),) if self.counter % 3 == 0 else ()
            records.append(Record(key, value, self.clock.ms + i * span_ms, headers))
        is_transactional = writer in TRANSACTIONAL_IDS
        batch = build_batch(
            records,
            codec=codec,
            producer_id=writer,
            producer_epoch=self.epochs.get(writer, -1),
            base_sequence=self.sequences.get(writer, -1),
            attributes=TRANSACTIONAL if is_transactional else 0,
        )
        verification = None
        if is_transactional:
            verification = self.log.producers.begin_verification(
                writer, self.epochs[writer], self.sequences[writer], self.clock.ms, is_epoch_bumped=False
            )
        info = self.log.append_as_leader(batch, leader_epoch=0, now_ms=self.clock.ms, verification=verification)
        if writer >= 0:
            self.sequences[writer] += len(records)
        into = self.open.setdefault(writer, {}) if is_transactional else self.settled
        for i, record in enumerate(records):
            assert record.key is not None
            into[info.first_offset + i] = (record.key, record.value)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end_transaction(self, data: st.DataObject, commits: bool) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self.log.append_end_txn_marker(
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            coordinator_epoch=0,
            committed=commits,
            transaction_version=1,
            leader_epoch=0,
            now_ms=self.clock.ms,
        )
        records = self.open.pop(producer)
        if commits:
            self.settled |= records
        else:
            self.aborted |= set(records)

    @rule(ms=st.sampled_from([1, 60, 150]))
    def time_passes(self, ms: int) -> None:
        self.clock.ms += ms
        self.log.remove_deleted_files(self.clock.ms)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock.ms)

    @rule(keys_max=st.sampled_from([None, SMALL_MAP_KEYS]))
    def clean(self, keys_max: int | None) -> None:
        self.keys_max = keys_max
        asyncio.run(self.cleaner.clean_dirtiest())
        assert self.cleaner.counters.uncleanable == {}
        left = [path.name for path in (self.root / "flights-0").iterdir() if path.suffix in (".cleaned", ".swap")]
        assert left == []

    @rule(operations=st.integers(0, 60), keeps_recovery_point=st.booleans())
    def crash_while_cleaning(self, operations: int, keeps_recovery_point: bool) -> None:
        self.disk.left = operations
        with contextlib.suppress(Crash):
            asyncio.run(self.cleaner.clean_dirtiest())
        self.crash(keeps_recovery_point=keeps_recovery_point)

    @rule(keeps_recovery_point=st.booleans())
    def crash(self, keeps_recovery_point: bool) -> None:
        end = self.log.log_end_offset
        producers = self.producers(self.log)
        self.log.release()
        if not keeps_recovery_point:  # then the log alone must tell everything
            for snapshot in (self.root / "flights-0").glob("*.snapshot"):
                snapshot.unlink()
        self.reopen(recovery_point=end if keeps_recovery_point else 0)
        assert self.log.log_end_offset == end
        assert self.producers(self.log) == producers

    def producers(self, log: Log) -> dict[int, tuple[int, int, int]]:
        return {
            producer_id: (state.epoch, state.batches[-1].last_sequence, state.batches[-1].last_offset)
            for producer_id, state in log.producers
        }

    def read_committed(self) -> dict[int, tuple[bytes, bytes | None]]:
        """As a consumer does: the broker's list of aborted transactions, and the markers."""
        log = self.log
        end = log.last_stable_offset(log.log_end_offset)
        waiting = sorted(log.aborted_transactions(0, end), key=lambda each: each.first_offset) if end else []
        skipping: set[int] = set()
        found: dict[int, tuple[bytes, bytes | None]] = {}
        next_offset = 0
        for batch in log.batches():
            header = check_batch(batch)
            assert header.base_offset >= next_offset
            next_offset = header.last_offset + 1
            if header.base_offset >= end:
                break
            while waiting and waiting[0].first_offset <= header.last_offset:
                skipping.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = decode_end_transaction_marker(batch)
                if marker is not None and not marker.committed:
                    skipping.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in skipping:
                continue
            for record in decode_records(batch):
                assert record.key is not None
                assert record.timestamp_ms <= header.max_timestamp_ms
                found[record.offset] = (record.key, record.value)
        return found

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        found = self.read_committed()
        stable = self.log.last_stable_offset(self.log.log_end_offset)
        written = {offset: record for offset, record in self.settled.items() if offset < stable}
        assert found.items() <= written.items()
        last: dict[bytes, int] = {}
        for offset, (key, _) in sorted(written.items()):
            last[key] = offset
        seen: dict[bytes, bytes | None] = {}
        for _, (key, value) in sorted(found.items()):
            seen[key] = value
        for key, offset in last.items():
            value = written[offset][1]
            assert seen.get(key) == value, f"{key!r} was last written at {offset}"
            assert value is None or offset in found

    @invariant()
    def only_open_transactions_hold_readers_back(self) -> None:
        end = self.log.log_end_offset
        assert self.log.last_stable_offset(end) == min((min(records) for records in self.open.values()), default=end)

    @invariant()
    def records_of_open_transactions_stay(self) -> None:
        if self.open:
            present = {record.offset for batch in self.log.batches() for record in decode_records(batch)}
            for records in self.open.values():
                assert set(records) <= present


TestCleaner = CleanerMachine.TestCase
TestCleaner.settings = settings(max_examples=examples(25), stateful_step_count=50, deadline=None)
