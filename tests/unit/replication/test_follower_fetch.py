"""What the leader answers to its followers' fetches, through both codecs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.handlers.records import fetch
from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition, ReplicaFetchResponse, replica_fetch_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.fetch_response import TaggedPartition
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.runtime.read_ahead import ReadAhead
from tests.unit.replication.handled_requests import handled
from tests.unit.replication.replicated_node import OK, P0, P1, TOPIC_ID, Make, ReplicatedNode, run
from tests.unit.state_topic.surroundings import settle

LEADER_EPOCH = 0


def position(offset: int, *, index: int = 0, last_epoch: int = 0, **fields: int) -> ReplicaFetchPartition:
    return ReplicaFetchPartition(
        index,
        fields.get("leader_epoch", LEADER_EPOCH),
        offset,
        last_epoch if offset else -1,
        fields.get("start", 0),
        1_000_000,
    )


async def ask(
    node: ReplicatedNode,
    *positions: ReplicaFetchPartition,
    broker: int = 2,
    epoch: int | None = None,
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
) -> ReplicaFetchResponse:
    request = replica_fetch_request(
        broker,
        10 + broker if epoch is None else epoch,
        {TOPIC_ID: positions} if positions else {},
        wait_ms=wait_ms,
        bytes_min=1,
        bytes_max=1_000_000,
        session_id=session[0],
        session_epoch=session[1],
    )
    return await handled(node.services, request)


def asked(node: ReplicatedNode, *positions: ReplicaFetchPartition, **how: Any) -> Any:
    """The only partition of the answer."""
    [found] = asyncio.run(ask(node, *positions, **how)).partitions
    return found


def led(make: Make, records: int = 5) -> ReplicatedNode:
    node = make()
    node.start()
    for _ in range(records):
        node.append()
    return node


def test_a_follower_gets_records_above_the_watermark_and_moves_it_with_its_next_fetch(make: Make) -> None:
    node = led(make)
    first = asked(node, position(0))
    assert first.error_code == OK
    assert len(first.records) == node.partition().log.size_bytes
    assert first.high_watermark == 0
    assert asked(node, position(5), broker=3).high_watermark == 0
    assert asked(node, position(5)).high_watermark == 5, "the answer has the watermark that the fetch brought about"
    assert node.partition().high_watermark == 5


def test_a_follower_that_waits_is_woken_by_an_append_and_counted_before_it_waits(make: Make) -> None:
    async def scenario() -> None:
        node = led(make)
        other = asyncio.ensure_future(ask(node, position(5), broker=3, wait_ms=60_000))
        waiting = asyncio.ensure_future(ask(node, position(5), wait_ms=60_000))
        await settle()
        assert node.partition().high_watermark == 5
        assert not waiting.done()
        assert not other.done(), "a watermark alone wakes no follower (KAFKA-9731)"
        node.append()
        for each in (waiting, other):
            [found] = (await each).partitions
            assert found.records
            assert found.high_watermark == 5
        assert node.partition().high_watermark == 5, "an answer says nothing about the follower"

    run(scenario)


def test_a_partition_without_records_counts_beside_one_with_records(make: Make) -> None:
    node = led(make)
    both = [position(2, index=0), position(0, index=1)]
    assert len(asyncio.run(ask(node, *both)).partitions) == 2
    low = node.replicas.partition_replication
    for key, offset in ((P0, 2), (P1, 0)):
        assert node.partition(key)._followers[2].log_end_offset == offset
    assert low.followed


def test_an_error_of_a_partition_counts_nothing_for_it(make: Make) -> None:
    node = led(make)
    found = asked(node, position(6, last_epoch=-1))
    assert found.error_code == ErrorCode.offset_out_of_range
    assert node.partition()._followers[2].log_end_offset == -1


def test_a_broker_without_a_replica_gets_an_error(make: Make) -> None:
    assert asked(led(make), position(0), broker=4).error_code == ErrorCode.unknown_leader_epoch


def test_a_fetch_of_an_earlier_process_of_the_broker_is_refused_as_a_whole(make: Make) -> None:
    """KIP-903: its log may have been longer than that of the process that is registered now."""
    node = led(make)
    brokers = {**node.image.brokers, 2: BrokerRegistration(2, "here", 9092, epoch=20)}
    node.follow(replace(node.image, brokers=brokers, registrations=brokers))
    answer = asyncio.run(ask(node, position(5), epoch=19))
    assert (answer.error_code, answer.partitions) == (ErrorCode.stale_broker_epoch, [])
    assert node.partition()._followers[2].log_end_offset == -1
    assert asyncio.run(ask(node, position(5), epoch=21)).error_code == OK, "the leader's metadata is older"


def test_a_client_with_another_leader_epoch_is_told_the_leader(make: Make) -> None:
    """KIP-320: a fetch of another epoch was served, and went unnoticed past a truncation."""
    node = led(make)
    node.change(leader_epoch=3)
    found = asked(node, position(0, leader_epoch=2))
    assert (found.error_code, found.current_leader) == (ErrorCode.fenced_leader_epoch, (1, 3))
    assert asked(node, position(0, leader_epoch=4)).error_code == ErrorCode.unknown_leader_epoch
    node.change(leader=2, leader_epoch=4)
    found = asked(node, position(0, leader_epoch=4), broker=3)
    assert (found.error_code, found.current_leader) == (ErrorCode.not_leader_or_follower, (2, 4))


# ---- divergence ----


def with_epochs(make: Make, *counts: int) -> ReplicatedNode:
    """A leader with one record a batch: so many of each epoch."""
    node = make()
    node.start()
    for epoch, count in enumerate(counts):
        if epoch:
            node.change(leader_epoch=epoch)
        for _ in range(count):
            node.append()
    return node


def test_a_follower_that_diverges_learns_where(make: Make) -> None:
    """KIP-595: the greatest epoch up to the follower's, and its end."""
    node = with_epochs(make, 3, 2, 0)
    assert asked(node, position(5, last_epoch=1, leader_epoch=2)).diverging_epoch is None
    longer = asked(node, position(4, last_epoch=0, leader_epoch=2))
    assert (longer.error_code, longer.diverging_epoch) == (OK, (0, 3))
    assert longer.high_watermark == -1, "KAFKA-14704: it must not adopt a watermark"
    assert not longer.records
    assert node.partition()._followers[2].log_end_offset == 5, "what diverges does not count"


def test_a_diverging_follower_does_not_wait(make: Make) -> None:
    async def scenario() -> None:
        node = with_epochs(make, 3, 2)
        answer = await asyncio.wait_for(ask(node, position(4, last_epoch=0, leader_epoch=1), wait_ms=60_000), 5)
        assert answer.partitions[0].diverging_epoch == (0, 3)

    run(scenario)


def test_an_epoch_without_records_has_its_place_in_the_history(make: Make) -> None:
    """KIP-101, KIP-279: the epoch begins when leading begins, at the log end, not with its first record."""
    node = with_epochs(make, 3, 0, 0)
    assert node.partition().log.leader_epochs.entries() == [(0, 0), (2, 3)]
    found = asked(node, position(3, last_epoch=1, leader_epoch=2))
    assert found.diverging_epoch == (0, 3), "the follower's epoch 1 wrote records that this leader never had"


def test_kafka_7786_the_end_of_an_older_epoch_is_not_the_log_end(make: Make) -> None:
    """KAFKA-7786: an answer about an older epoch, applied in a newer one, would truncate too little."""
    node = with_epochs(make, 3, 2, 4)
    assert node.partition().end_of_epoch(1) == (1, 5)
    assert node.partition().end_of_epoch(2) == (2, 9)
    node.change(leader_epoch=5)
    assert node.partition().end_of_epoch(4) == (2, 9)


def test_a_leader_that_cannot_place_the_followers_epoch_lets_it_ask_for_the_ends(make: Make) -> None:
    node = make()
    node.start(epoch=4)
    assert asked(node, position(7, last_epoch=3, leader_epoch=4)).error_code == ErrorCode.offset_out_of_range


def test_a_follower_below_the_log_start_asks_for_the_ends_even_if_it_diverges(make: Make) -> None:
    node = with_epochs(make, 3, 3)
    for follower in (2, 3):
        node.fetched(follower)
    node.replicas.delete_records(P0, 4)
    assert asked(node, position(2, last_epoch=0, leader_epoch=1)).error_code == ErrorCode.offset_out_of_range


# ---- sessions ----


def in_session(make: Make) -> ReplicatedNode:
    node = led(make)
    node.services.fetch_sessions = FetchSessionCache(1, random.Random(1))
    return node


def test_a_session_of_a_follower_tells_what_changed_and_counts_every_partition(make: Make) -> None:
    node = in_session(make)
    both = [position(0, index=0), position(0, index=1)]
    first = asyncio.run(ask(node, *both, session=(0, 0)))
    assert first.session_id > 0
    assert len(first.partitions) == 2
    session = node.services.fetch_sessions.get(first.session_id)
    assert session is not None
    assert session.is_privileged
    second = asyncio.run(ask(node, position(5), session=(first.session_id, 1)))
    assert second.partitions == [], "neither records nor another watermark"
    node.fetched(3)
    third = asyncio.run(ask(node, session=(first.session_id, 2)))
    [moved] = third.partitions
    assert (moved.partition, moved.high_watermark) == (0, 5)
    assert asyncio.run(ask(node, session=(first.session_id, 9))).error_code == ErrorCode.invalid_fetch_session_epoch


def test_the_watermark_after_a_divergence_is_told_although_it_has_not_moved(make: Make) -> None:
    node = in_session(make)
    for follower in (2, 3):
        node.fetched(follower)
    node.change(leader_epoch=1)
    for follower in (2, 3):
        node.fetched(follower)
    node.append()
    first = asyncio.run(ask(node, position(6, last_epoch=0, leader_epoch=1), session=(0, 0)))
    assert first.partitions[0].diverging_epoch == (0, 5)
    again = asyncio.run(ask(node, position(5, last_epoch=0, leader_epoch=1), session=(first.session_id, 1)))
    assert again.partitions[0].high_watermark == 5


# ---- cold records ----


class Uncached(ReadAhead):
    """A page cache that holds no records."""

    def __init__(self) -> None:
        super().__init__()
        self.warmed = 0

    def is_cold(self, records: Any) -> bool:
        return bool(records.size)

    def is_cold_far_ahead(self, records: Any) -> bool:
        return True

    def warm(self, slices: Any) -> Any:
        self.warmed += len(slices)
        done = asyncio.get_running_loop().create_future()
        done.set_result([])
        return done


@pytest.mark.parametrize("wait_ms", [0, 1_000])
def test_cold_records_of_a_follower_never_go_through_the_sender_of_cold_records(make: Make, wait_ms: int) -> None:
    async def scenario() -> None:
        node = led(make, records=0 if wait_ms else 5)
        node.services.read_ahead = cache = Uncached()
        try:
            request = SimpleNamespace(
                replica_id=2,
                max_wait=timedelta(milliseconds=wait_ms),
                min_bytes=1,
                max_bytes=1_000_000,
                isolation_level=0,
                topics=[SimpleNamespace(topic_id=TOPIC_ID, partitions=[SimpleNamespace(**wire(position(0)))])],
            )
            context = node.context(fetch.API_KEY, 18)
            context.reader = SimpleNamespace(cold_fetches=0, sends_cold=lambda: True, logs_refusal=lambda _: True)
            answer = asyncio.ensure_future(awaited(fetch.handle(request, context)))
            await settle()
            if wait_ms:
                node.append()
            await answer
            assert cache.warmed == 1
            assert context.reader.cold_fetches == 0
        finally:
            cache.close()

    run(scenario)


def wire(each: ReplicaFetchPartition) -> dict[str, int]:
    return {
        "partition": each.partition,
        "current_leader_epoch": each.leader_epoch,
        "fetch_offset": each.fetch_offset,
        "last_fetched_epoch": each.last_fetched_epoch,
        "log_start_offset": each.log_start_offset,
        "partition_max_bytes": each.bytes_max,
    }


async def awaited(answer: Any) -> Any:
    return answer if isinstance(answer, list) else await answer


# ---- one node, clients ----


def test_a_consumer_at_a_follower_is_sent_to_the_leader(make: Make) -> None:
    node = led(make)
    node.change(leader=2, leader_epoch=1)
    [found] = node.fetch(0)
    assert found.error_code == ErrorCode.not_leader_or_follower
    told = fetch._with_leader(found, SimpleNamespace(topic_partition=P0), node.image)  # type: ignore[arg-type]
    assert isinstance(told, TaggedPartition)
    assert told.current_leader == (2, 1)


def test_a_single_node_writes_no_epochs_when_it_begins_to_lead(make: Make) -> None:
    node = make()
    node.start(isr=(1,), replicas=(1,))
    node.append()
    node.change(leader_epoch=3)
    assert node.partition().log.leader_epochs.entries() == [(0, 0)]
