"""Indexes of sealed segments: the files answer as memory did, and where they cannot, nothing is lost but time."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.logtier.log.segment_swap import CLEANED_SUFFIX, swap_in
from headwater.logtier.log.segments.index_files import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    Indexes,
    PagedIndexes,
    paged_indexes,
)
from headwater.logtier.log.segments.offset_index import OffsetIndex
from headwater.logtier.log.segments.time_index import TimeIndex
from headwater.logtier.runtime.disk import File, RealDisk, RealFile
from tests.unit.log.conftest import NOW_MS, LogFolder, MakeBatch


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few entries, so that a small index has many."""
    monkeypatch.setattr("headwater.logtier.log.segments.paged_index.PAGE_ENTRIES", 4)


class UnwillingDisk(RealDisk):
    """Does not open files to be read when there is an `error`; nothing of them is in memory if it `is_cold`."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.is_cold = False

    def open_read_only(self, path: str) -> File:
        if self.error is not None:
            raise self.error
        return ColdFile(path, os.O_RDONLY) if self.is_cold else super().open_read_only(path)


class ColdFile(RealFile):
    def pread_in_memory(self, size: int, position: int) -> bytes:
        raise BlockingIOError(errno.EAGAIN, f"{size} bytes at {position} are not in memory")


def build(directory: Path, disk: RealDisk, count: int, chance: random.Random) -> tuple[Indexes, PagedIndexes]:
    """The same entries in memory and in files."""
    offsets, times = OffsetIndex(), TimeIndex()
    offset = position = timestamp_ms = 0
    for _ in range(count):
        offset += chance.randint(1, 5)
        offsets.append(offset, position)
        times.maybe_append(timestamp_ms, offset)
        position += chance.randint(1, 50)
        timestamp_ms += chance.randint(1, 9)
    (directory / INDEX_SUFFIX).write_bytes(offsets.to_bytes())
    (directory / TIME_INDEX_SUFFIX).write_bytes(times.to_bytes())
    whole = (offsets, times)
    return whole, paged_indexes(disk, lambda suffix: str(directory / suffix), whole)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 30])
def test_every_look_up_has_the_same_answer_from_the_files(tmp_path: Path, count: int) -> None:
    (offsets, times), (paged_offsets, paged_times) = build(tmp_path, RealDisk(), count, random.Random(count))
    assert paged_offsets.last_position == offsets.last_position
    for value in range(-1, 1_600):
        assert paged_offsets.position_before(value) == offsets.position_before(value)
        assert paged_offsets.boundary_at_most(value) == offsets.boundary_at_most(value)
        assert paged_offsets.offset_at_or_after(value) == offsets.offset_at_or_after(value)
        assert paged_times.offset_before(value) == times.offset_before(value)


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 5)


def overwrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [remove, cut, overwrite])
def test_files_that_are_damaged_later_give_an_earlier_start(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (offsets, times), (paged_offsets, paged_times) = build(tmp_path, RealDisk(), 30, random.Random(1))
    damage(tmp_path / INDEX_SUFFIX)
    damage(tmp_path / TIME_INDEX_SUFFIX)
    positions = {0, *(position for _, position in offsets.entries())}
    for value in range(1_600):
        for mine, exact in (
            (paged_offsets.position_before(value), offsets.position_before(value)),
            (paged_offsets.boundary_at_most(value), offsets.boundary_at_most(value)),
        ):
            assert mine <= exact
            assert mine in positions
        after = offsets.offset_at_or_after(value)
        found = paged_offsets.offset_at_or_after(value)
        assert found is None or (after is not None and found >= after)
        assert (paged_times.offset_before(value) or 0) <= (times.offset_before(value) or 0)


def test_without_file_descriptors_an_earlier_start_does_and_later_the_exact_one_is_found(tmp_path: Path) -> None:
    disk = UnwillingDisk()
    (offsets, _), (paged, _) = build(tmp_path, disk, 30, random.Random(1))
    exact = offsets.position_before(50)
    disk.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert paged.position_before(50) < exact
    disk.error = None
    assert paged.position_before(50) == exact


def test_an_error_of_the_device_is_not_hidden(tmp_path: Path) -> None:
    disk = UnwillingDisk()
    _, (paged, _) = build(tmp_path, disk, 30, random.Random(1))
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        paged.position_before(50)


def test_who_may_not_wait_learns_that_the_page_is_not_in_memory_and_finds_it_once_it_was_read(tmp_path: Path) -> None:
    disk = UnwillingDisk()
    (offsets, _), (paged, _) = build(tmp_path, disk, 30, random.Random(1))
    disk.is_cold = True
    for look_up in (paged.position_before, paged.boundary_at_most):
        with pytest.raises(BlockingIOError):
            look_up(50, may_wait=False)
    # This one never waits: the next page's first entry does as well.
    assert (paged.offset_at_or_after(50) or 0) >= (offsets.offset_at_or_after(50) or 0)
    exact = paged.position_before(50)
    assert paged.position_before(50, may_wait=False) == exact == offsets.position_before(50)


def fill(folder: LogFolder, make_batch: MakeBatch, count: int = 300) -> list[tuple[int, bytes | None]]:
    folder.configure(segment_bytes=5_000, index_interval_bytes=100)
    for i in range(count):
        folder.append(make_batch(value=b"%d" % i))
    assert folder.log.segment_count > 3
    return [(i, b"%d" % i) for i in range(count)]


def test_a_sealed_segment_keeps_few_entries_in_memory(folder: LogFolder, make_batch: MakeBatch) -> None:
    fill(folder, make_batch)
    for log in (folder.log, folder.reopen(), folder.crash()):
        for i in range(0, 300, 7):
            log.read(i, 500, upper_bound_offset=300, min_one_batch=True)
        *sealed, active = log.segments
        assert [segment._indexes for segment in sealed] == [None] * len(sealed)
        assert active._indexes is not None


@pytest.mark.parametrize("damage", [remove, cut, overwrite])
def test_every_record_is_read_though_index_files_were_damaged_meanwhile(
    folder: LogFolder, make_batch: MakeBatch, damage: Callable[[Path], None]
) -> None:
    expected = fill(folder, make_batch)
    for name in (*folder.names(INDEX_SUFFIX), *folder.names(TIME_INDEX_SUFFIX)):
        damage(folder.path / name)
    assert folder.read_all(max_bytes=300) == expected
    for i in range(0, 300, 11):
        found = folder.log.offset_for_timestamp(NOW_MS)
        assert found is not None
        part = folder.log.read(i, 100, upper_bound_offset=300, min_one_batch=True)
        assert part.first_offset <= i
    # The next start builds them anew.
    folder.reopen()
    assert folder.read_all(max_bytes=300) == expected
    assert all(segment._indexes is None for segment in folder.log.segments[:-1])


def test_a_full_disk_leaves_the_indexes_in_memory(
    folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("headwater.logtier.log.segments.index_files.write_index_file", refuse)
    expected = fill(folder, make_batch)
    assert folder.names(INDEX_SUFFIX) == []
    assert all(segment._indexes is not None for segment in folder.log.segments)
    assert folder.read_all(max_bytes=300) == expected


def test_a_truncation_into_a_sealed_segment_appends_to_its_indexes_again(
    folder: LogFolder, make_batch: MakeBatch
) -> None:
    expected = fill(folder, make_batch)
    for offset in (folder.log.segments[2].base_offset, folder.log.segments[1].base_offset + 5):
        folder.log.truncate_to(offset)
        assert folder.log.segments[-1]._indexes is not None
        for i in range(offset, 300):
            folder.append(make_batch(value=b"%d" % i))
        assert folder.read_all(max_bytes=300) == expected
    folder.reopen()
    assert folder.read_all(max_bytes=300) == expected
    written = {name: (folder.path / name).read_bytes() for name in folder.names(INDEX_SUFFIX)}
    folder.crash()
    assert {name: (folder.path / name).read_bytes() for name in folder.names(INDEX_SUFFIX)} == written


def test_a_segment_that_was_swapped_in_is_looked_up_by_its_own_files(folder: LogFolder, make_batch: MakeBatch) -> None:
    expected = fill(folder, make_batch)
    source = folder.log.segments[0]
    for path in folder.path.glob(f"{source.base_offset:020d}*"):
        if path.suffix in (".log", INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            Path(f"{path}{CLEANED_SUFFIX}").write_bytes(path.read_bytes())
    swap_in(RealDisk(), folder.log, [source], size_bytes=source.size, modified_ms=NOW_MS, now_ms=NOW_MS)
    [first, *_] = folder.log.segments
    assert first is not source
    for i in range(0, 60, 3):
        assert first.position_of(i) == source.position_of(i)
    assert folder.read_all(max_bytes=300) == expected
