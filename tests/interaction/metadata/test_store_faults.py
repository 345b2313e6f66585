"""Lost connections, sessions that run out, servers that freeze or restart: ZooKeeper, and the simulation's model."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from headwater.logtier.metadata.store import (
    Create,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionExpiredError,
    SessionState,
    SetData,
    StoreUnavailableError,
)
from tests.followed_nodes import PATHS, FollowedNodes, random_change, state
from tests.metadata_stores import SHORT_SESSION_MS, Stores, until

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


def noted(store: MetadataStore) -> list[SessionState]:
    """The states of a session from now on."""
    states: list[SessionState] = []
    store.on_session(states.append)
    return states


async def gone(observer: MetadataStore, path: str) -> bool:
    return not await observer.exists(path)


def test_a_lost_connection_suspends_a_session_that_goes_on_when_it_is_back(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open()
        observer = await remote_stores.open("observer")
        states = noted(store)
        session = store.session_id
        await store.create("/e", b"", ephemeral=True)
        calls: list[str] = []
        store.watch("/other", calls.append)
        await until(lambda: bool(calls))
        remote_stores.cut("a")
        remote_stores.lose_connection("a")
        await until(lambda: store.state is SUSPENDED)
        # Nothing waits for a connection that may not come back.
        with pytest.raises(StoreUnavailableError) as caught:
            await store.set("/e", b"1")
        assert not isinstance(caught.value, SessionExpiredError)
        calls.clear()
        await observer.create("/other", b"")
        remote_stores.heal("a")
        await until(lambda: bool(calls))
        assert (store.session_id, states) == (session, [SUSPENDED, CONNECTED])
        assert await store.exists("/other")
        assert (await store.get("/e"))[:2] == (b"", 0)
        assert (await store.get("/e")).ephemeral_owner == session

    remote_stores.run(scenario)


def test_a_session_that_runs_out_is_lost_and_a_new_one_begins_only_by_start(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open("a", SHORT_SESSION_MS)
        observer = await remote_stores.open("observer")
        states = noted(store)
        session = store.session_id
        await store.create("/e", b"", ephemeral=True)
        await store.create("/lasting", b"")
        calls: list[str] = []
        store.watch("/lasting", calls.append)
        await until(lambda: bool(calls))
        remote_stores.cut("a")
        await until(lambda: gone(observer, "/e"))
        # Cut off, it cannot know: no invariant may rest on hearing of the end.
        assert store.state is not LOST
        await observer.set("/lasting", b"1")
        remote_stores.heal("a")
        await until(lambda: store.state is LOST)
        assert store.session_id == 0
        for request in (store.get("/lasting"), store.set("/lasting", b"2"), store.create("/e", b"", ephemeral=True)):
            with pytest.raises(SessionExpiredError):
                await request
        await asyncio.sleep(1)
        assert (await observer.get("/lasting")).data == b"1"
        assert not await observer.exists("/e")
        calls.clear()
        await store.start()
        assert store.session_id not in (0, session)
        await until(lambda: bool(calls))
        await store.create("/e", b"", ephemeral=True)
        assert (await observer.get("/e")).ephemeral_owner == store.session_id
        # A connection may have come and gone while the session ran out.
        assert states[-2:] == [LOST, CONNECTED]
        assert states.count(LOST) == 1

    remote_stores.run(scenario)


@pytest.mark.parametrize("happened", [True, False])
def test_a_transaction_whose_answer_is_lost_took_effect_or_not_and_a_read_tells(
    remote_stores: Stores, happened: bool
) -> None:
    async def scenario() -> None:
        store = await remote_stores.open()
        await store.create("/epoch", b"")
        await store.create("/changes", b"")
        entry: list[Operation] = [SetData("/epoch", b"1", 0), Create("/changes/1", b"mine")]
        error = await remote_stores.ambiguous("a", store.multi(entry), happened)
        assert isinstance(error, StoreUnavailableError)
        assert not isinstance(error, SessionExpiredError)
        await until(lambda: store.state is CONNECTED)
        await store.sync()
        assert await store.exists("/changes/1") == happened
        assert (await store.get("/epoch"))[:2] == ((b"1", 1) if happened else (b"", 0))
        if not happened:
            await store.multi(entry)
        assert (await store.get("/changes/1")).czxid == (await store.get("/epoch")).mzxid

    remote_stores.run(scenario)


@pytest.mark.parametrize("happened", [True, False])
def test_an_ephemeral_node_whose_answer_is_lost_is_created_once_all_the_same(
    remote_stores: Stores, happened: bool
) -> None:
    """CONNECTION_LOSS is ambiguous. The create may have happened: the owner is read back."""

    async def scenario() -> None:
        store = await remote_stores.open()
        created: list[int] = []

        async def create() -> None:
            created.append(await store.create("/e", b"mine", ephemeral=True))

        assert await remote_stores.ambiguous("a", create(), happened) is None
        [czxid] = created
        assert await store.get("/e") == (b"mine", 0, czxid, czxid, store.session_id)

    remote_stores.run(scenario)


def test_an_ephemeral_node_of_another_is_not_taken_for_ones_own(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open()
        other = await remote_stores.open("b")
        await other.create("/e", b"theirs", ephemeral=True)
        error = await remote_stores.ambiguous("a", store.create("/e", b"mine", ephemeral=True), False)
        assert isinstance(error, NodeExistsError)
        assert error.path == "/e"
        assert (await store.get("/e")).ephemeral_owner == other.session_id

    remote_stores.run(scenario)


def test_a_server_that_is_killed_and_comes_back_keeps_sessions_and_confirmed_changes(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open()
        states = noted(store)
        session = store.session_id
        await store.create("/e", b"", ephemeral=True)
        before = await store.create("/a", b"1")
        calls: list[str] = []
        store.watch("/a", calls.append)
        await until(lambda: bool(calls))
        remote_stores.kill_server()
        await until(lambda: store.state is SUSPENDED)
        await asyncio.sleep(0.5)
        calls.clear()
        await remote_stores.restart_server()
        await until(lambda: bool(calls))
        assert (store.session_id, states[-1]) == (session, CONNECTED)
        assert LOST not in states
        assert (await store.get("/a"))[:3] == (b"1", 0, before)
        assert (await store.get("/e")).ephemeral_owner == session
        assert await store.create("/b", b"") > before

    remote_stores.run(scenario)


def test_after_a_freeze_of_the_server_a_session_is_lost_if_its_nodes_are_gone(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open("a", SHORT_SESSION_MS)
        states = noted(store)
        await store.create("/e", b"", ephemeral=True)
        remote_stores.freeze_server()
        await until(lambda: store.state is SUSPENDED)
        await asyncio.sleep(2 * SHORT_SESSION_MS / 1000)
        remote_stores.thaw_server()
        await until(lambda: store.state in (CONNECTED, LOST) and states[-1] is not SUSPENDED)
        if store.state is LOST:
            await store.start()
            await until(lambda: gone(store, "/e"))
        else:
            await store.sync()
            assert (await store.get("/e")).ephemeral_owner == store.session_id

    remote_stores.run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_confirmed_stays_and_what_was_not_happened_at_most_once(remote_stores: Stores, seed: int) -> None:
    """A counter is raised by compare and set, over connections that are lost at random moments."""

    async def scenario() -> None:
        chance = random.Random(seed)
        store = await remote_stores.open()
        await store.create("/n", b"0")
        followed: list[int] = []

        async def follow() -> None:
            changed = asyncio.Event()
            store.watch("/n", lambda path: changed.set())
            while True:
                await changed.wait()
                changed.clear()
                try:
                    followed.append(int((await store.get("/n")).data))
                except StoreUnavailableError:
                    continue  # It is called again.

        async def disturb() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0, 0.1))
                remote_stores.lose_connection("a")

        tasks = [asyncio.ensure_future(follow()), asyncio.ensure_future(disturb())]
        value = unknown = 0
        while value < 60:
            try:
                assert await store.set("/n", str(value + 1).encode(), value) == value + 1
                value += 1
            except StoreUnavailableError:
                unknown += 1
                await until(lambda: store.state is CONNECTED)
                try:
                    await store.sync()
                    node = await store.get("/n")
                except StoreUnavailableError:
                    continue
                assert node.version in (value, value + 1)
                assert node.data == str(node.version).encode()
                value = node.version
        tasks[1].cancel()
        await until(lambda: bool(followed) and followed[-1] == value)
        assert followed == sorted(followed)
        tasks[0].cancel()

    remote_stores.run(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_follower_misses_no_change_over_lost_connections_and_sessions(remote_stores: Stores, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        store = await remote_stores.open("a", SHORT_SESSION_MS)
        other = await remote_stores.open("b")
        followed = FollowedNodes(store)

        async def begin_again() -> None:
            while True:
                if store.state is LOST:
                    # The connection may still be cut.
                    with contextlib.suppress(StoreUnavailableError):
                        await store.start()
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(followed.follow()), asyncio.ensure_future(begin_again())]
        for round_number in range(4):
            if round_number == 2 and seed % 3 == 0:
                # Longer than the session: no watch of it tells of what is changed meanwhile.
                await store.create("/alive", b"", ephemeral=True)
                remote_stores.cut("a")
                await until(lambda: gone(other, "/alive"))
            for _ in range(chance.randrange(30)):
                if chance.random() < 0.2:
                    remote_stores.lose_connection("a")
                await random_change(other, chance)
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.02]))
            remote_stores.heal("a")
            expected = {path: await state(other, path) for path in PATHS}
            await until(lambda expected=expected: followed.known == expected)  # type: ignore[misc]
        for task in tasks:
            task.cancel()

    remote_stores.run(scenario)


def test_closing_ends_the_session_also_when_the_connection_is_lost(remote_stores: Stores) -> None:
    async def scenario() -> None:
        store = await remote_stores.open("a", SHORT_SESSION_MS)
        observer = await remote_stores.open("observer")
        await store.create("/e", b"", ephemeral=True)
        remote_stores.cut("a")
        remote_stores.lose_connection("a")
        await until(lambda: store.state is SUSPENDED)
        await store.close()
        assert store.state is LOST
        await until(lambda: gone(observer, "/e"))
        with pytest.raises(SessionExpiredError):
            await store.get("/e")
        remote_stores.heal("a")
        await store.start()
        with pytest.raises(NoNodeError):
            await store.get("/e")

    remote_stores.run(scenario)
