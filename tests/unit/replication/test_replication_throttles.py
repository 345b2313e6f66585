"""KIP-73: replicas that are moved take no more than their rate, and those for which producers wait as they need."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.quota.replication_quota import ReplicationQuota
from headwater.logtier.replication.partition_reads import FetchingFollower, FetchPartition
from headwater.logtier.replication.replication_throttles import ReplicationThrottle, ReplicationThrottles
from headwater.logtier.replication.throttled_reads import record_answer
from tests.unit.replication.replica_cluster import Cluster, led_by, until
from tests.unit.replication.replica_cluster import run as run_cluster
from tests.unit.replication.replicated_node import OK, P0, P1, Make, ReplicatedNode, run
from tests.unit.replication.test_fetch_plan import plan_of, planned
from tests.unit.state_topic.surroundings import settle

RATE = 1_000
THROTTLED = ("leader_replication_throttled_replicas", "follower_replication_throttled_replicas")


# ---- the quota ----


@given(st.integers(1, 5_000), st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 20_000)), max_size=30))
def test_what_is_replicated_is_at_most_the_rate_a_burst_and_one_answer(
    rate: int, answers: list[tuple[int, int]]
) -> None:
    quota = ReplicationQuota()
    quota.change_rate(rate, 0)
    now_ms = sent = largest = 0
    for pause_ms, size in answers:
        now_ms += pause_ms
        if quota.allowance(now_ms):
            assert quota.wait_ms(now_ms) == 0
            quota.record(size, now_ms)
            sent, largest = sent + size, max(largest, size)
        else:
            assert 0 < quota.wait_ms(now_ms) <= 1_000
    assert sent <= rate * now_ms / 1_000 + rate + largest


def test_a_rate_of_zero_halts_and_the_greatest_one_permits_all() -> None:
    quota = ReplicationQuota()
    quota.change_rate(0, 5)
    assert (quota.allowance(9_000), quota.wait_ms(9_000)) == (0, 1_000)
    quota.change_rate(LONG_MAX, 9_000)
    assert quota.allowance(9_000) == LONG_MAX
    quota.record(1 << 40, 9_000)
    assert not quota.wait_ms(9_000)


def test_a_higher_rate_pays_back_an_overdraft_sooner() -> None:
    quota = ReplicationQuota()
    quota.change_rate(10, 0)
    quota.record(10_010, 0)
    assert quota.wait_ms(0) == 1_000
    quota.change_rate(100_000, 0)
    assert quota.wait_ms(0) == 101
    quota.change_rate(5, 10_000)
    assert quota.allowance(10_000) == 5


@given(st.integers(0, 5_000), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20_000)), max_size=30))
def test_what_is_exempt_uses_up_the_rate_and_is_paid_for_within_seconds(
    rate: int, answers: list[tuple[int, int]]
) -> None:
    quota = ReplicationQuota()
    quota.change_rate(rate, 0)
    now_ms = 0
    for pause_ms, size in answers:
        now_ms += pause_ms
        left = quota.allowance(now_ms)
        quota.record(size, now_ms, is_exempt=True)
        assert quota.allowance(now_ms) == max(0, left - size)
    assert bool(quota.allowance(now_ms + 2_001)) == (rate > 0)


# ---- which replicas ----


@pytest.mark.parametrize(
    ("entries", "throttled"),
    [((), []), (("*",), [0, 1, 2]), (("0:1", "1:2", "2:1", "2:3"), [0, 2]), (("1:2",), [])],
)
def test_only_the_named_replicas_of_this_broker_are_throttled(entries: tuple[str, ...], throttled: list[int]) -> None:
    throttle = ReplicationThrottle(1)
    throttle.configure("t", entries)
    assert [each for each in range(3) if throttle.is_throttled(TopicPartition("t", each))] == throttled
    assert not throttle.is_throttled(TopicPartition("u", 0))


def test_leaders_and_followers_have_replicas_and_rates_of_their_own() -> None:
    throttles = ReplicationThrottles(1)
    throttles.configure("t", TopicConfig(leader_replication_throttled_replicas=("0:1",)))
    active: list[tuple[bool, bool]] = []
    throttles.change_rates(LONG_MAX, RATE, 0)
    active.append((throttles.leader.is_active, throttles.follower.is_active))
    throttles.change_rates(RATE, RATE, 0)
    active.append((throttles.leader.is_active, throttles.follower.is_active))
    throttles.forget("t")
    active.append((throttles.leader.is_active, throttles.follower.is_active))
    assert active == [(False, False), (True, False), (False, False)]


# ---- the leader ----


def leader(make: Make, isr: tuple[int, ...] = (1, 2)) -> ReplicatedNode:
    """Of partition 0 all replicas are throttled; its log has more than a second of the rate."""
    node = make(leader_replication_throttled_replicas="0:1")
    node.start(isr=isr)
    node.replicas.throttles.change_rates(RATE, LONG_MAX, 0)
    for _ in range(30):
        node.append()
        node.append(P1)
    for follower in isr[1:]:
        node.fetched(follower)
        node.fetched(follower, key=P1)
    return node


def fetch(
    node: ReplicatedNode, follower: int, offset: int = 0, other: int | None = None, wait_ms: int = 0, bytes_min: int = 1
) -> Any:
    offsets = {P0: offset, P1: offset if other is None else other}
    wanted = [FetchPartition(key, None, each, 100_000, is_of_replica=True) for key, each in offsets.items()]
    fetched = node.replicas.fetches.fetch(
        wanted,
        bytes_max=1_000_000,
        bytes_min=bytes_min,
        wait_ms_max=wait_ms,
        follower=FetchingFollower(follower, 10 + follower),
    )
    if isinstance(fetched, list):
        now_ms = node.clock.monotonic_ms()
        throttle, partition_of = node.replicas.throttles.leader, node.replicas.usable_partition
        record_answer(throttle, wanted, fetched, follower, partition_of, now_ms)
    return fetched


def sizes(fetched: Any) -> list[int]:
    assert [each.error_code for each in fetched] == [OK, OK]
    return [each.size for each in fetched]


def test_a_follower_out_of_sync_gets_the_rate_and_other_partitions_whole(make: Make) -> None:
    node = leader(make)
    whole = node.partition().log.size_bytes
    first, other = sizes(fetch(node, 3))
    assert 0 < first <= RATE < whole
    assert other == whole
    while node.replicas.throttles.leader.allowance(node.clock.monotonic_ms()):
        fetch(node, 3)
    nothing, other = sizes(fetch(node, 3))
    assert (nothing, other) == (0, whole)
    node.clock.ms += 1_000
    assert sizes(fetch(node, 3))[0] > 0


def test_a_follower_in_sync_is_not_held_up_and_counts(make: Make) -> None:
    node = leader(make)
    whole = node.partition().log.size_bytes
    assert sizes(fetch(node, 2)) == [whole, whole]
    assert sizes(fetch(node, 3)) == [0, whole]
    assert sizes(fetch(node, 2)) == [whole, whole]


def test_hours_of_replicas_in_sync_do_not_hold_up_the_others_for_hours(make: Make) -> None:
    node = leader(make)
    for _ in range(3_600):
        assert sizes(fetch(node, 2))[0] > RATE
        node.clock.ms += 1_000
    node.clock.ms += 2_000
    assert sizes(fetch(node, 3))[0] > 0


@pytest.mark.parametrize("decides", [True, False])
def test_a_follower_that_has_reached_the_watermark_and_so_joins_is_not_held_up(make: Make, decides: bool) -> None:
    """The watermark waits for it already while the controller decides."""
    node = leader(make, isr=(1,))
    node.replicas.throttles.change_rates(0, LONG_MAX, 0)
    fetch(node, 2, offset=30)
    assert {each.isr for each in node.proposals} == {(1, 2)}
    node.append()
    if decides:
        node.change(isr=(1, 2))
    assert node.partition().high_watermark == 30
    assert sizes(fetch(node, 2, offset=30))[0] > 0
    assert sizes(fetch(node, 3))[0] == 0


def test_a_follower_for_which_the_watermark_waits_before_it_joins_is_not_held_up(make: Make) -> None:
    node = leader(make, isr=(1,))
    fetch(node, 2)
    node.append()
    assert node.partition().high_watermark == 31, "the end, without the follower"
    node.replicas.throttles.change_rates(0, LONG_MAX, 0)
    caught_up = sizes(fetch(node, 2, offset=30))[0]
    node.append()
    assert node.partition().high_watermark == 31
    assert sizes(fetch(node, 2, offset=30))[0] > caught_up > 0
    assert sizes(fetch(node, 3))[0] == 0


@pytest.mark.parametrize("bytes_min", [1, 2])
def test_a_throttled_follower_is_heard_and_waits_without_being_woken_by_what_it_may_not_get(
    make: Make, bytes_min: int
) -> None:
    async def scenario() -> None:
        node = leader(make)
        node.replicas.throttles.change_rates(0, LONG_MAX, 0)
        waiting = fetch(node, 3, offset=20, other=30, wait_ms=60_000, bytes_min=bytes_min)
        assert not isinstance(waiting, list)
        node.append()
        await settle()
        assert not waiting.done()
        node.append(P1)
        nothing, other = sizes(await asyncio.wait_for(waiting, 30))
        assert nothing == 0
        assert other > 0
        known = node.partition()._followers[3]
        assert known.log_end_offset == 20
        error = fetch(node, 3, offset=20, other=31, wait_ms=60_000, bytes_min=bytes_min)
        node.change(leader=2, leader_epoch=1)
        assert {each.error_code for each in await asyncio.wait_for(error, 30)} != {OK}

    run(scenario)


# ---- the follower ----


def test_a_partition_pauses_as_long_as_it_is_told() -> None:
    plan, logs, _ = plan_of(TopicPartition("a", 0))
    assert plan.next(0, lambda _: 300) is None
    assert plan.wait_ms(0) == 300
    assert len(planned(plan, logs, 300).positions) == 1


def test_a_replica_out_of_sync_waits_while_the_rate_is_exceeded() -> None:
    throttle = ReplicationThrottle(1)
    throttle.configure("flights", ("0:1",))
    assert throttle.wait_ms(P0, 0) == 0
    throttle.change_rate(RATE, 0)
    assert throttle.wait_ms(P0, 0) == 0
    throttle.record(P1, 50_000, 0, is_exempt=False)
    assert throttle.wait_ms(P0, 0) == 0
    throttle.record(P0, RATE + 500, 0, is_exempt=False)
    assert throttle.wait_ms(P0, 0) == 501
    assert throttle.wait_ms(P1, 0) == 0


# ---- both ----


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_replica_that_catches_up_under_a_throttle_does_not_stop_producers_before_it_joins(
    tmp_path: Path, side: str
) -> None:
    """Another partition has more for it than the rate of seconds; the watermark waits for it once it has caught up."""
    rates = (200_000, LONG_MAX) if side == "leader" else (LONG_MAX, 200_000)

    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        cluster.cut = {(3, 1)}
        cluster.start(led_by(1, isr=(1,)), led_by(1, isr=(1,)))
        for node in cluster.nodes.values():
            node.replicas.throttles.change_rates(*rates, 0)
        producer = cluster.nodes[1]
        for _ in range(200):
            producer.append(1_000, key=P1)
        longest_s = 0.0
        begun_s = loop.time()
        while loop.time() - begun_s < 20:
            producer.append()
            sent_s = loop.time()
            assert await producer.acknowledged(producer.append(acks=-1)) is None
            longest_s = max(longest_s, loop.time() - sent_s)
            await asyncio.sleep(0.005)
        assert longest_s < 0.1
        assert 2 in cluster.image.topics[P0.topic].partitions[0].isr

    run_cluster(tmp_path, scenario, **dict.fromkeys(THROTTLED, "*"))


@pytest.mark.parametrize("side", ["leader", "follower", "neither"])
def test_a_copy_takes_the_time_that_the_rate_of_either_side_alone_allows(tmp_path: Path, side: str) -> None:
    """200 kB at 20 kB a second: 10 s, less a second of unused rate and one answer, of two batches."""
    rates = {"leader": (20_000, LONG_MAX), "follower": (LONG_MAX, 20_000), "neither": (LONG_MAX, LONG_MAX)}[side]

    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        cluster.cut = {(2, 1), (3, 1)}
        cluster.start(led_by(1, isr=(1,)))
        for node in cluster.nodes.values():
            node.config = replace(node.config, replica_fetch_max_bytes=10_000)
            node.replicas.throttles.change_rates(*rates, 0)
        leading = cluster.nodes[1]
        while leading.partition().log.size_bytes < 200_000:
            leading.append(1_000)
        size, batch = (
            leading.partition().log.size_bytes,
            leading.partition().log.size_bytes // leading.state()[1] * 1_000,
        )
        cluster.cut = {(3, 1)}
        begun_s = loop.time()
        await until(lambda: cluster.nodes[2].state() == leading.state(), 60)
        elapsed_s = loop.time() - begun_s
        least_s = 0 if side == "neither" else (size - 20_000 - 2 * batch) / 20_000
        # Answers end at a batch, and a pause at whole milliseconds.
        assert least_s <= elapsed_s <= least_s + 3

    run_cluster(tmp_path, scenario, **dict.fromkeys(THROTTLED, "*"))
