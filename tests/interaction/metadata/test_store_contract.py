"""What all kinds of metadata stores do alike: the local folder, ZooKeeper, and the simulation's model of it."""

from __future__ import annotations

import asyncio
import random

import pytest

from headwater.logtier.metadata.store import (
    MAX_NODE_BYTES,
    MULTI_BYTES_MAX,
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
    SessionExpiredError,
    SessionState,
    SetData,
    operation_bytes,
)
from tests.followed_nodes import PATHS, FollowedNodes, random_change, single, state
from tests.metadata_stores import LocalStores, Stores, tree, until


def test_nodes_have_data_versions_and_children(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.create("/a", b"1")
        await store.create("/a/c", b"")
        await store.create("/a/b", "x\xff".encode("latin-1"))
        assert (await store.get("/a"))[:2] == (b"1", 0)
        assert (await store.get("/a/b"))[:2] == (b"x\xff", 0)
        assert await store.set("/a", b"2", 0) == 1
        assert await store.set("/a", b"") == 2
        assert (await store.get("/a"))[:2] == (b"", 2)
        assert await store.children("/a") == ["b", "c"]
        assert await store.children("/") == ["a"]
        assert await store.exists("/a/c")
        await store.delete("/a/c", 0)
        assert not await store.exists("/a/c")
        await store.sync()
        for path in ("/none", "/a/c"):
            with pytest.raises(NoNodeError) as caught:
                await store.get(path)
            assert caught.value.path == path
            with pytest.raises(NoNodeError):
                await store.children(path)

    stores.run(scenario)


REFUSED: list[tuple[Operation, type[MetadataStoreError]]] = [
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
]


def test_a_refused_operation_undoes_the_whole_multi(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.multi([Create("/a", b""), Create("/a/b", b""), Create("/e", b"", ephemeral=True)])
        for operation, error in REFUSED:
            with pytest.raises(error) as caught:
                await store.multi([Create("/new", b""), SetData("/a/b", b"new"), operation, Create("/a", b"")])
            assert caught.value.path == operation.path
            assert not await store.exists("/new")
            assert (await store.get("/a/b"))[:2] == (b"", 0)

    stores.run(scenario)


@pytest.mark.parametrize(("operation", "error"), [case for case in REFUSED if not isinstance(case[0], Check)])
def test_a_single_operation_is_refused_as_one_of_a_multi_is(
    stores: Stores, operation: Operation, error: type[MetadataStoreError]
) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.multi([Create("/a", b""), Create("/a/b", b""), Create("/e", b"", ephemeral=True)])
        with pytest.raises(error) as caught:
            await single(store, operation)
        assert caught.value.path == operation.path

    stores.run(scenario)


def test_a_multi_sees_its_own_earlier_operations(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
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
        assert await store.get("/a") == (b"3", 0, result.zxid, result.zxid, 0)
        assert await store.children("/") == ["a"]

    stores.run(scenario)


def test_zxids_grow_and_name_the_transactions_of_nodes(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        created = await store.create("/a", b"")
        both = await store.multi([SetData("/a", b"1"), Create("/a/b", b"")])
        assert both.zxid > created
        assert (await store.get("/a"))[1:4] == (1, created, both.zxid)
        assert (await store.get("/a/b"))[1:4] == (0, both.zxid, both.zxid)
        # Neither a child's changes nor a check are changes of the node.
        deleted = await store.multi([Delete("/a/b"), Check("/a", 1)])
        assert (await store.get("/a"))[1:4] == (1, created, both.zxid)
        again = await store.create("/a/b", b"")
        assert again > deleted.zxid > both.zxid
        assert (await store.get("/a/b"))[1:4] == (0, again, again)

    stores.run(scenario)


def test_ephemeral_nodes_have_the_session_as_owner_and_end_with_it(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.create("/ids", b"")
        czxid = await store.create("/ids/1", b"here", ephemeral=True)
        first = store.session_id
        assert await store.get("/ids/1") == (b"here", 0, czxid, czxid, first)
        await store.set("/ids/1", b"still here")
        assert (await store.get("/ids/1")).ephemeral_owner == first > 0
        result = await store.multi([Delete("/ids/1"), Create("/ids/1", b"replaced", ephemeral=True)])
        assert await store.get("/ids/1") == (b"replaced", 0, result.zxid, result.zxid, first)
        await store.close()
        assert (store.state, store.session_id) == (SessionState.LOST, 0)
        for request in (store.set("/ids", b"late"), store.get("/ids"), store.sync(), store.get_many(["/ids"])):
            with pytest.raises(SessionExpiredError):
                await request
        await store.start()
        assert store.session_id not in (0, first)
        assert await store.children("/ids") == []
        assert (await store.get("/ids"))[:2] == (b"", 0)

    stores.run(scenario)


def test_the_states_of_a_session_are_reported_in_order(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.close()
        states: list[SessionState] = []
        cancel = store.on_session(lambda state: states.append(store.state))
        await store.start()
        await store.close()
        cancel()
        await store.start()
        assert states == [SessionState.CONNECTED, SessionState.LOST]

    stores.run(scenario)


def test_many_nodes_are_read_at_once_also_where_there_is_none(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        names = [f"/{number}" for number in range(1500)]
        for first in range(0, 1500, 500):
            await store.multi([Create(name, name.encode()) for name in names[first : first + 500]])
        nodes = await store.get_many(["/none", *names, "/a/none"])
        assert nodes[0] is nodes[-1] is None
        assert [node.data.decode() for node in nodes if node is not None] == names

    stores.run(scenario)


def test_operations_of_a_session_take_effect_in_the_order_of_the_calls(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.create("/a", b"")
        # More than a client sends before the first answer.
        sets = [store.set("/a", str(number).encode()) for number in range(300)]
        assert await asyncio.gather(*sets) == list(range(1, 301))
        assert (await store.get("/a"))[:2] == (b"299", 300)
        writes = [store.create("/a/b", b""), store.set("/a/b", b"1"), store.get("/a/b"), store.delete("/a/b")]
        results = await asyncio.gather(*writes)
        assert isinstance(results[2], tuple)
        assert results[2][:2] == (b"1", 1)

    stores.run(scenario)


def test_a_cancelled_caller_disturbs_no_other(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.create("/a", b"")
        tasks = [asyncio.ensure_future(store.set("/a", str(number).encode())) for number in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.exception() is None for task in tasks if not task.cancelled())
        assert (await store.get("/a")).data == b"199" if not tasks[199].cancelled() else b"198"
        sets = [store.set("/a", b"") for _ in range(200)]
        assert len(set(await asyncio.gather(*sets))) == 200

    stores.run(scenario)


def test_nodes_and_transactions_have_the_sizes_that_are_promised(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        await store.create("/a", bytes(MAX_NODE_BYTES))
        await store.set("/a", b"\xff" * MAX_NODE_BYTES)
        assert (await store.get("/a"))[:2] == (b"\xff" * MAX_NODE_BYTES, 1)
        for too_large in (store.create("/b", bytes(MAX_NODE_BYTES + 1)), store.set("/a", bytes(MAX_NODE_BYTES + 1))):
            with pytest.raises(ValueError, match="is the limit"):
                await too_large
        # Few large operations, and many small ones.
        rest = MULTI_BYTES_MAX - 2 * operation_bytes(Create("/c", b""))
        large: list[Operation] = [Create("/c", bytes(rest // 2)), Create("/d", bytes(rest - rest // 2))]
        count = MULTI_BYTES_MAX // operation_bytes(Create("/e0000", b""))
        small: list[Operation] = [Create(f"/e{number:04}", b"") for number in range(count)]
        for operations in (large, small):
            assert len((await store.multi(operations)).versions) == len(operations)
            if not isinstance(stores, LocalStores):
                with pytest.raises(ValueError, match="split it"):
                    await store.multi([*operations, Create("/too-much", b"")])
        nodes = await store.get_many(["/c", "/d", small[-1].path])
        assert [len(node.data) for node in nodes if node is not None] == [rest // 2, rest - rest // 2, 0]
        assert (await store.multi([])).versions == []

    stores.run(scenario)


def test_a_watch_is_called_after_each_kind_of_change(stores: Stores) -> None:
    async def scenario() -> None:
        store = await stores.open()
        other = await stores.open("b") if stores.has_faults else store
        calls: list[str] = []
        cancel = store.watch("/a", calls.append)
        store.watch("/ab", lambda path: None)

        async def called_after(change: object) -> None:
            # What an earlier change still causes is over.
            await asyncio.sleep(0.1)
            calls.clear()
            await change  # type: ignore[misc]
            await until(lambda: bool(calls))

        await called_after(other.create("/a", b""))
        await called_after(other.set("/a", b"1"))
        await called_after(other.create("/a/b", b""))
        await called_after(other.delete("/a/b"))
        await called_after(other.multi([SetData("/a", b"2"), Create("/a/b", b"")]))
        await called_after(other.multi([Delete("/a/b"), Delete("/a")]))
        await called_after(other.create("/a", b"", ephemeral=True))
        await called_after(other.delete("/a"))
        assert set(calls) == {"/a"}
        cancel()
        cancel()
        await asyncio.sleep(0.1)
        calls.clear()
        await other.create("/a", b"")
        await other.set("/a", b"1")
        await asyncio.sleep(0.1)
        assert calls == []

    stores.run(scenario)


def test_a_callback_that_fails_or_cancels_leaves_the_others(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = await stores.open()
        calls: list[str] = []

        def fail(path: str) -> None:
            raise RuntimeError("of the test")

        def once(path: str) -> None:
            calls.append("once")
            cancel()

        store.watch("/a", fail)
        cancel = store.watch("/a", once)
        store.watch("/a", lambda path: calls.append("always"))
        for number in range(3):
            before = calls.count("always")
            await (store.set("/a", b"") if number else store.create("/a", b""))
            await until(lambda before=before: calls.count("always") > before)  # type: ignore[misc]
        assert calls.count("once") == 1
        assert "a watch of /a failed" in caplog.text

    stores.run(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_follower_of_watches_misses_no_change(stores: Stores, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        store = await stores.open()
        other = await stores.open("b") if stores.has_faults else store
        followed = FollowedNodes(store)
        following = asyncio.ensure_future(followed.follow())
        for _ in range(4):
            for _ in range(chance.randrange(30)):
                await random_change(other, chance)
                # Between bursts and a step each.
                for _ in range(chance.choice([0, 0, 1, 20])):
                    await asyncio.sleep(0)
            expected = {path: await state(other, path) for path in PATHS}
            await until(lambda expected=expected: followed.known == expected)  # type: ignore[misc]
        following.cancel()
        assert set(await tree(other)) - {"/"} == {path for path, known in followed.known.items() if known}

    stores.run(scenario)
