"""Compaction of the metadata journal on a disk that fails: the store goes on, or says that it does not."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.store import StoreUnavailableError
from headwater.logtier.runtime.disk import Buffer, File, RealDisk, RealFile


class FailingDisk(RealDisk):
    """Fails from the call that `fails_after` says on, until `recover`; notes what the event loop waits for."""

    def __init__(self, code: int = errno.EMFILE) -> None:
        super().__init__()
        self.code = code
        self.fails_after = 1 << 40
        self.waited_for: list[str] = []

    def check(self) -> None:
        self.fails_after -= 1
        if self.fails_after < 0:
            raise OSError(self.code, os.strerror(self.code))

    def note_wait(self, path: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.waited_for.append(path)

    def open(self, path: str, *, create: bool = False) -> File:
        self.check()
        return WatchedFile(self, path, create)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.check()
        self.note_wait(path)
        super().write_atomic(path, data, sync=sync)

    def rename(self, path: str, new_path: str) -> None:
        self.check()
        super().rename(path, new_path)

    def fsync_directory(self, path: str) -> None:
        self.check()
        self.note_wait(path)
        super().fsync_directory(path)


class WatchedFile(RealFile):
    def __init__(self, disk: FailingDisk, path: str, create: bool) -> None:
        super().__init__(path, os.O_RDWR | (os.O_CREAT if create else 0))
        self.disk = disk

    def fsync(self) -> None:
        self.disk.note_wait(self.path)
        super().fsync()


@pytest.fixture(autouse=True)
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are compacted when they are a few hundred bytes long."""
    monkeypatch.setattr("headwater.logtier.metadata.local._COMPACT_BYTES_MIN", 200)


async def started(directory: Path, disk: RealDisk, failures: list[str] | None = None) -> LocalMetadataStore:
    store = LocalMetadataStore(str(directory), disk, on_failure=None if failures is None else failures.append)
    await store.start()
    return store


def journal_size(directory: Path) -> int:
    return (directory / "journal").stat().st_size


async def fill_until_compacted(store: LocalMetadataStore, directory: Path) -> int:
    """Set a node until the journal shrinks; the last value."""
    await store.create("/a", b"")
    value = 0
    while True:
        size = journal_size(directory)
        value += 1
        await store.set("/a", b"%d" % value)
        if journal_size(directory) < size:
            return value


@pytest.mark.parametrize("calls", range(4))
def test_without_file_descriptors_for_a_compaction_the_store_goes_on(tmp_path: Path, calls: int) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        failures: list[str] = []
        store = await started(tmp_path, disk, failures)
        await store.create("/a", b"")
        acknowledged = None
        disk.fails_after = calls
        for value in range(100):
            try:
                await store.set("/a", b"%d" % value)
            except StoreUnavailableError:
                # Refused in so many words, and not there.
                assert (await store.get("/a"))[0] == acknowledged
            else:
                acknowledged = b"%d" % value
        assert disk.fails_after < 0
        disk.fails_after = 1 << 40
        for value in range(100, 200):
            await store.set("/a", b"%d" % value)
        assert failures == []
        await store.close()
        again = await started(tmp_path, RealDisk())
        assert (await again.get("/a"))[0] == b"199"
        # It was compacted at last.
        assert journal_size(tmp_path) < 2_000
        await again.close()

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_synced_after_a_compaction_stops_the_store_and_the_broker_is_told(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        disk = FailingDisk(errno.EIO)
        failures: list[str] = []
        store = await started(tmp_path, disk, failures)
        # The new file is opened and renamed; then the disk breaks.
        await store.create("/a", b"")
        disk.fails_after = 2
        value = 0
        while not failures:
            await store.set("/a", b"%d" % value)
            value += 1
        with pytest.raises(StoreUnavailableError, match="failed to sync"):
            await store.set("/a", b"never")
        assert len(failures) == 1
        await store.close()
        again = await started(tmp_path, RealDisk())
        assert (await again.get("/a"))[0] == b"%d" % (value - 1)
        await again.close()

    asyncio.run(scenario())


def test_nobody_on_the_event_loop_waits_for_the_device_during_a_compaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        store = await started(tmp_path, disk)
        await fill_until_compacted(store, tmp_path)
        assert disk.waited_for == []
        await store.close()

    asyncio.run(scenario())


def test_a_crash_during_a_compaction_leaves_what_was_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await started(tmp_path, RealDisk())
        value = await fill_until_compacted(store, tmp_path)
        await store.close()
        (tmp_path / "journal.tmp").write_bytes(b"half a jour")
        again = await started(tmp_path, RealDisk())
        assert (await again.get("/a"))[0] == b"%d" % value
        assert await fill_again(again, tmp_path) > value
        await again.close()

    async def fill_again(store: LocalMetadataStore, directory: Path) -> int:
        await store.delete("/a")
        return 1_000_000 + await fill_until_compacted(store, directory)

    asyncio.run(scenario())
