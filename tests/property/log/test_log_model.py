"""The log against a list: whatever is appended, read, rolled, truncated, reopened or torn, they agree."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch, check_batch, decode_records, iterate_batches
from headwater.logtier.runtime.disk import RealDisk
from tests.example_counts import examples
from tests.index_entries import index_entries

NOW_MS = 1_000_000
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=120, file_delete_delay_ms=0)


class LogMachine(RuleBasedStateMachine):
    """The model is a list of batches: (base offset, values, timestamps, sent bytes of an idempotent batch or None)."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headwater-log-"))
        self.directory = self.root / "flights-0"
        self.directory.mkdir()
        self.model: list[tuple[int, list[bytes], list[int], bytes | None]] = []
        self.start_offset = 0
        self.sequence = 0
        self.counter = 0
        self.log = self.open(clean=True)

    def teardown(self) -> None:
        self.log.release()
        # Deleted segments go away in a thread of their own, maybe at this moment.
        shutil.rmtree(self.root, ignore_errors=True)

    def open(self, *, clean: bool, recovery_point: int = 0) -> Log:
        return open_log(
            RealDisk(),
            str(self.directory),
            TopicPartition("flights", 0),
            uuid.UUID(int=1),
            CONFIG,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=self.start_offset,
            now_ms=NOW_MS,
        )

    @property
    def end_offset(self) -> int:
        return self.model[-1][0] + len(self.model[-1][1]) if self.model else self.log.log_start_offset

    def values(self, count: int) -> list[bytes]:
        self.counter += count
        return [b"%d" % (self.counter - i) for i in range(count)]

    @rule(
        count=st.integers(1, 5),
        codec=st.integers(0, 4),
        timestamp_ms=st.integers(0, 2_000),
        is_idempotent=st.booleans(),
        size=st.integers(0, 60),
    )
    def append(self, count: int, codec: int, timestamp_ms: int, is_idempotent: bool, size: int) -> None:
        values = [value + b"." * size for value in self.values(count)]
        times = [timestamp_ms + (i * 7) % 5 for i in range(count)]
        batch = build_batch(
            [Record(None, value, time) for value, time in zip(values, times, strict=True)],
            codec=codec,
            producer_id=1 if is_idempotent else -1,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=self.sequence if is_idempotent else -1,
        )
        base = self.end_offset
        info = self.log.append_as_leader(batch, leader_epoch=self.counter // 30, now_ms=NOW_MS)
        assert (info.first_offset, info.last_offset, info.duplicate) == (base, base + count - 1, False)
        if is_idempotent:
            self.sequence += count
        self.model.append((base, values, times, batch if is_idempotent else None))

    @rule(back=st.integers(0, 4))
    def retry(self, back: int) -> None:
        sent = [entry for entry in self.model if entry[3] is not None]
        if back < len(sent):
            base, values, _, batch = sent[-1 - back]
            assert batch is not None
            info = self.log.append_as_leader(batch, leader_epoch=9_999, now_ms=NOW_MS)
            assert (info.first_offset, info.last_offset, info.duplicate) == (base, base + len(values) - 1, True)

    @precondition(lambda self: any(entry[3] is not None for entry in self.model))
    @rule(gap=st.integers(1, 9))
    def send_with_a_gap(self, gap: int) -> None:
        batch = build_batch(
            [Record(None, b"gap", 0)], producer_id=1, producer_epoch=0, base_sequence=self.sequence + gap
        )
        try:
            self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        except KafkaError as error:
            assert error.code == ErrorCode.out_of_order_sequence_number
        else:
            raise AssertionError("a gap was accepted")

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 100, 300, 10_000]), min_one_batch=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one_batch: bool) -> None:
        bounds = [self.log.log_start_offset] + [base + len(values) for base, values, _, _ in self.model]
        bound = data.draw(st.sampled_from(bounds))
        offset = data.draw(st.integers(self.log.log_start_offset, self.end_offset))
        part = self.log.read(offset, max_bytes, upper_bound_offset=bound, min_one_batch=min_one_batch)
        content = part.file.pread(part.size, part.position)
        assert len(content) == part.size
        expected = [entry for entry in self.model if entry[0] + len(entry[1]) > offset and entry[0] < bound]
        batches = list(iterate_batches(content))
        if part.size == 0:
            assert offset >= bound or not min_one_batch
            return
        assert part.first_offset == expected[0][0]
        assert batches or not min_one_batch
        assert part.size <= max_bytes or len(batches) == 1
        for (header, batch), (base, values, _, _) in zip(batches, expected, strict=False):
            check_batch(batch)
            assert header.base_offset == base
            assert [record.value for record in decode_records(batch)] == values

    @rule(timestamp_ms=st.integers(0, 2_100))
    def look_up_a_timestamp(self, timestamp_ms: int) -> None:
        found = self.log.offset_for_timestamp(timestamp_ms)
        expected = next(
            (
                (time, base + i)
                for base, _, times, _ in self.model
                for i, time in enumerate(times)
                if time >= timestamp_ms and base + i >= self.log.log_start_offset
            ),
            None,
        )
        assert (None if found is None else found[:2]) == expected

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.durability.flushed_offset == self.end_offset

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.end_offset))
        self.log.truncate_to(offset)
        kept = [entry for entry in self.model if entry[0] + len(entry[1]) <= offset]
        self.forget(len(kept))
        if not self.model:
            # Without a batch the model does not know where the log ends.
            self.model = []

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start_offset = data.draw(st.integers(self.log.log_start_offset, self.end_offset))
        self.log.delete_records_before(self.start_offset, self.log.log_end_offset)
        self.log.delete_old_segments(0, self.log.log_end_offset)
        self.log.remove_deleted_files(NOW_MS)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open(clean=True, recovery_point=self.end_offset)

    @rule()
    def kill(self) -> None:
        recovery_point = self.log.durability.recovery_point
        self.log.release()
        self.log = self.open(clean=False, recovery_point=recovery_point)

    @precondition(lambda self: self.model and self.model[-1][0] >= self.log.log_start_offset)
    @rule(fraction=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=80))
    def tear_the_last_batch(self, fraction: float, tail: bytes) -> None:
        """The tail of the newest file is lost at any byte of the last batch; garbage may follow the tear."""
        active = self.log.segments.active
        if active.size == 0:
            return
        located = active.locate(self.model[-1][0])
        assert located is not None
        path = Path(active.log_path)
        recovery_point = min(self.log.durability.recovery_point, self.model[-1][0])
        self.log.release()
        cut = located.position + int(located.size_bytes * fraction)
        path.write_bytes(path.read_bytes()[:cut] + (tail if cut - located.position < 12 else b""))
        self.forget(len(self.model) - 1)
        self.log = self.open(clean=False, recovery_point=recovery_point)

    def forget(self, keep: int) -> None:
        """The newest batches are gone from log and model; the producer goes back with them."""
        lost = [entry for entry in self.model[keep:] if entry[3] is not None]
        if lost:
            self.sequence -= sum(len(entry[1]) for entry in lost)
        del self.model[keep:]

    @invariant()
    def agree(self) -> None:
        while self.model and self.model[0][0] + len(self.model[0][1]) <= self.log.log_start_offset:
            # Gone with DeleteRecords; the producer's state stays.
            self.model.pop(0)
        if self.model:
            assert self.log.log_end_offset == self.end_offset
        found = [
            (check_batch(batch).base_offset, [record.value for record in decode_records(batch)])
            for batch in self.log.batches()
        ]
        assert found == [(base, values) for base, values, _, _ in self.model]

    @invariant()
    def indexes_built_equal_indexes_rebuilt(self) -> None:
        for segment in self.log.segments:
            if segment._indexes is None or segment.size == 0:
                continue
            fresh = LogSegment(
                RealDisk(),
                str(self.directory),
                segment.base_offset,
                size=segment.size,
                modified_ms=0,
                index_interval_bytes=segment.index_interval_bytes,
            )
            fresh._rebuild_indexes()
            assert fresh.max_timestamp_ms == segment.max_timestamp_ms
            positions = {location.position: location.header for location in segment.headers()}
            offset_entries, time_entries = index_entries(segment)
            for relative, position in offset_entries:
                assert positions[position].last_offset == segment.base_offset + relative
            for timestamp, relative in time_entries:
                [header] = [h for h in positions.values() if h.last_offset == segment.base_offset + relative]
                assert header.max_timestamp_ms == timestamp
                assert all(
                    h.max_timestamp_ms < timestamp for h in positions.values() if h.last_offset < header.last_offset
                )


TestLog = LogMachine.TestCase
# Every step touches files: shrinking a failure would take minutes, and the steps are readable as they are.
TestLog.settings = settings(
    max_examples=examples(12), stateful_step_count=25, deadline=None, phases=[Phase.reuse, Phase.generate]
)
