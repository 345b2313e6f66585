"""The list of changes on stores with connections to lose: every follower ends with the controller's nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.metadata.change_list import ListMovedError
from headwater.logtier.metadata.shared_store import CHANGES, SharedMetadataStore
from headwater.logtier.metadata.store import Create, Delete, Operation, SessionState, SetData, StoreUnavailableError
from tests.metadata_stores import Stores, until

WRITES = 40
PATHS = [f"/t/{index}" for index in range(4)]


def below_t(store: SharedMetadataStore) -> Callable[[], Awaitable[list[str]]]:
    async def find() -> list[str]:
        return [f"/t/{name}" for name in await store.children("/t")]

    return find


@pytest.mark.parametrize("seed", range(8))
def test_followers_end_with_the_nodes_of_the_store_over_lost_connections(remote_stores: Stores, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        writer = await remote_stores.open("controller")
        await writer.multi([Create(CHANGES, b"0"), Create("/t", b"")])
        reader = await remote_stores.open("follower")
        known: dict[str, bytes] = {}
        position = 0

        async def write() -> None:
            for number in range(WRITES):
                await change(number)
                await asyncio.sleep(chance.choice([0, 0, 0.005]))

        async def change(number: int) -> None:
            """One random change; after a loss, a controller begins anew, as one that takes over."""
            while True:
                controller = SharedMetadataStore(writer)
                try:
                    await controller.sync()
                    _, nodes = await controller.snapshot(below_t(controller))
                    path = chance.choice(PATHS)
                    operation: Operation = Create(path, b"%d" % number)
                    if path in nodes:
                        operation = Delete(path) if chance.random() < 0.4 else SetData(path, b"%d" % number)
                    await controller.append([operation])
                except ListMovedError:
                    raise AssertionError("nobody else writes") from None
                except StoreUnavailableError:
                    await until(lambda: writer.state is SessionState.CONNECTED)
                else:
                    return

        async def follow() -> None:
            nonlocal known, position
            follower = SharedMetadataStore(reader)
            has_read = False
            while True:
                try:
                    if not has_read:
                        position, known = await follower.snapshot(below_t(follower))
                        has_read = True
                    for each in await follower.changes_from(position):
                        assert each.number == position
                        position += 1
                        for path, data in each.nodes:
                            if data is None:
                                del known[path]
                            else:
                                known[path] = data
                except StoreUnavailableError:
                    # It goes on where it was, or reads all nodes again.
                    has_read = chance.random() < 0.5
                    await until(lambda: reader.state is SessionState.CONNECTED)

        async def disturb() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0, 0.1))
                remote_stores.lose_connection(chance.choice(["controller", "follower"]))

        tasks = [asyncio.ensure_future(follow()), asyncio.ensure_future(disturb())]
        await write()
        tasks[1].cancel()
        end = 0
        expected: dict[str, bytes] = {}

        async def is_read() -> bool:
            nonlocal end, expected
            end = int((await writer.get(CHANGES)).data)
            names = await writer.children("/t")
            expected = {f"/t/{name}": (await writer.get(f"/t/{name}")).data for name in names}
            return True

        # The last loss may be on its way.
        await until(is_read)
        assert end >= WRITES
        await until(lambda: position == end or tasks[0].done())
        assert known == expected
        tasks[0].cancel()

    remote_stores.run(scenario)
