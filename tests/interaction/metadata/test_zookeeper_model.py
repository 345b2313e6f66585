"""What the model of ZooKeeper adds for simulations: faults by name, contexts, the same trace for a seed."""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar, copy_context

import pytest

from headwater.logtier.metadata.store import Create, MetadataStore, SessionState, SetData, StoreUnavailableError
from tests.metadata_stores import ModelStores, until

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


def test_a_crashed_client_leaves_its_session_to_run_out_and_hears_nothing() -> None:
    stores = ModelStores()
    model = stores.model

    async def scenario() -> None:
        store = model.store("a", 2000)
        await store.start()
        states: list[SessionState] = []
        store.on_session(states.append)
        await store.create("/e", b"", ephemeral=True)
        model.crash("a")
        assert "/e" in model.nodes()
        again = model.store("a", 2000)
        await again.start()
        assert (await again.get("/e")).ephemeral_owner != again.session_id
        # Our own corpse, replaced in one transaction, as a broker does it on its locked folder.
        await again.multi([SetData("/e", b"1"), Create("/later", b"")])
        await until(lambda: "/e" not in model.nodes())
        assert states == []
        assert model.session_ids() == [again.session_id]
        await again.close()

    stores.run(scenario)


@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_a_one_way_cut_loses_only_one_direction(direction: str) -> None:
    stores = ModelStores()
    model = stores.model

    async def scenario() -> None:
        store = await stores.open("a", 6000)
        await store.create("/a", b"")
        model.cut("a", requests=direction == "requests", answers=direction == "answers")
        with pytest.raises(StoreUnavailableError):
            await store.set("/a", b"1")
        assert store.state is SUSPENDED
        assert model.nodes()["/a"].version == (0 if direction == "requests" else 1)
        model.heal("a")
        await until(lambda: store.state is CONNECTED)

    stores.run(scenario)


def test_a_cut_that_heals_in_time_loses_nothing() -> None:
    stores = ModelStores()
    model = stores.model

    async def scenario() -> None:
        store = await stores.open("a", 6000)
        states: list[SessionState] = []
        store.on_session(states.append)
        model.cut("a")
        creating = asyncio.ensure_future(store.create("/a", b""))
        await asyncio.sleep(1)
        assert not creating.done()
        model.heal("a")
        await creating
        assert states == []

    stores.run(scenario)


def test_a_silent_cut_suspends_before_the_session_ends_and_the_end_is_heard_of_when_it_heals() -> None:
    stores = ModelStores()
    model = stores.model

    async def scenario() -> None:
        store = await stores.open("a", 6000)
        session = store.session_id
        model.cut("a")
        await until(lambda: store.state is SUSPENDED)
        assert session in model.session_ids()
        await until(lambda: session not in model.session_ids())
        assert store.state is SUSPENDED
        model.heal("a")
        await until(lambda: store.state is LOST)

    stores.run(scenario)


def test_a_session_can_be_ended_by_name() -> None:
    stores = ModelStores()

    async def scenario() -> None:
        store = await stores.open("a")
        stores.model.expire(store.session_id)
        await until(lambda: store.state is LOST)

    stores.run(scenario)


BROKER: ContextVar[str] = ContextVar("BROKER", default="none")


def test_callbacks_run_in_the_context_of_their_client() -> None:
    stores = ModelStores()

    async def scenario() -> None:
        seen: list[tuple[str, str]] = []

        async def broker(name: str) -> MetadataStore:
            BROKER.set(name)
            store = await stores.open(name, 2000)
            store.on_session(lambda state: seen.append((name, BROKER.get())))
            store.watch("/a", lambda path: seen.append((name, BROKER.get())))
            await until(lambda: (name, name) in seen)
            return store

        loop = asyncio.get_running_loop()
        one = await loop.create_task(broker("one"), context=copy_context())
        two = await loop.create_task(broker("two"), context=copy_context())
        seen.clear()
        # A request of one is an event of the other.
        await one.create("/a", b"")
        stores.model.expire(two.session_id)
        await until(lambda: two.state is LOST and ("one", "one") in seen)
        assert set(seen) == {("one", "one"), ("two", "two")}

    stores.run(scenario)


def trace(seed: int) -> list[object]:
    """What three clients see under random faults."""
    stores = ModelStores(seed)
    events: list[object] = []

    async def client(name: str) -> None:
        store = await stores.open(name, 2000)
        store.on_session(lambda state: events.append((name, state)))
        store.watch("/n", lambda path: events.append((name, path)))
        for _ in range(50):
            try:
                events.append((name, await store.set("/n", name.encode())))
            except StoreUnavailableError as error:
                events.append((name, str(error)))
                await asyncio.sleep(0.3)
            if store.state is LOST:
                await store.start()

    async def scenario() -> None:
        first = await stores.open("first")
        await first.create("/n", b"")
        chance = random.Random(seed)

        async def disturb() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0, 0.5))
                name = chance.choice("abc")
                if chance.random() < 0.5:
                    stores.model.lose_connection(name)
                else:
                    stores.model.cut(name)
                    await asyncio.sleep(chance.uniform(0, 3))
                    stores.model.heal(name)

        disturbing = asyncio.ensure_future(disturb())
        await asyncio.gather(*map(client, "abc"))
        disturbing.cancel()
        events.append(stores.model.nodes()["/n"])

    stores.run(scenario)
    return events


def test_a_seed_gives_the_same_trace_again() -> None:
    traces = [trace(seed) for seed in (1, 1, 2)]
    assert traces[0] == traces[1] != traces[2]
    assert any(event == (name, LOST) for event in traces[0] for name in "abc")
