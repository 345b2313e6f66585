"""Reading: whole first batches, bounds, segments, timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.logtier.log.log import LogSlice
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import iterate_batches
from tests.unit.log.conftest import resealed

if TYPE_CHECKING:
    from tests.unit.log.conftest import LogFolder, MakeBatch


def offsets(part: LogSlice) -> list[int]:
    return [header.base_offset for header, _ in iterate_batches(part.file.pread(part.size, part.position))]


def read(folder: LogFolder, offset: int, max_bytes: int = 1 << 20, *, bound: int | None = None) -> LogSlice:
    bound = folder.log.log_end_offset if bound is None else bound
    return folder.log.read(offset, max_bytes, upper_bound_offset=bound, min_one_batch=True)


def test_an_offset_inside_of_a_batch_returns_the_whole_batch(folder: LogFolder, make_batch: MakeBatch) -> None:
    for _ in range(3):
        folder.append(make_batch(5))
    for offset in range(5, 10):
        part = read(folder, offset)
        assert part.first_offset == 5
        assert offsets(part) == [5, 10]


@pytest.mark.parametrize("max_bytes", [1, 50, 200, 333, 1_000, 100_000])
def test_reading_on_from_slice_to_slice_sees_every_record_once(
    small_segments: LogFolder, make_batch: MakeBatch, max_bytes: int
) -> None:
    for i in range(60):
        small_segments.append(make_batch(1 + i % 4, value=str(i).encode()))
    found = small_segments.read_all(max_bytes=max_bytes)
    assert [offset for offset, _ in found] == list(range(small_segments.log.log_end_offset))


def test_nothing_at_or_above_the_bound_is_returned(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for _ in range(40):
        small_segments.append(make_batch(2))
    for bound in range(0, 81, 2):
        for offset in range(bound):
            found = offsets(read(small_segments, offset, bound=bound))
            assert found[0] == offset - offset % 2
            assert found[-1] < bound
        assert read(small_segments, bound, bound=bound).size == 0


def test_the_first_batch_comes_whole_even_if_it_is_above_the_limit(folder: LogFolder, make_batch: MakeBatch) -> None:
    big = make_batch(1, value=bytes(5_000))
    folder.append(big)
    folder.append(make_batch(1))
    assert read(folder, 0, 100).size == len(big)
    part = folder.log.read(0, 100, upper_bound_offset=2, min_one_batch=False)
    assert part.size == 0
    part = folder.log.read(0, len(big), upper_bound_offset=2, min_one_batch=False)
    assert part.size == len(big)


def test_offsets_outside_of_the_log_are_out_of_range(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(10))
    folder.log.delete_records_before(4, folder.log.log_end_offset)
    for offset in (-1, 0, 3, 11):
        with pytest.raises(KafkaError) as caught:
            read(folder, offset)
        assert caught.value.code == ErrorCode.offset_out_of_range
    assert read(folder, 4).first_offset == 0
    assert read(folder, 10).size == 0


def test_an_empty_slice_needs_no_file(folder: LogFolder) -> None:
    part = read(folder, 0)
    assert (part.size, part.file.pread(10, 0), part.file.size) == (0, b"", 0)
    part.file.fsync()
    part.file.close()
    for call in (part.file.fileno, lambda: part.file.append([b"x"]), lambda: part.file.truncate(0)):
        with pytest.raises(AssertionError):
            call()


def test_a_slice_of_a_deleted_segment_stays_readable(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for i in range(40):
        small_segments.append(make_batch(1, value=str(i).encode(), timestamp_ms=1_000))
    part = read(small_segments, 0)
    before = part.file.pread(part.size, part.position)
    small_segments.configure(retention_ms=1, file_delete_delay_ms=0)
    assert small_segments.log.delete_old_segments(2_000_000, small_segments.log.log_end_offset) > 0
    small_segments.log.remove_deleted_files(2_000_000)
    assert small_segments.names(".deleted") == []
    assert part.file.fileno() >= 0
    assert part.file.pread(part.size, part.position) == before


def test_a_consumer_at_the_end_gets_exactly_what_was_appended_since(folder: LogFolder, make_batch: MakeBatch) -> None:
    next_offset = 0
    for count in range(1, 100):
        folder.append(make_batch(count % 3 + 1))
        part = read(folder, next_offset)
        assert part.first_offset == next_offset
        assert offsets(part) == [next_offset]
        next_offset = folder.log.log_end_offset


def test_a_gap_at_the_end_of_a_segment_leads_to_the_next_one(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.log.append_as_follower(make_batch(1, base_offset=0))
    folder.log.append_as_follower(make_batch(1, base_offset=1))
    folder.log.roll(0)
    folder.log.append_as_follower(make_batch(1, base_offset=7))
    folder.log.roll(0)
    folder.log.append_as_follower(make_batch(1, base_offset=20))
    assert read(folder, 2).first_offset == 7
    assert read(folder, 8).first_offset == 20
    assert read(folder, 19).first_offset == 20


@pytest.mark.parametrize("codec", [0, 4])
def test_a_timestamp_finds_the_first_record_that_is_not_older(
    small_segments: LogFolder, make_batch: MakeBatch, codec: int
) -> None:
    for i in range(50):
        small_segments.append(make_batch(3, timestamp_ms=10_000 + 10 * i, codec=codec), leader_epoch=i // 10)
    times = [10_000 + 10 * (n // 3) + n % 3 for n in range(150)]
    for target in (0, 10_000, 10_001, 10_003, 10_010, 10_255, 10_492):
        found = small_segments.log.offset_for_timestamp(target)
        expected = next(n for n, time in enumerate(times) if time >= target)
        assert found == (times[expected], expected, expected // 30)
    assert small_segments.log.offset_for_timestamp(10_493) is None


def test_timestamps_out_of_order_are_found_in_offset_order(folder: LogFolder, make_batch: MakeBatch) -> None:
    for timestamp_ms in (500, 100, 900, 300):
        folder.append(make_batch(1, timestamp_ms=timestamp_ms))
    assert folder.log.offset_for_timestamp(200) == (500, 0, 0)
    assert folder.log.offset_for_timestamp(600) == (900, 2, 0)
    assert folder.log.offset_of_max_timestamp() == (900, 2, 0)


def test_a_timestamp_look_up_begins_at_the_logs_start(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(10, timestamp_ms=100))
    folder.log.delete_records_before(4, folder.log.log_end_offset)
    assert folder.log.offset_for_timestamp(0) == (104, 4, 0)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_that_cannot_be_decompressed_do_not_end_a_timestamp_look_up(
    folder: LogFolder, make_batch: MakeBatch, codec: int
) -> None:
    folder.append(make_batch(1, timestamp_ms=100))
    folder.append(resealed(make_batch(3, timestamp_ms=200), attributes=codec))
    folder.append(make_batch(1, timestamp_ms=300))
    assert folder.log.offset_for_timestamp(150) == (202, 1, 0)
    assert folder.log.offset_for_timestamp(250) == (300, 4, 0)


def test_records_beyond_their_batch_header_do_not_end_a_timestamp_look_up(
    folder: LogFolder, make_batch: MakeBatch
) -> None:
    folder.configure(message_timestamp_after_max_ms=2**63 - 1)
    folder.append(resealed(make_batch(3, timestamp_ms=200), base_timestamp_ms=2**63 - 1))
    assert folder.log.offset_for_timestamp(150) == (202, 0, 0)


def test_an_empty_log_has_no_timestamps(folder: LogFolder) -> None:
    assert folder.log.offset_for_timestamp(0) is None
    assert folder.log.offset_of_max_timestamp() is None


def test_batches_are_iterated_from_the_one_that_holds_the_offset(
    small_segments: LogFolder, make_batch: MakeBatch
) -> None:
    for _ in range(30):
        small_segments.append(make_batch(2))
    starts = [next(iterate_batches(batch))[0].base_offset for batch in small_segments.log.batches(31)]
    assert starts == list(range(30, 60, 2))
    assert len(list(small_segments.log.batches())) == 30
