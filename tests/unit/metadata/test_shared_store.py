"""The list of changes in nodes: brokers that read it while it is written end with the same nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headwater.logtier.metadata import shared_store
from headwater.logtier.metadata.change_list import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    ChangesTrimmedError,
    ListMovedBackError,
    ListMovedError,
)
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.shared_store import CHANGES, TRIM_BYTES, TRIM_EVERY, SharedMetadataStore
from headwater.logtier.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoNodeError,
    Operation,
    SetData,
    StoredNode,
)
from headwater.logtier.runtime.disk import RealDisk

WRITES = 20

Scenario = Callable[[LocalMetadataStore], Awaitable[None]]


class SlowStore(LocalMetadataStore):
    """Other tasks run between two reads, as beside a server."""

    async def get_many(self, paths: Sequence[str]) -> list[StoredNode | None]:
        found: list[StoredNode | None] = []
        for path in paths:
            await asyncio.sleep(0)
            found += await super().get_many([path])
        return found


def run(directory: Path, scenario: Scenario) -> None:
    async def main() -> None:
        store = SlowStore(str(directory), RealDisk())
        await store.start()
        await store.multi([Create(CHANGES, b"0"), Create("/t", b"")])
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def below_t(store: SharedMetadataStore) -> Callable[[], Awaitable[list[str]]]:
    async def find() -> list[str]:
        found = []
        for name in await store.children("/t"):
            found.append(f"/t/{name}")
            await asyncio.sleep(0)
        return found

    return find


async def all_nodes(store: LocalMetadataStore) -> dict[str, bytes]:
    return {f"/t/{name}": (await store.get(f"/t/{name}")).data for name in await store.children("/t")}


def test_every_broker_gets_every_change_once_and_in_order(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        controller, follower = SharedMetadataStore(store), SharedMetadataStore(store)
        waiting = asyncio.ensure_future(follower.changes_from(0))
        await asyncio.sleep(0)
        assert await controller.append([Create("/t/a", b"1"), Create("/t/b", b"\xff\x00")]) == 0
        assert await controller.append([SetData("/t/a", b"2"), Delete("/t/b"), Check("/t", 0)]) == 1
        (first, *others) = await waiting
        if not others:
            others = list(await follower.changes_from(1))
        (second,) = others
        assert (first.number, first.nodes) == (0, [("/t/a", b"1"), ("/t/b", b"\xff\x00")])
        assert (second.number, second.nodes) == (1, [("/t/a", b"2"), ("/t/b", None)])
        assert (controller.end_offset, follower.end_offset) == (2, 2)

    run(tmp_path, scenario)


def test_a_change_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        controller = SharedMetadataStore(store)
        with pytest.raises(BadVersionError):
            await controller.append([Create("/t/a", b"1"), Check("/t", 7)])
        assert await store.children(CHANGES) == []
        assert await controller.append([Create("/t/a", b"1")]) == 0

    run(tmp_path, scenario)


def test_a_controller_that_does_not_know_the_newest_change_is_refused(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        deposed, present = SharedMetadataStore(store), SharedMetadataStore(store)
        await present.append([Create("/t/a", b"1")])
        with pytest.raises(ListMovedError):
            await deposed.append([SetData("/t/a", b"2")])
        assert (await store.get("/t/a")).data == b"1"

    run(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_read_while_it_is_written_is_the_state_after_some_change(tmp_path: Path, seed: int) -> None:
    """The reader's nodes, with the changes that follow, are those of the store; nodes are deleted and made anew."""

    async def scenario(store: LocalMetadataStore) -> None:
        prng = random.Random(seed)
        controller, follower = SharedMetadataStore(store), SharedMetadataStore(store)
        history: list[dict[str, bytes]] = [{}]

        async def write(count: int) -> None:
            for number in range(count):
                nodes = dict(history[-1])
                operations: list[Operation] = []
                for path in prng.sample([f"/t/{index}" for index in range(4)], prng.randrange(1, 3)):
                    if path not in nodes:
                        operations.append(Create(path, b"%d" % number))
                        nodes[path] = b"%d" % number
                    elif prng.random() < 0.4:
                        operations.append(Delete(path))
                        del nodes[path]
                    else:
                        operations.append(SetData(path, b"%d" % number))
                        nodes[path] = b"%d" % number
                history.append(nodes)
                await controller.append(operations)
                for _ in range(prng.randrange(4)):
                    await asyncio.sleep(0)

        await write(5)
        writing = asyncio.ensure_future(write(WRITES - 5))
        for _ in range(prng.randrange(20)):
            await asyncio.sleep(0)
        number, nodes = await follower.snapshot(below_t(follower))
        assert nodes == history[number]
        while number < WRITES:
            for change in await follower.changes_from(number):
                assert change.number == number
                number += 1
                for path, data in change.nodes:
                    if data is None:
                        del nodes[path]
                    else:
                        nodes[path] = data
                assert nodes == history[number]
        await writing
        assert nodes == await all_nodes(store)

    run(tmp_path, scenario)


def test_old_changes_are_trimmed_and_a_follower_that_needs_them_is_told(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        controller, follower = SharedMetadataStore(store), SharedMetadataStore(store)
        await controller.append([Create("/t/a", b"")])
        count = CHANGES_MAX + TRIM_EVERY
        for start in range(1, count, 100):
            numbers = range(start, min(count, start + 100))
            await store.multi([Create(f"{CHANGES}/{number}", b"[]") for number in numbers])
        await store.set(CHANGES, b"%d" % count)
        _, nodes = await controller.snapshot(below_t(controller))
        assert nodes == {"/t/a": b""}
        assert await controller.append([SetData("/t/a", b"1")]) == count
        left = sorted(map(int, await store.children(CHANGES)))
        assert left == list(range(count + 1 - CHANGES_MAX, count + 1))
        with pytest.raises(ChangesTrimmedError):
            await follower.changes_from(0)
        assert (await follower.changes_from(left[0]))[0].number == left[0]
        await controller.append([SetData("/t/a", b"2")])
        assert len(await store.children(CHANGES)) == CHANGES_MAX + 1, "not with each change"

    run(tmp_path, scenario)


def test_large_changes_are_trimmed_before_they_are_many(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        earlier = SharedMetadataStore(store)
        large = b"x" * (200 << 10)
        await earlier.append([Create("/t/a", large)])
        for _ in range(5):
            await earlier.append([SetData("/t/a", large)])
        controller = SharedMetadataStore(store)  # it has not written those, and learns their sizes
        await controller.snapshot(below_t(controller))
        for _ in range(2 * CHANGE_BYTES_MAX // len(large)):
            await controller.append([SetData("/t/a", large)])
        left = sorted(map(int, await store.children(CHANGES)))
        assert left == list(range(left[0], controller.end_offset)), "without gaps"
        assert len(left) * len(large) <= CHANGE_BYTES_MAX + TRIM_BYTES + len(large)
        assert len(left) * len(large) > CHANGE_BYTES_MAX // 2

    run(tmp_path, scenario)


def test_the_newest_change_stays_whatever_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "CHANGE_BYTES_MAX", 10)
    monkeypatch.setattr(shared_store, "TRIM_BYTES", 0)

    async def scenario(store: LocalMetadataStore) -> None:
        controller = SharedMetadataStore(store)
        await controller.append([Create("/t/a", b"")])
        await controller.append([SetData("/t/a", b"x" * 100)])
        assert await store.children(CHANGES) == ["1"]
        assert (await SharedMetadataStore(store).changes_from(1))[0].number == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("data", [b"", b"{", b"7", b'[["/t/a",5]]', b'[["/t/a","\xe2\x82\xac"]]', b"[[]]"])
def test_a_damaged_change_is_named_and_passed_over(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        await store.multi([Create(f"{CHANGES}/0", data), SetData(CHANGES, b"1")])
        with pytest.raises(ChangesTrimmedError, match="/changes/0"):
            await SharedMetadataStore(store).changes_from(0)
        (line,) = caplog.messages
        assert "/changes/0 has data that this version cannot read" in line

    run(tmp_path, scenario)


def test_a_damaged_number_of_the_next_change_waits_for_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        follower = SharedMetadataStore(store)
        await follower.snapshot(below_t(follower))
        controller = SharedMetadataStore(store)
        await controller.snapshot(below_t(controller))
        await store.set(CHANGES, b"many")
        waiting = asyncio.create_task(follower.changes_from(0))
        while not caplog.messages:  # noqa: ASYNC110 (a line of the log has no event)
            await asyncio.sleep(0)
        await controller.append([Create("/t/a", b"1")])
        assert [change.number for change in await waiting] == [0]
        assert (await store.get(CHANGES)).data == b"1"
        (line,) = caplog.messages
        assert line.endswith("set it to 0, or wait for the next change, which sets it")
        await store.set(CHANGES, b"many")
        with pytest.raises(CorruptNodeError, match="/changes has data"):
            await SharedMetadataStore(store).snapshot(below_t(controller))

    run(tmp_path, scenario)


def test_a_list_that_ends_before_what_is_applied_is_not_followed(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        controller = SharedMetadataStore(store)
        for name in "abc":
            await controller.append([Create(f"/t/{name}", b"")])
        await store.multi([Delete(f"{CHANGES}/2"), SetData(CHANGES, b"2")])
        with pytest.raises(ListMovedBackError, match="2 is the next change, and 2 is applied: ZooKeeper was restored"):
            await controller.changes_from(3)

    run(tmp_path, scenario)


def test_other_calls_reach_the_store(tmp_path: Path) -> None:
    async def scenario(store: LocalMetadataStore) -> None:
        shared = SharedMetadataStore(store)
        czxid = await shared.create("/t/a", b"1", ephemeral=True)
        assert (await shared.get("/t/a")).czxid == czxid
        assert await shared.set("/t/a", b"2") == 1
        seen: list[str] = []
        forget = shared.watch("/t/a", seen.append)
        await shared.delete("/t/a")
        forget()
        assert seen == ["/t/a"]
        with pytest.raises(NoNodeError):
            await shared.get("/t/a")
        assert (shared.state, shared.session_id) == (store.state, store.session_id)

    run(tmp_path, scenario)
