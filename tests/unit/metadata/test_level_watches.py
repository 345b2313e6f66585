"""Level-triggered watches over one-shot ones that fire, fail and are lost at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.metadata import level_watches
from headwater.logtier.metadata.level_watches import FireWatch, LevelWatches
from headwater.logtier.metadata.store import NoAuthError, StoreUnavailableError


class OneShotWatches:
    """A client whose requests to arm a watch the test answers."""

    def __init__(self) -> None:
        self.is_connected = True
        self.arming: list[asyncio.Future[None]] = []
        self.fire: FireWatch | None = None
        self.calls: list[str] = []
        self.watches = LevelWatches(self.arm, lambda: self.is_connected)

    async def arm(self, path: str, fire: FireWatch) -> None:
        request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arming.append(request)
        await request
        # The same object each time: kazoo keeps a set of them.
        assert self.fire in (None, fire)
        self.fire = fire

    async def answer(self, error: Exception | None = None) -> None:
        request = self.arming.pop()
        if error is None:
            request.set_result(None)
        else:
            request.set_exception(error)
        await settle()

    def event(self) -> None:
        assert self.fire is not None
        self.fire(None)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def scenario(test: Callable[[OneShotWatches], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            client = OneShotWatches()
            client.watches.add("/a", client.calls.append)
            await settle()
            await test(client)
            await client.watches.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@scenario
async def test_a_callback_is_called_only_when_the_watch_is_armed(client: OneShotWatches) -> None:
    assert (client.calls, len(client.arming)) == ([], 1)
    await client.answer()
    assert (client.calls, client.arming) == (["/a"], [])
    client.event()
    client.event()
    await settle()
    assert (client.calls, len(client.arming)) == (["/a"], 1)
    await client.answer()
    assert (client.calls, client.arming) == (["/a"] * 2, [])


@scenario
async def test_an_event_while_a_watch_is_being_armed_arms_it_once_more(client: OneShotWatches) -> None:
    await client.answer()
    client.event()
    await settle()
    # The first of two requests set its watch, which fires before the second is answered.
    client.event()
    await client.answer()
    assert (len(client.calls), len(client.arming)) == (2, 1)
    await client.answer()
    assert (len(client.calls), client.arming) == (3, [])


@scenario
async def test_after_a_lost_connection_all_is_armed_and_called_again(client: OneShotWatches) -> None:
    """A watch event lost in a reconnect."""
    await client.answer()
    client.is_connected = False
    client.event()
    await settle()
    assert client.arming == []
    client.is_connected = True
    client.watches.connected()
    await settle()
    await client.answer()
    assert client.calls == ["/a"] * 2


@scenario
async def test_a_new_connection_before_the_failure_on_the_old_one_is_noticed(client: OneShotWatches) -> None:
    await client.answer()
    client.event()
    await settle()
    # The failure is on its way to the task while the connection comes back.
    client.arming.pop().set_exception(StoreUnavailableError("/a"))
    client.watches.connected()
    await settle()
    await client.answer()
    assert (client.calls, client.arming) == (["/a"] * 2, [])


@scenario
async def test_a_failure_without_a_lost_connection_is_repeated(client: OneShotWatches) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(level_watches, "RETRY_S", 0)
        await client.answer(StoreUnavailableError("/a"))
        await client.answer()
    assert (client.calls, client.arming) == (["/a"], [])


@scenario
async def test_a_watch_that_is_not_admitted_waits_for_the_next_connection(client: OneShotWatches) -> None:
    await client.answer(NoAuthError("/a"))
    assert (client.calls, client.arming) == ([], [])
    client.watches.connected()
    await settle()
    await client.answer()
    assert client.calls == ["/a"]


@scenario
async def test_watches_outlast_a_session_that_was_closed_while_they_were_being_armed(client: OneShotWatches) -> None:
    await client.answer()
    client.event()
    # The task to arm it has not begun.
    client.is_connected = False
    await client.watches.close()
    client.is_connected = True
    client.watches.connected()
    await settle()
    await client.answer()
    assert client.calls == ["/a"] * 2


@scenario
async def test_a_cancelled_watch_is_neither_armed_nor_called(client: OneShotWatches) -> None:
    await client.answer()
    other: list[str] = []
    cancel = client.watches.add("/a", other.append)
    await settle()
    await client.answer()
    assert other == ["/a"]
    cancel()
    client.event()
    await settle()
    await client.answer()
    assert (len(client.calls), other) == (3, ["/a"])
