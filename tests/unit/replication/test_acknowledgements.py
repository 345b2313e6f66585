"""acks=all: when a produce is answered, and with what, as its followers fetch, stop, or leadership goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.replication.partition_instructions import IsrDecision
from headwater.logtier.runtime.disk import Completion
from tests.unit.log.conftest import PromptDisk
from tests.unit.replication.replicated_node import OK, P0, P1, Make, run
from tests.unit.state_topic.surroundings import settle

Outcome = list[tuple[ErrorCode, int]]


async def waiting(answer: Outcome | Awaitable[Outcome]) -> asyncio.Future[Outcome]:
    """The task of an answer that has to wait, which it has begun to do."""
    assert isinstance(answer, Awaitable)
    task = asyncio.ensure_future(answer)
    await settle()
    assert not task.done()
    return task


def test_a_produce_with_acks_all_is_answered_when_the_whole_isr_has_it(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0))
        node.fetched(2)
        await settle()
        assert not answer.done(), "follower 3 has not fetched yet"
        node.fetched(3)
        assert await answer == [(OK, 0)]
        assert node.replicas.delayed_operations == 0

    run(scenario)


def test_other_acks_wait_for_no_follower(make: Make) -> None:
    node = make()
    node.start()
    assert node.produce(0, acks=1) == [(OK, 0)]
    assert node.produce(0, acks=0) == []
    assert node.partition().log.log_end_offset == 2
    assert node.partition().high_watermark == 0


def test_each_partition_of_a_request_has_its_own_outcome(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0, 1, 7))
        for follower in (2, 3):
            node.fetched(follower, key=P1)
        await settle()
        assert not answer.done()
        node.timers.pass_time(1.0)
        assert await answer == [
            (ErrorCode.request_timed_out, -1),
            (OK, 0),
            (ErrorCode.unknown_topic_or_partition, -1),
        ]

    run(scenario)


def test_a_timeout_of_nothing_is_over_at_once_and_one_below_that_as_well(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        for timeout_ms in (0, -5):
            answer = await waiting(node.produce(0, timeout_ms=timeout_ms))
            node.timers.pass_time(0)
            assert [code for code, _ in await answer] == [ErrorCode.request_timed_out]

    run(scenario)


def test_nothing_is_appended_while_the_isr_is_below_its_minimum(make: Make) -> None:
    node = make(min_insync_replicas="2")
    node.start(isr=(1,))
    assert node.produce(0) == [(ErrorCode.not_enough_replicas, -1)]
    assert node.partition().log.log_end_offset == 0
    assert node.produce(0, acks=1) == [(OK, 0)], "acks=1 asks for no minimum"


def test_an_isr_that_falls_below_its_minimum_refuses_what_waits(make: Make) -> None:
    async def scenario() -> None:
        node = make(min_insync_replicas="2")
        node.start(isr=(1, 2))
        answer = await waiting(node.produce(0))
        node.change(isr=(1,))
        assert await answer == [(ErrorCode.not_enough_replicas_after_append, -1)]
        assert node.partition().log.log_end_offset == 1

    run(scenario)


def test_an_isr_that_shrinks_to_its_minimum_acknowledges_what_waits(make: Make) -> None:
    async def scenario() -> None:
        node = make(min_insync_replicas="2")
        node.start()
        answer = await waiting(node.produce(0, timeout_ms=60_000))
        node.fetched(2)
        await settle()
        node.clock.ms += 30_001
        node.fetched(2)
        assert not node.proposals
        node.timers.pass_time(5)
        [proposal, _] = sorted(node.proposals, key=lambda each: each.topic_partition)
        assert proposal.isr == (1, 2)
        assert not answer.done()
        decision = IsrDecision(OK, proposal.leader_epoch, proposal.partition_epoch + 1, proposal.isr)
        node.replicas.partition_replication.isr_decided(proposal, decision)
        assert await answer == [(OK, 0)]

    run(scenario)


def test_leadership_that_goes_is_told_and_the_records_may_be_lost(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0))
        node.change(leader=2, leader_epoch=1)
        assert await answer == [(ErrorCode.not_leader_or_follower, -1)]

    run(scenario)


def test_leadership_that_goes_and_comes_back_acknowledges_nothing_of_before(make: Make) -> None:
    """KAFKA-7235's kin: in between another leader may have put other records at these offsets."""

    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0))
        node.change(leader=1, leader_epoch=2, isr=(1,))
        assert node.partition().high_watermark == 1
        assert await answer == [(ErrorCode.not_leader_or_follower, -1)]

    run(scenario)


def test_a_topic_that_goes_and_one_of_its_name_acknowledge_nothing(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0))
        node.delete()
        assert await answer == [(ErrorCode.unknown_topic_or_partition, -1)]

    run(scenario)


def test_a_folder_that_fails_refuses_what_waits(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0, 1))
        node.logs.directories[0].health.fail("broken")
        node.timers.pass_time(0.1)
        assert await answer == [(ErrorCode.kafka_storage_error, -1)] * 2

    run(scenario)


def test_a_client_that_goes_leaves_nothing_behind(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        answer = await waiting(node.produce(0, 1))
        assert node.replicas.delayed_operations == 1
        answer.cancel()
        await settle()
        assert node.replicas.delayed_operations == 0
        assert all(handle.is_cancelled for _, call, handle in node.timers.pending if "_expire" in repr(call))

    run(scenario)


def test_a_retry_of_what_waits_waits_as_well_and_gets_the_same_offset(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first = await waiting(node.produce(0, **sequence))
        retry = await waiting(node.produce(0, **sequence))
        for follower in (2, 3):
            node.fetched(follower)
        assert await first == await retry == [(OK, 0)]
        assert node.produce(0, **sequence) == [(OK, 0)], "replicated: there is nothing to wait for"
        assert node.partition().log.log_end_offset == 1

    run(scenario)


def test_a_request_that_all_followers_have_already_is_answered_at_once(make: Make) -> None:
    """A partition of one replica beside replicated ones."""
    node = make()
    node.start(isr=(1,), replicas=(1,))
    assert node.produce(0, 1) == [(OK, 0), (OK, 0)]
    assert not node.replicas.followed


class SlowDisk(PromptDisk):
    """Syncs when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[Future[None]] = []

    def fsync_in_background(self, files: object, directories: object = ()) -> Completion:
        self.syncs.append(Future())
        return self.syncs[-1]

    def sync(self, error: OSError | None = None) -> None:
        syncs, self.syncs = self.syncs, []
        for each in syncs:
            each.set_exception(error) if error else each.set_result(None)


@pytest.mark.parametrize("followers_first", [False, True])
def test_the_device_and_the_followers_are_waited_for_together(make: Make, followers_first: bool) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        node = make(disk=disk, flush_messages="1")
        node.start()

        def follow() -> None:
            for follower in (2, 3):
                node.fetched(follower)

        answer = await waiting(node.produce(0))
        steps = [follow, disk.sync]
        for step in steps if followers_first else reversed(steps):
            assert not answer.done()
            step()
            await settle()
        assert await answer == [(OK, 0)]

    run(scenario)


def test_a_device_that_fails_refuses_though_the_followers_have_it(make: Make) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        node = make(disk=disk, flush_messages="1")
        node.start()
        answer = await waiting(node.produce(0))
        for follower in (2, 3):
            node.fetched(follower)
        disk.sync(OSError(5, "Input/output error"))
        assert await answer == [(ErrorCode.kafka_storage_error, -1)]

    run(scenario)


def test_a_sync_that_cannot_begin_is_told_before_the_followers_have_it(make: Make) -> None:
    """No file descriptor was left: the folder is fine, and a retry succeeds later."""

    async def scenario() -> None:
        disk = SlowDisk()
        node = make(disk=disk, flush_messages="1")
        node.start()
        answer = await waiting(node.produce(0))
        disk.sync(OSError(24, "Too many open files"))
        assert await answer == [(ErrorCode.kafka_storage_error, -1)]
        assert node.replicas.delayed_operations == 0

    run(scenario)


def test_acks_of_the_leader_wait_for_its_device_alone(make: Make) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        node = make(disk=disk, flush_messages="1")
        node.start()
        answer = await waiting(node.produce(0, acks=1))
        disk.sync()
        assert await answer == [(OK, 0)]

    run(scenario)


def test_a_coordinators_write_waits_for_the_isr_and_not_for_ever(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        replication = node.replicas.replication(P0, node.append(acks=-1), 500)
        assert replication is not None
        task = asyncio.ensure_future(replication)
        await settle()
        node.timers.pass_time(0.5)
        with pytest.raises(KafkaError) as raised:
            await task
        assert raised.value.code is ErrorCode.request_timed_out
        for follower in (2, 3):
            node.fetched(follower)
        again = node.replicas.replication(P0, node.append(acks=-1), 500)
        assert again is not None
        task = asyncio.ensure_future(again)
        for follower in (2, 3):
            node.fetched(follower)
        await task

    run(scenario)


def test_a_marker_waits_for_the_isr(make: Make) -> None:
    async def scenario() -> None:
        node = make(min_insync_replicas="2")
        node.start(isr=(1, 2))
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "coordinator_epoch": 0,
            "commit": False,
            "transaction_version": 1,
        }
        info = node.replicas.append_end_txn_marker(P0, **marker)  # type: ignore[arg-type]
        replication = node.replicas.replication(P0, info, 500)
        assert replication is not None
        task = asyncio.ensure_future(replication)
        await settle()
        assert not task.done()
        node.fetched(2)
        await task
        node.change(isr=(1,))
        with pytest.raises(KafkaError) as refused:
            node.replicas.append_end_txn_marker(P0, **marker)  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.not_enough_replicas

    run(scenario)
