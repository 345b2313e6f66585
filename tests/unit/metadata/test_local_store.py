import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import orjson
import pytest

from headwater.logtier.metadata.journal import HEADER, encode_entry
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStoreError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionState,
    SetData,
    StoreUnavailableError,
)
from headwater.logtier.runtime.disk import File, RealDisk


def run(directory: Path, *steps: Callable[[LocalMetadataStore], Awaitable[None]], disk: RealDisk | None = None) -> None:
    """Each step on a store of its own that is opened and closed again: a restart between them."""

    async def main() -> None:
        for step in steps:
            store = LocalMetadataStore(str(directory), disk or RealDisk())
            await store.start()
            try:
                await step(store)
            finally:
                await store.close()

    asyncio.run(main())


def test_nodes_have_data_versions_and_children(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        await store.create("/a", b"1")
        await store.create("/a/c", b"")
        await store.create("/a/b", "x\xff".encode("latin-1"))
        assert (await store.get("/a"))[:2] == (b"1", 0)
        assert await store.set("/a", b"2", 0) == 1
        assert await store.set("/a", b"3") == 2
        assert (await store.get("/a"))[:2] == (b"3", 2)
        assert await store.children("/a") == ["b", "c"]
        assert await store.children("/") == ["a"]
        await store.delete("/a/c", 0)
        assert not await store.exists("/a/c")

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert (await store.get("/a"))[:2] == (b"3", 2)
        assert (await store.get("/a/b"))[:2] == (b"x\xff", 0)
        assert await store.children("/a") == ["b"]

    run(tmp_path, step, after_a_restart)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a", b""), NodeExistsError),
        (Create("/x/y", b""), NoNodeError),
        (Create("/e/y", b""), NoChildrenForEphemeralsError),
        (SetData("/x", b""), NoNodeError),
        (SetData("/a", b"", 7), BadVersionError),
        (Delete("/x"), NoNodeError),
        (Delete("/a/b", 7), BadVersionError),
        (Delete("/a"), NotEmptyError),
        (Check("/a", 7), BadVersionError),
        (Check("/x", 0), NoNodeError),
    ],
)
def test_a_refused_operation_undoes_the_whole_multi(
    tmp_path: Path, operation: Operation, error: type[MetadataStoreError]
) -> None:
    async def step(store: LocalMetadataStore) -> None:
        await store.multi([Create("/a", b""), Create("/a/b", b""), Create("/e", b"", ephemeral=True)])
        with pytest.raises(error) as caught:
            await store.multi([Create("/new", b""), SetData("/a/b", b"new"), operation])
        assert caught.value.path == operation.path
        assert not await store.exists("/new")
        assert (await store.get("/a/b"))[:2] == (b"", 0)

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert await store.children("/") == ["a"]

    run(tmp_path, step, after_a_restart)


def test_a_multi_sees_its_own_earlier_operations(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        result = await store.multi(
            [
                Create("/a", b"1"),
                Create("/a/b", b""),
                SetData("/a", b"2", 0),
                Check("/a", 1),
                Delete("/a/b"),
                Delete("/a", 1),
                Create("/a", b"3"),
                Create("/gone", b""),
                Delete("/gone"),
            ]
        )
        assert result.versions == [0, 0, 1, 1, -1, -1, 0, 0, -1]
        assert (await store.get("/a"))[:2] == (b"3", 0)

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert (await store.get("/a"))[:2] == (b"3", 0)
        assert await store.children("/") == ["a"]

    run(tmp_path, step, after_a_restart)


def test_ephemeral_nodes_end_with_the_session(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        await store.create("/ids", b"")
        await store.create("/ids/1", b"here", ephemeral=True)
        await store.set("/ids/1", b"still here")
        assert (await store.get("/ids/1"))[:2] == (b"still here", 1)

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert await store.children("/ids") == []
        await store.create("/ids/1", b"back", ephemeral=True)
        await store.delete("/ids/1")

    run(tmp_path, step, after_a_restart, after_a_restart)


def test_every_durable_change_has_an_offset_that_outlives_restarts(tmp_path: Path) -> None:
    async def first(store: LocalMetadataStore) -> None:
        assert store.end_offset == 0
        await store.create("/a", b"")
        await store.multi([Create("/a/b", b""), SetData("/a", b"1")])
        assert store.end_offset == 2

    async def second(store: LocalMetadataStore) -> None:
        assert store.end_offset == 2
        await store.create("/a/gone", b"", ephemeral=True)
        with pytest.raises(NodeExistsError):
            await store.create("/a", b"")
        await store.multi([Check("/a", 1)])
        assert store.end_offset == 2, "nothing of it has to be kept"
        await store.delete("/a/b")
        assert store.end_offset == 3

    run(tmp_path, first, second)


def test_a_journal_that_is_compacted_goes_on_at_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.logtier.metadata.local._COMPACT_BYTES_MIN", 200)

    async def fill(store: LocalMetadataStore) -> None:
        await store.create("/a", b"")
        for number in range(50):
            await store.set("/a", str(number).encode())
        assert store.end_offset == 51

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert store.end_offset == 51
        assert (await store.get("/a"))[:2] == (b"49", 50)
        await store.set("/a", b"")
        assert store.end_offset == 52

    run(tmp_path, fill, after_a_restart)
    assert (tmp_path / "journal").stat().st_size < 1000


def test_watches_are_called_after_changes_of_their_node_and_its_children(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        seen: list[str] = []
        await store.create("/a", b"")
        cancel = store.watch("/a", seen.append)
        await store.create("/ab", b"")
        assert seen == []
        await store.multi([Create("/a/b", b""), SetData("/a", b"")])
        await store.set("/a/b", b"a child's data is its own matter")
        await store.create("/a/b/c", b"")
        assert seen == ["/a"]
        await store.multi([Delete("/a/b/c"), Delete("/a/b")])
        await store.delete("/a")
        await store.create("/a", b"")
        cancel()
        cancel()
        await store.create("/a/c", b"")
        assert seen == ["/a"] * 4

    run(tmp_path, step)


def test_zxids_never_go_back_over_restarts_and_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.logtier.metadata.local._COMPACT_BYTES_MIN", 200)
    zxids = [0]
    sessions = [0]

    async def change(store: LocalMetadataStore) -> None:
        sessions.append(store.session_id)
        # At first only what ends with the process: its zxid is not used again either.
        zxids.append(await store.create("/e", b"", ephemeral=True))
        assert (await store.get("/e")).ephemeral_owner == store.session_id
        for _ in range(20):
            zxids.append((await store.multi([SetData("/a", b"x" * 50)])).zxid)
            node = await store.get("/a")
            assert (node.czxid, node.mzxid) == (zxids[1], zxids[-1])

    async def create(store: LocalMetadataStore) -> None:
        sessions.append(store.session_id)
        zxids.append(await store.create("/a", b""))
        assert (await store.get("/a")).czxid == zxids[-1]

    async def only_ephemeral(store: LocalMetadataStore) -> None:
        sessions.append(store.session_id)
        zxids.append(await store.create("/e", b"", ephemeral=True))

    async def check(store: LocalMetadataStore) -> None:
        node = await store.get("/a")
        assert (node.czxid, node.mzxid) == (zxids[1], zxids[43])

    run(tmp_path, create, change, change, only_ephemeral, only_ephemeral, check)
    assert zxids == sorted(set(zxids))
    assert sessions == sorted(set(sessions))


def test_a_journal_of_the_format_before_zxids_opens_and_counts_on(tmp_path: Path) -> None:
    entries = [
        [["/a", "1", 0]],
        [["/a", "2", 1], ["/a/b", "", 0], ["/gone", "", 0]],
        [["/gone"]],
    ]
    journal = [encode_entry(orjson.dumps(entry)) for entry in entries]
    (tmp_path / "journal").write_bytes(b"".join([HEADER, *journal]))

    async def check(store: LocalMetadataStore) -> None:
        assert store.end_offset >= 3
        assert await store.get("/a") == (b"2", 1, 1, 2, 0)
        assert await store.get("/a/b") == (b"", 0, 2, 2, 0)
        assert not await store.exists("/gone")

    async def change(store: LocalMetadataStore) -> None:
        assert store.end_offset == 3
        assert await store.create("/c", b"") > 3
        assert store.end_offset == 4

    run(tmp_path, check, check, change, check)


def test_a_store_that_was_closed_starts_again_with_a_new_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = LocalMetadataStore(str(tmp_path), RealDisk())
        states: list[SessionState] = []
        cancel = store.on_session(states.append)
        assert (store.state, store.session_id) == (SessionState.LOST, 0)
        await store.start()
        first = store.session_id
        await store.create("/a", b"")
        await store.create("/e", b"", ephemeral=True)
        await store.close()
        assert (store.state, store.session_id) == (SessionState.LOST, 0)
        await store.start()
        assert store.session_id > first > 0
        assert await store.children("/") == ["a"]
        cancel()
        await store.close()
        assert states == [SessionState.CONNECTED, SessionState.LOST, SessionState.CONNECTED]

    asyncio.run(scenario())


def test_a_torn_last_entry_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    async def first(store: LocalMetadataStore) -> None:
        await store.create("/a", b"1")

    async def second(store: LocalMetadataStore) -> None:
        await store.create("/b", b"2")

    run(tmp_path, first)
    journal = tmp_path / "journal"
    whole = journal.stat().st_size
    run(tmp_path, second)
    torn = journal.read_bytes()
    for size in range(whole, len(torn)):
        journal.write_bytes(torn[:size])

        async def check(store: LocalMetadataStore) -> None:
            assert await store.children("/") == ["a"]

        run(tmp_path, check)
        assert journal.stat().st_size == whole


def test_zeros_after_the_last_entry_are_a_torn_entry(tmp_path: Path) -> None:
    async def first(store: LocalMetadataStore) -> None:
        await store.create("/a", b"1")

    async def check(store: LocalMetadataStore) -> None:
        assert await store.children("/") == ["a"]
        await store.create("/b", b"")

    async def check_both(store: LocalMetadataStore) -> None:
        assert await store.children("/") == ["a", "b"]

    run(tmp_path, first)
    with (tmp_path / "journal").open("ab") as file:
        file.write(bytes(5000))
    run(tmp_path, check, check_both)


@pytest.mark.parametrize("damaged", ["mark", "length", "payload"])
def test_damage_before_the_last_entry_is_an_error_and_touches_nothing(tmp_path: Path, damaged: str) -> None:
    async def fill(store: LocalMetadataStore) -> None:
        for name in "abc":
            await store.create(f"/{name}", b"data")

    run(tmp_path, fill)
    journal = tmp_path / "journal"
    data = bytearray(journal.read_bytes())
    position = data.index(b"\xc1HWE", data.index(b"\xc1HWE") + 1) + {"mark": 0, "length": 5, "payload": 16}[damaged]
    data[position] ^= 0x40
    journal.write_bytes(data)

    async def never(store: LocalMetadataStore) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(StoreUnavailableError, match="is damaged at byte"):
        run(tmp_path, never)
    assert journal.read_bytes() == bytes(data)


def test_a_file_that_is_no_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"something else")

    async def never(store: LocalMetadataStore) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(StoreUnavailableError, match="not a metadata journal"):
        run(tmp_path, never)


def test_a_folder_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        other = LocalMetadataStore(str(tmp_path), RealDisk())
        with pytest.raises(StoreUnavailableError, match="another broker uses this folder") as caught:
            await other.start()
        assert "\n" not in str(caught.value)
        await store.create("/a", b"")

    run(tmp_path, step)


def test_a_place_that_is_no_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def never(store: LocalMetadataStore) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(StoreUnavailableError, match="metadata cannot be stored in this folder"):
        run(tmp_path / "file" / "x", never)


def test_a_grown_journal_is_compacted_and_holds_the_same(tmp_path: Path) -> None:
    async def grow(store: LocalMetadataStore) -> None:
        await store.create("/a", b"")
        await store.create("/a/kept", b"kept")
        for index in range(4):
            await store.set("/a", bytes([65 + index]) * 900_000)
        await store.set("/a", b"small")

    async def check(store: LocalMetadataStore) -> None:
        assert (await store.get("/a"))[:2] == (b"small", 5)
        assert (await store.get("/a/kept"))[:2] == (b"kept", 0)

    run(tmp_path, grow, check, check)
    assert (tmp_path / "journal").stat().st_size < 1000


class FailingDisk(RealDisk):
    """A disk whose next sync or append fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_sync = False

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()):  # type: ignore[no-untyped-def]
        if self.fail_sync:
            raise OSError(5, os.strerror(5))
        return super().fsync_in_background(files, directories)


def test_after_a_failed_sync_nothing_is_written_or_seen_any_more(tmp_path: Path) -> None:
    disk = FailingDisk()

    async def step(store: LocalMetadataStore) -> None:
        await store.create("/a", b"")
        disk.fail_sync = True
        with pytest.raises(StoreUnavailableError, match="metadata cannot be written"):
            await store.create("/b", b"")
        disk.fail_sync = False
        assert not await store.exists("/b")
        with pytest.raises(StoreUnavailableError, match="failed to sync"):
            await store.create("/c", b"")

    run(tmp_path, step, disk=disk)


def test_a_cancelled_caller_does_not_leave_a_commit_half_done(tmp_path: Path) -> None:
    async def step(store: LocalMetadataStore) -> None:
        task = asyncio.ensure_future(store.multi([Create("/a", b""), Create("/a/b", b"")]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.create("/after", b"")
        assert await store.exists("/a/b")

    async def after_a_restart(store: LocalMetadataStore) -> None:
        assert await store.children("/") == ["a", "after"]
        assert await store.exists("/a/b")

    run(tmp_path, step, after_a_restart)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a/../b", "/" + "x" * 2000])
def test_a_path_that_no_store_takes_is_a_programmer_error(tmp_path: Path, path: str) -> None:
    async def step(store: LocalMetadataStore) -> None:
        with pytest.raises(ValueError, match="not a path"):
            await store.create(path, b"")

    run(tmp_path, step)


def test_nobody_else_may_read_what_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    folder.mkdir(mode=0o755)

    async def step(store: LocalMetadataStore) -> None:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    run(folder, step)


def test_a_folder_of_another_user_is_used_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class OtherUsers(RealDisk):
        def hide(self, path: str) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    async def step(store: LocalMetadataStore) -> None:
        await store.create("/a", b"1")

    run(tmp_path, step, disk=OtherUsers())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_snapshot_has_every_node_of_the_changes_before_it(tmp_path: Path) -> None:
    """A topic created while the paths are being found would be missing from the image forever."""

    async def step(store: LocalMetadataStore) -> None:
        await store.append([Create("/t", b"")])
        creating: list[asyncio.Future[int]] = []

        async def find() -> list[str]:
            found = [f"/t/{name}" for name in await store.children("/t")]
            if not creating:
                creating.append(asyncio.ensure_future(store.append([Create("/t/a", b"1")])))
                await asyncio.sleep(0)
            return found

        assert await store.snapshot(find) == (2, {"/t/a": b"1"})

    run(tmp_path, step)
