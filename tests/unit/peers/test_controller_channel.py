"""Requests to a controller that moves, is away, or does not answer; on a virtual clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import (
    BrokerConnectionError,
    ClientError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from headwater.logtier.peers.controller_channel import (
    CLUSTER_AUTHORIZATION_FAILED,
    NOT_CONTROLLER,
    STALE_BROKER_EPOCH,
    ControllerChannel,
)
from headwater.logtier.peers.errors import PeersClosedError
from tests.virtual_time import LoopClock, run_virtually

Answer = int | ClientError | None
REQUEST_MS = 30_000


class Brokers:
    """Whoever is asked takes the next answer: an error code, an error, or None for no answer in time."""

    def __init__(self, *answers: Answer, turns: int = 1) -> None:
        self.answers = list(answers)
        self.controller: int | None = 1
        self.sent: list[tuple[int, bytes, int]] = []
        self.clock = LoopClock()
        self.channel = ControllerChannel(lambda: self.controller, self.send, self.clock, lambda: 0.5, turns=turns)
        self.epoch = 5

    def send(self, broker_id: int, request: Request[Any], timeout_ms: int) -> asyncio.Future[Any]:
        self.sent.append((broker_id, request.body, timeout_ms))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        answer = self.answers.pop(0) if self.answers else 0
        if answer is None:
            loop.call_later(timeout_ms / 1000, self.end, future, RequestTimeoutError("no answer in time"))
        else:
            loop.call_later(0.001, self.end, future, answer)
        return future

    @staticmethod
    def end(future: asyncio.Future[Any], answer: int | ClientError) -> None:
        if future.done():
            return
        if isinstance(answer, ClientError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def request(self) -> Request[int]:
        return Request(56, 3, True, str(self.epoch).encode(), lambda body: 0, True)

    async def call(self, **options: Any) -> int:
        return await self.channel.call(self.request, lambda code: code, **options)


def virtually(test: Callable[[], Any]) -> None:
    run_virtually(test())


def test_the_first_answer_of_the_controller_counts_whatever_its_code() -> None:
    async def run() -> None:
        brokers = Brokers(74)
        assert await brokers.call() == 74
        assert brokers.sent == [(1, b"5", REQUEST_MS)]

    virtually(run)


def test_another_controller_is_looked_up_for_each_attempt_and_the_request_built_again() -> None:
    async def run() -> None:
        brokers = Brokers(NOT_CONTROLLER, BrokerConnectionError("broken"), None, STALE_BROKER_EPOCH, 0)
        calling = asyncio.ensure_future(brokers.call(retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH)))
        await asyncio.sleep(0.05)
        brokers.controller, brokers.epoch = 2, 6
        assert await calling == 0
        assert [(broker, body) for broker, body, _ in brokers.sent] == [(1, b"5")] + [(2, b"6")] * 4

    virtually(run)


def test_a_stale_broker_epoch_is_an_answer_unless_the_caller_repeats_it() -> None:
    async def run() -> None:
        assert await Brokers(STALE_BROKER_EPOCH).call() == STALE_BROKER_EPOCH

    virtually(run)


def test_without_a_time_limit_the_request_is_repeated_for_hours() -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.controller = None
        calling = asyncio.ensure_future(brokers.call())
        await asyncio.sleep(4 * 3600)
        assert not calling.done()
        brokers.controller = 3
        assert await calling == 0
        assert [broker for broker, _, _ in brokers.sent] == [3]

    virtually(run)


def test_the_time_limit_is_kept_and_names_the_last_failure() -> None:
    async def run() -> None:
        brokers = Brokers(*[NOT_CONTROLLER] * 100)
        begun_ms = brokers.clock.monotonic_ms()
        with pytest.raises(RequestTimeoutError, match=r"no decision of the controller .*: .* NOT_CONTROLLER"):
            await brokers.call(timeout_ms=5_000)
        assert brokers.clock.monotonic_ms() - begun_ms <= 5_000
        assert all(timeout_ms <= 5_000 for _, _, timeout_ms in brokers.sent)
        assert 5 <= len(brokers.sent) <= 10

    virtually(run)


def test_a_controller_that_does_not_answer_takes_no_longer_than_the_time_limit() -> None:
    async def run() -> None:
        brokers = Brokers(None)
        with pytest.raises(RequestTimeoutError, match="no answer in time"):
            await brokers.call(timeout_ms=2_000)
        assert brokers.sent == [(1, b"5", 2_000)]

    virtually(run)


def test_a_change_of_the_metadata_ends_the_wait_for_the_next_attempt() -> None:
    async def run() -> None:
        brokers = Brokers(*[NOT_CONTROLLER] * 100)
        calling = asyncio.ensure_future(brokers.call())
        await asyncio.sleep(4)
        attempts = len(brokers.sent)
        brokers.answers.clear()
        brokers.channel.metadata_changed()
        await asyncio.sleep(0.01)
        assert calling.done() and len(brokers.sent) == attempts + 1

    virtually(run)


@pytest.mark.parametrize("final", [UnsupportedVersionError("too old"), PeersClosedError("closed")])
def test_what_no_repetition_mends_is_raised_at_once(final: ClientError) -> None:
    async def run() -> None:
        brokers = Brokers(final)
        with pytest.raises(type(final)):
            await brokers.call()
        assert len(brokers.sent) == 1

    virtually(run)


def test_a_request_is_sent_after_the_decision_about_the_previous_one() -> None:
    async def run() -> None:
        brokers = Brokers(NOT_CONTROLLER, NOT_CONTROLLER)

        def numbered(number: int) -> Callable[[], Request[int]]:
            return lambda: Request(56, 3, True, str(number).encode(), lambda body: 0, True)

        calls = [
            asyncio.ensure_future(brokers.channel.call(numbered(number), lambda code: code)) for number in range(3)
        ]
        await asyncio.gather(*calls)
        assert [body for _, body, _ in brokers.sent] == [b"0", b"0", b"0", b"1", b"2"]

    virtually(run)


def test_a_cancelled_call_gives_its_turn_to_the_next_one() -> None:
    async def run() -> None:
        brokers = Brokers(None, 0)
        first, second, third = (asyncio.ensure_future(brokers.call()) for _ in range(3))
        await asyncio.sleep(1)
        second.cancel()
        first.cancel()
        assert await third == 0
        assert first.cancelled() and second.cancelled()
        assert len(brokers.sent) == 2
        assert await brokers.call() == 0

    virtually(run)


def test_a_call_that_is_cancelled_between_two_attempts_leaves_nothing_behind() -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.controller = None
        calling = asyncio.ensure_future(brokers.call())
        await asyncio.sleep(2.5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        brokers.controller = 1
        assert await brokers.call() == 0

    virtually(run)


def test_the_wait_for_a_turn_counts_to_the_time_limit() -> None:
    async def run() -> None:
        brokers = Brokers(None)
        first = asyncio.ensure_future(brokers.call())
        await asyncio.sleep(1)
        with pytest.raises(RequestTimeoutError, match="earlier requests to the controller took 500 ms"):
            await brokers.call(timeout_ms=500)
        assert await first == 0

    virtually(run)


def test_several_turns_run_side_by_side() -> None:
    async def run() -> None:
        brokers = Brokers(None, None, 0, turns=2)
        calls = [asyncio.ensure_future(brokers.call()) for _ in range(3)]
        await asyncio.sleep(1)
        assert len(brokers.sent) == 2
        assert await asyncio.gather(*calls) == [0, 0, 0]

    virtually(run)


def test_a_controller_that_is_away_is_one_line_and_one_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.controller = None
        calling = asyncio.ensure_future(brokers.call())
        await asyncio.sleep(120)
        brokers.controller = 1
        await calling
        await brokers.call()

    caplog.set_level(logging.INFO)
    virtually(run)
    assert [record.getMessage() for record in caplog.records if "controller" in record.name] == [
        "no decision of the controller: no controller is known; the broker tries again",
        "the controller answers",
    ]


def test_a_controller_that_does_not_authorize_the_broker_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        brokers = Brokers(*[CLUSTER_AUTHORIZATION_FAILED] * 5)
        assert [await brokers.call() for _ in range(6)] == [CLUSTER_AUTHORIZATION_FAILED] * 5 + [0]
        await brokers.call()

    caplog.set_level(logging.INFO)
    virtually(run)
    refused, answers = [record.getMessage() for record in caplog.records if "controller" in record.name]
    assert "CLUSTER_AUTHORIZATION_FAILED; add the principal of this broker to super.users" in refused
    assert answers == "the controller answers"
