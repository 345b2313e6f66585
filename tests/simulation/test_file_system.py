"""The simulated device: what a killed process leaves, and what a power loss leaves."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.runtime.disk import Disk, RealDisk
from tests.manual_clock import ManualClock
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.virtual_loop import VirtualLoop


def on_a_disk(scenario: Callable[[SimulatedDisk], Any], seed: int = 1) -> Any:
    """Run a scenario on the disk of a process; the folder /data is on the device."""

    async def main() -> Any:
        file_system = FileSystem(random.Random(seed))
        file_system.makedirs("/data")
        file_system.sync()
        return scenario(process_on(file_system))

    loop = VirtualLoop(random.Random(seed))
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def process_on(file_system: FileSystem) -> SimulatedDisk:
    return SimulatedDisk(file_system, ManualClock(), random.Random(1), lambda _: None)


def test_a_killed_process_leaves_what_it_wrote_and_writes_no_more() -> None:
    def scenario(disk: SimulatedDisk) -> None:
        lock = disk.lock("/data/.lock")
        file = disk.open("/data/a", create=True)
        file.append([b"abc"])
        disk.cut()
        with pytest.raises(OSError, match="killed"):
            file.append([b"d"])
        lock.release()
        other = process_on(disk.file_system)
        assert other.read("/data/a") == b"abc"
        other.lock("/data/.lock")

    on_a_disk(scenario)


def test_a_lock_is_held_by_one_process() -> None:
    def scenario(disk: SimulatedDisk) -> None:
        disk.lock("/data/.lock")
        with pytest.raises(BlockingIOError):
            process_on(disk.file_system).lock("/data/.lock")

    on_a_disk(scenario)


def left_after_power_loss(prepare: Callable[[SimulatedDisk], None]) -> set[bytes | None]:
    """What a power loss leaves of /data/a, over many seeds; None for no file."""

    def scenario(disk: SimulatedDisk) -> bytes | None:
        prepare(disk)
        disk.cut()
        disk.file_system.lose_power()
        disk = process_on(disk.file_system)
        return disk.read("/data/a") if disk.exists("/data/a") else None

    return {on_a_disk(scenario, seed) for seed in range(60)}


def test_a_power_loss_tears_what_is_not_synced_and_keeps_what_is() -> None:
    def half_synced(disk: SimulatedDisk) -> None:
        file = disk.open("/data/a", create=True)
        file.append([b"synced"])
        file.fsync()
        disk.fsync_directory("/data")
        file.append([b"torn"])

    left = left_after_power_loss(half_synced)
    assert all(each is not None and each.startswith(b"synced") for each in left)
    assert {b"synced", b"syncedto", b"syncedtorn", b"synced\0\0"} <= left


def test_a_power_loss_takes_a_name_that_is_not_synced() -> None:
    def without_name(disk: SimulatedDisk) -> None:
        file = disk.open("/data/a", create=True)
        file.append([b"x"])
        file.fsync()

    assert left_after_power_loss(without_name) == {b"x", None}


def test_a_power_loss_undoes_a_truncation_that_is_not_synced() -> None:
    def truncated(disk: SimulatedDisk) -> None:
        file = disk.open("/data/a", create=True)
        file.append([b"abcdef"])
        file.fsync()
        disk.fsync_directory("/data")
        file.truncate(3)

    assert left_after_power_loss(truncated) == {b"abc", b"abcdef"}


def test_an_atomic_write_that_is_synced_leaves_the_old_or_the_new_contents() -> None:
    def rewritten(disk: SimulatedDisk) -> None:
        disk.write_atomic("/data/a", b"old")
        disk.write_atomic("/data/a", b"new")

    assert left_after_power_loss(rewritten) == {b"new"}


def test_a_full_and_a_failing_device_refuse_writes() -> None:
    def scenario(disk: SimulatedDisk) -> None:
        file = disk.open("/data/a", create=True)
        disk.file_system.fill(2)
        with pytest.raises(OSError, match="space") as full:
            file.append([b"abc"])
        assert full.value.errno == errno.ENOSPC
        assert file.size == 0
        disk.file_system.empty()
        disk.file_system.failing = "/data"
        with pytest.raises(OSError) as failed:
            file.fsync()
        assert failed.value.errno == errno.EIO

    on_a_disk(scenario)


def use(disk: Disk, root: str) -> list[object]:
    """What a caller of a disk sees."""
    disk.makedirs(f"{root}/logs/a-0")
    file = disk.open(f"{root}/logs/a-0/0.log", create=True)
    seen: list[object] = [file.append([b"abc", b"def"]), file.size, file.pread(4, 1), file.pread(9, 5)]
    file.truncate(4)
    seen += [file.append([b"X"]), file.pread(9, 0)]
    disk.copy(file, f"{root}/logs/copy", 0, 3)
    disk.copy(file, f"{root}/logs/copy", 3, 2)
    disk.write_atomic(f"{root}/logs/small", b"1")
    disk.rename(f"{root}/logs/a-0", f"{root}/logs/b-0")
    seen += [disk.read(f"{root}/logs/copy"), file.pread(2, 0), disk.exists(f"{root}/logs/a-0")]
    seen += [[(entry.name, entry.is_directory) for entry in disk.listdir(f"{root}/logs")]]
    disk.remove(f"{root}/logs/small")
    disk.remove(f"{root}/logs/small")
    disk.rmtree(f"{root}/logs/b-0")
    seen += [[entry.name for entry in disk.listdir(f"{root}/logs")], file.pread(2, 0)]
    for refused in (
        lambda: disk.open(f"{root}/logs/none"),
        lambda: disk.read(f"{root}/none"),
        lambda: disk.listdir(f"{root}/none"),
        lambda: disk.rename(f"{root}/none", f"{root}/other"),
    ):
        with pytest.raises(FileNotFoundError):
            refused()
    return seen


def test_it_answers_as_a_real_disk_does(tmp_path: Path) -> None:
    assert on_a_disk(lambda disk: use(disk, "/data")) == use(RealDisk(), str(tmp_path))
