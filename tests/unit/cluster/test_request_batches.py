"""Requests to other brokers: one at a time to each, with all that came meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.cluster.request_batches import ITEMS_MAX, RequestBatches
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from tests.unit.state_topic.surroundings import settle
from tests.virtual_time import run_virtually

#: An item: what it is about, and its group.
Item = tuple[str, int]


class Exchange:
    """Keeps the requests that were sent, until a test answers them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[Item]]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.tasks = SpawnedTasks("test")
        self.batches: RequestBatches[Item, str] = RequestBatches(
            self._exchange, lambda each: each[0], lambda each: each[1], self.tasks
        )

    async def _exchange(self, broker_id: int, items: list[Item]) -> list[str]:
        self.sent.append((broker_id, items))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        await answer
        return [f"{name}{group}" for name, group in items]

    def ask(self, *items: Item, broker_id: int = 2) -> list[asyncio.Future[str]]:
        return [self.batches.ask(broker_id, each) for each in items]

    async def answer(self) -> None:
        self.answers.pop(0).set_result(None)
        await settle()


def exchanging(scenario: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        exchange = Exchange()
        await scenario(exchange)
        await exchange.tasks.cancel()

    run_virtually(main())


A, B, C = ("a", 0), ("b", 0), ("c", 0)


def test_what_is_asked_in_one_turn_goes_into_one_request_and_has_its_own_answer() -> None:
    async def scenario(exchange: Exchange) -> None:
        asked = exchange.ask(A, B, A)
        await settle()
        assert exchange.sent == [(2, [A, B, A])]
        await exchange.answer()
        assert [each.result() for each in asked] == ["a0", "b0", "a0"]

    exchanging(scenario)


def test_what_comes_while_a_request_is_under_way_goes_into_the_next_one() -> None:
    async def scenario(exchange: Exchange) -> None:
        [first] = exchange.ask(A)
        await settle()
        later = exchange.ask(B)
        await settle()
        later += exchange.ask(C)
        await settle()
        assert exchange.sent == [(2, [A])]
        await exchange.answer()
        assert (first.result(), exchange.sent[1:]) == ("a0", [(2, [B, C])])
        await exchange.answer()
        assert [each.result() for each in later] == ["b0", "c0"]

    exchanging(scenario)


def test_who_asks_again_as_soon_as_he_is_answered_is_answered_again() -> None:
    """The task of the request before is ending just then."""

    async def scenario(exchange: Exchange) -> None:
        async def asks_again() -> list[str]:
            return [await exchange.batches.ask(2, each) for each in (A, B, C)]

        asking = asyncio.ensure_future(asks_again())
        for _ in range(3):
            await settle()
            await exchange.answer()
        assert await asking == ["a0", "b0", "c0"]

    exchanging(scenario)


def test_brokers_do_not_wait_for_each_other() -> None:
    async def scenario(exchange: Exchange) -> None:
        exchange.ask(A)
        [other] = exchange.ask(A, broker_id=3)
        await settle()
        assert exchange.sent == [(2, [A]), (3, [A])]
        exchange.answers[1].set_result(None)
        await settle()
        assert other.result() == "a0"
        exchange.ask(B, broker_id=3)
        await settle()
        assert exchange.sent[2:] == [(3, [B])]

    exchanging(scenario)


def test_a_slot_has_one_group_in_a_request_and_others_wait_for_the_next_ones() -> None:
    async def scenario(exchange: Exchange) -> None:
        asked = exchange.ask(("a", 1), ("a", 2), ("b", 1), ("a", 1), ("a", 3), ("a", 2))
        for _ in range(3):
            await settle()
            await exchange.answer()
        assert [items for _, items in exchange.sent] == [
            [("a", 1), ("b", 1), ("a", 1)],
            [("a", 2), ("a", 2)],
            [("a", 3)],
        ]
        assert [each.result() for each in asked] == ["a1", "a2", "b1", "a1", "a3", "a2"]

    exchanging(scenario)


def test_a_request_has_a_maximum_of_items_and_the_rest_waits_for_the_next_one() -> None:
    async def scenario(exchange: Exchange) -> None:
        items = [(str(number), 0) for number in range(ITEMS_MAX + 1)]
        asked = exchange.ask(*items)
        for _ in range(2):
            await settle()
            await exchange.answer()
        assert [sent for _, sent in exchange.sent] == [items[:-1], items[-1:]]
        assert [each.result() for each in asked] == [f"{name}0" for name, _ in items]

    exchanging(scenario)


def test_nothing_is_sent_for_those_who_have_all_gone() -> None:
    async def scenario(exchange: Exchange) -> None:
        [gone] = exchange.ask(A)
        gone.cancel()
        await settle()
        assert exchange.sent == []
        exchange.ask(B)
        await settle()
        assert exchange.sent == [(2, [B])]

    exchanging(scenario)


def test_a_failure_reaches_everybody_of_its_request_and_the_next_one_is_sent() -> None:
    async def scenario(exchange: Exchange) -> None:
        failed = exchange.ask(A, B)
        await settle()
        [later] = exchange.ask(C)
        exchange.answers.pop(0).set_exception(BrokerConnectionError("no connection"))
        await settle()
        for each in failed:
            with pytest.raises(BrokerConnectionError, match="no connection"):
                await each
        await exchange.answer()
        assert later.result() == "c0"

    exchanging(scenario)


def test_who_has_gone_is_left_out_and_takes_nobody_along() -> None:
    async def scenario(exchange: Exchange) -> None:
        gone, stays = exchange.ask(A, B)
        await settle()
        waiting, gone_before = exchange.ask(C, A)
        gone.cancel()
        gone_before.cancel()
        await settle()
        await exchange.answer()
        assert stays.result() == "b0"
        assert exchange.sent == [(2, [A, B]), (2, [C])]
        await exchange.answer()
        assert waiting.result() == "c0"

    exchanging(scenario)


def test_a_failure_that_nobody_waits_for_any_more_is_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(exchange: Exchange) -> None:
        [gone] = exchange.ask(A)
        await settle()
        gone.cancel()
        exchange.answers.pop(0).set_exception(BrokerConnectionError("no connection"))
        await settle()

    exchanging(scenario)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_close_before_anything_is_sent_cancels_who_has_asked() -> None:
    async def scenario(exchange: Exchange) -> None:
        [asked] = exchange.ask(A)
        await exchange.tasks.cancel()
        await settle()
        assert (asked.cancelled(), exchange.sent) == (True, [])

    exchanging(scenario)


def test_a_close_cancels_all_who_wait_for_the_present_request_or_the_next_one() -> None:
    async def scenario(exchange: Exchange) -> None:
        asked = exchange.ask(A)
        await settle()
        asked += exchange.ask(B)
        await exchange.tasks.cancel()
        assert [each.cancelled() for each in asked] == [True, True]
        assert len(exchange.sent) == 1
        # Another one to ask begins afresh.
        [again] = exchange.ask(C)
        await settle()
        assert exchange.sent[1:] == [(2, [C])]
        exchange.answers[-1].set_result(None)
        assert await again == "c0"

    exchanging(scenario)
