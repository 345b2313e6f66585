"""What is looked at before it is sent, and what brings it into memory."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.logtier.runtime.disk import File, RealDisk
from headwater.logtier.runtime.read_ahead import FAR_BYTES, NEAR_BYTES, PROBE_BYTES, TAIL_BYTES, ReadAhead

MIB = 1 << 20


@dataclass
class Slice:
    file: File
    position: int
    size: int


@pytest.fixture
def file(tmp_path: Path) -> File:
    file = RealDisk().open(str(tmp_path / "segment.log"), create=True)
    file.append([bytes(4 * MIB)])
    file.fsync()
    return file


def evict(file: File) -> None:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_was_just_written_is_not_looked_at(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise AssertionError("a system call")

    monkeypatch.setattr(os, "preadv", fail)
    assert not ReadAhead().is_cold(Slice(file, 4 * MIB - TAIL_BYTES, TAIL_BYTES))
    with pytest.raises(AssertionError):
        ReadAhead().is_cold(Slice(file, 0, TAIL_BYTES))


def test_data_in_memory_is_not_cold(file: File) -> None:
    file.pread(4 * MIB, 0)
    assert not ReadAhead().is_cold(Slice(file, 0, 2 * MIB))


def test_evicted_data_is_cold_until_it_was_read_ahead(file: File) -> None:
    async def scenario() -> None:
        ahead = ReadAhead()
        cold = [Slice(file, 100, MIB), Slice(file, 3 * MIB, PROBE_BYTES)]
        evict(file)
        if not ahead.is_cold(cold[0]):
            pytest.skip("this file system does not give up its pages")
        await ahead.warm(cold)
        assert [ahead.is_cold(each) for each in cold] == [False, False]
        ahead.close()
        ahead.close()

    asyncio.run(scenario())


def test_a_file_system_that_cannot_tell_counts_as_cold(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "preadv", unsupported)
    ahead = ReadAhead()
    assert ahead.is_cold(Slice(file, 0, MIB))
    assert ahead.is_cold(Slice(file, 0, MIB))
    assert not ahead.is_cold(Slice(file, 3 * MIB, MIB)), "but not what was just written"


def test_what_comes_far_behind_is_looked_at_by_itself(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "segment.log"), create=True)
    file.append([bytes(FAR_BYTES + 2 * MIB)])
    end = file.size
    file.fsync()
    ahead = ReadAhead()
    evict(file)
    if not ahead.is_cold_far_ahead(Slice(file, 0, MIB)):
        pytest.skip("this file system does not give up its pages")
    assert ahead.is_cold_far_ahead(Slice(file, 0, end - NEAR_BYTES - 1)), "the last byte"
    assert not ahead.is_cold_far_ahead(Slice(file, 0, end - NEAR_BYTES)), "too near to tell"
    assert not ahead.is_cold_far_ahead(Slice(file, 0, end))
    file.pread(MIB, FAR_BYTES + MIB)
    assert not ahead.is_cold_far_ahead(Slice(file, 0, MIB))
    assert ahead.is_cold(Slice(file, 0, MIB))


def test_what_cannot_be_read_ahead_is_left_to_whoever_sends_it(file: File) -> None:
    async def scenario() -> None:
        ahead = ReadAhead()
        closed = Slice(RealDisk().open_read_only(file.path), 0, MIB)
        closed.file.close()
        await ahead.warm([closed, Slice(file, 3 * MIB, 9 * MIB)])
        ahead.close()

    asyncio.run(scenario())
