"""Writes that are in the log and not replicated in time: unknown to the caller, decided later, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.state_topic.log import FINISH_MS_MAX, UndecidedWriteError
from tests.unit.state_topic.surroundings import settle
from tests.unit.state_topic.test_log import KeyLog
from tests.virtual_time import run_virtually

TIMEOUT_S = 1.0


def in_log(scenario: Callable[[KeyLog, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Runs a scenario with a loaded log, whose appends wait for a gate."""

    async def main() -> None:
        log = KeyLog()
        log.metadata.add("__state", 1)
        log.new_partitions()
        assert await log.read_keys() == []
        log.replicas.gate = asyncio.Event()
        await scenario(log, log.replicas.gate)

    run_virtually(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def undecided(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(UndecidedWriteError) as caught:
        await work
    return caught.value.code


def test_a_write_that_is_not_replicated_in_time_is_unknown_and_is_applied_when_it_is_committed() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        began_s = now_s()
        assert await undecided(log.write_keys(b"a")) is ErrorCode.coordinator_not_available
        assert now_s() - began_s == pytest.approx(TIMEOUT_S)
        assert (log.applied, log.refused) == ([], [])
        gate.set()
        await settle()
        assert (log.applied, log.refused) == ([(b"a",)], [])

    in_log(scenario)


def test_the_callers_of_a_log_choose_the_code_of_an_unknown_write() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        told = {ErrorCode.request_timed_out: ErrorCode.network_exception}
        assert await undecided(log.write_keys(b"a", told=told)) is ErrorCode.network_exception
        assert await undecided(log.write_keys(b"b", told={})) is ErrorCode.request_timed_out
        gate.set()

    in_log(scenario)


def test_later_writes_wait_for_an_unknown_one_although_they_are_committed() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        await undecided(log.write_keys(b"a"))
        log.replicas.gate = None
        second = asyncio.ensure_future(log.write_keys(b"b"))
        await settle()
        assert (log.applied, second.done()) == ([], False)
        gate.set()
        assert await second == 1
        assert log.applied == [(b"a",), (b"b",)]

    in_log(scenario)


def test_an_unknown_write_is_refused_when_the_leadership_goes() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        await undecided(log.write_keys(b"a"))
        log.replicas.elsewhere = {0}
        log.resign(log.lost_partitions())
        assert (log.applied, log.refused) == ([], [(b"a",)])
        gate.set()
        await settle()
        assert (log.applied, log.refused) == ([], [(b"a",)])

    in_log(scenario)


def test_a_write_without_a_time_limit_waits_until_it_is_decided() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        batch = build_batch([Record(b"a", b"", 0)])
        writing = asyncio.ensure_future(log._write("k", batch, applied=lambda _: None, has_timeout=False))
        await asyncio.sleep(100 * TIMEOUT_S)
        assert not writing.done()
        gate.set()
        assert await writing == 0

    in_log(scenario)


def test_who_waits_for_the_writes_of_a_name_does_so_for_a_while_only() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        writing = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        began_s = now_s()
        with pytest.raises(KafkaError, match="key k: a write was not replicated within 1000 ms") as caught:
            await log.written("k")
        assert now_s() - began_s == pytest.approx(TIMEOUT_S)
        assert caught.value.code is ErrorCode.coordinator_not_available
        assert await log.written_so_far() is False
        await log.written("another")
        gate.set()
        await log.written("k")
        assert await log.written_so_far() is True
        await undecided(writing)
        assert log.applied == [(b"a",)]

    in_log(scenario)


@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.kafka_storage_error, "the disk failed")])
def test_work_of_several_writes_goes_on_after_its_caller_has_given_up(error: KafkaError | None) -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        ended: list[ErrorCode] = []

        async def work() -> None:
            batch = build_batch([Record(b"a", b"", 0)])
            try:
                await log._write("k", batch, applied=lambda _: None, has_timeout=False)
            except KafkaError as failure:
                ended.append(failure.code)
                raise
            ended.append(ErrorCode.none)

        assert await undecided(log.to_its_end(work())) is ErrorCode.coordinator_not_available
        assert ended == []
        log.replicas.error_at_commitment = error
        gate.set()
        await settle()
        assert ended == [ErrorCode.none if error is None else ErrorCode.not_coordinator]

    in_log(scenario)


def test_a_stop_is_bounded_and_refuses_what_is_not_replicated() -> None:
    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        batch = build_batch([Record(b"a", b"", 0)])
        refused: list[ErrorCode] = []
        writing = asyncio.ensure_future(
            log._write("k", batch, applied=lambda _: None, refused=lambda e: refused.append(e.code), has_timeout=False)
        )
        await settle()
        began_s = now_s()
        await log.finish_writes()
        assert now_s() - began_s == pytest.approx(min(TIMEOUT_S, FINISH_MS_MAX / 1000))
        with pytest.raises(KafkaError) as caught:
            await writing
        assert [caught.value.code, *refused] == [ErrorCode.coordinator_not_available] * 2
        gate.set()
        await settle()
        assert len(refused) == 1

    in_log(scenario)


def test_a_stop_that_ends_as_the_writes_do_is_a_stop() -> None:
    """The last write is committed at the very end of the time."""

    async def scenario(log: KeyLog, gate: asyncio.Event) -> None:
        writing = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        asyncio.get_running_loop().call_later(TIMEOUT_S, gate.set)
        await log.finish_writes()
        with pytest.raises(KafkaError):
            await writing

    in_log(scenario)
