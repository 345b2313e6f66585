"""Followers whose logs differ from their leader's: KIP-101, KIP-279, and logs outside the leader's range."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.handlers.records import list_offsets
from tests.unit.replication import handled_requests
from tests.unit.replication.replica_cluster import P0, P1, TOPIC, Cluster, led_by, run, settled, until

# ---- other leaders ----


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param([4], [1], id="nobody else has"),
        # Without a divergence in the answer it would keep the records below the leader's end.
        pytest.param([1, 1, 1, 1], [1, 1], id="the new leader has others of"),
    ],
)
def test_kip_101_a_deposed_leader_truncates_its_own_batches(tmp_path: Path, old: list[int], new: list[int]) -> None:
    """`old` and `new` are the numbers of records of the batches that each leader writes alone."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await cluster.equal(3)
        cluster.cut = {(2, 1), (3, 1)}
        await asyncio.sleep(0.6)
        for count in old:
            cluster.nodes[1].append(count)
        cluster.elect(2)
        for count in new:
            cluster.nodes[2].append(count)
        await cluster.equal(3 + sum(new))
        assert cluster.nodes[1].epochs() == [(0, 0), (1, 3)]
        await settled(cluster, 3 + sum(new))

    run(tmp_path, scenario)


def test_kip_279_a_follower_truncates_to_its_own_end_of_the_last_common_epoch(tmp_path: Path) -> None:
    """KAFKA-6361: the leader's end of the epoch before lies within the records of the epoch that it never had."""

    async def scenario(cluster: Cluster) -> None:
        cluster.cut = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
        cluster.start(led_by(1))
        for _ in range(2):
            cluster.nodes[1].append(1)
        cluster.cut -= {(3, 1)}
        await until(lambda: cluster.nodes[3].state()[1] == 2, 1)
        cluster.cut |= {(3, 1)}
        await asyncio.sleep(0.6)
        # Broker 1 writes on in its epoch, broker 3 in one of its own.
        for _ in range(3):
            cluster.nodes[1].append(1)
        cluster.elect(3, 3)
        for _ in range(5):
            cluster.nodes[3].append(1)
        cluster.elect(1)
        cluster.nodes[1].append(1)
        assert cluster.nodes[3].epochs() == [(0, 0), (1, 2)]
        cluster.cut.clear()
        await cluster.equal(6)
        await settled(cluster, 6)

    run(tmp_path, scenario)


def test_kip_101_a_follower_keeps_acknowledged_records_above_its_own_watermark(tmp_path: Path) -> None:
    """A follower that truncated to its watermark, and is then elected, would lose them."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await until(lambda: cluster.nodes[1].state()[2] == 3, 1)
        assert cluster.nodes[2].state() == (0, 3, 0)
        await cluster.nodes[2].crash()
        again = cluster.start_node(2)
        cluster.elect(2)
        assert again.state()[1] == 3
        await cluster.equal(3)

    run(tmp_path, scenario)


def test_kip_279_two_fast_elections_leave_no_divergence(tmp_path: Path) -> None:
    """KAFKA-6361: the log of the first leader has an epoch that the last one never had, and an earlier one longer."""

    async def scenario(cluster: Cluster) -> None:
        cluster.cut = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
        cluster.start(led_by(1))
        cluster.nodes[1].append(4)
        cluster.elect(2)
        cluster.nodes[2].append(2)
        cluster.elect(1)
        cluster.nodes[1].append(1)
        cluster.elect(3)
        cluster.nodes[3].append(1)
        cluster.cut.clear()
        await cluster.equal(1)
        assert cluster.nodes[1].epochs() == [(3, 0)]
        await settled(cluster, 1)

    run(tmp_path, scenario)


def test_truncation_goes_on_until_nothing_diverges(tmp_path: Path) -> None:
    """The leader has epochs 0, 1 and 3, the follower 0 and 2: one answer is not enough."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(2)
        await cluster.equal(2)
        cluster.cut = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
        await asyncio.sleep(0.6)
        cluster.nodes[1].append(3)
        cluster.elect(2, 2)
        cluster.nodes[2].append(5)
        cluster.elect(1, 1)
        cluster.nodes[1].append(2)
        cluster.elect(2)
        cluster.nodes[2].append(1)
        assert cluster.nodes[1].epochs() == [(0, 0), (2, 5)]
        cluster.cut.clear()
        await cluster.equal(8)
        assert cluster.nodes[1].epochs() == [(0, 0), (1, 2), (3, 7)]

    run(tmp_path, scenario)


def test_kafka_14704_a_diverging_answer_moves_no_watermark(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await cluster.equal(3)
        cluster.cut = {(2, 1), (3, 1)}
        await asyncio.sleep(0.6)
        for _ in range(6):
            cluster.nodes[1].append(1)
        cluster.elect(2)
        for _ in range(9):
            cluster.nodes[2].append(1)
        seen: list[tuple[bool, int]] = []

        def watch(node: Any, response: Any) -> Any:
            if node.broker_id == 1 and hasattr(response, "partitions"):
                # A leader that tells its watermark beside the divergence, as Kafka's does.
                parts = [
                    each if each.diverging_epoch is None else each._replace(high_watermark=9)
                    for each in response.partitions
                ]
                seen.extend((each.diverging_epoch is not None, node.state()[2]) for each in parts)
                return response._replace(partitions=parts)
            return response

        cluster.on_response = watch
        # The watermark of the deposed leader never passes records that the new one does not have.
        original = cluster.nodes[1].replicas.partition_replication.perform
        moved: list[tuple[int, bytes]] = []

        def perform(partition: Any, instructions: Any) -> None:
            moved.append((partition.high_watermark, cluster.nodes[1].content()))
            original(partition, instructions)

        cluster.nodes[1].replicas.partition_replication.perform = perform  # type: ignore[method-assign]
        await cluster.equal(12)
        assert any(diverges for diverges, _ in seen)
        final = cluster.nodes[2].content()
        assert moved
        assert all(watermark <= 3 or final.startswith(content) for watermark, content in moved)

    run(tmp_path, scenario)


def test_a_watermark_beside_fewer_records_is_cut_to_the_own_end(tmp_path: Path) -> None:
    """An answer may have the watermark of more records than it has."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        for _ in range(5):
            cluster.nodes[1].append(1)

        def early(node: Any, response: Any) -> Any:
            if not hasattr(response, "partitions"):
                return response
            for each in response.partitions:
                if each.records:
                    one = each.records[: 12 + int.from_bytes(each.records[8:12], "big")]
                    return response._replace(partitions=[each._replace(records=one, high_watermark=5)])
            return response

        cluster.on_response = early
        await until(lambda: cluster.nodes[2].state()[1] != 0, 1)
        assert cluster.nodes[2].state() == (0, 1, 1)
        cluster.on_response = lambda _, response: response
        await cluster.equal(5)

    run(tmp_path, scenario)


def test_kafka_7786_an_answer_of_an_older_leader_epoch_is_not_applied(tmp_path: Path) -> None:
    """KAFKA-7786: the leader was elected again while the answer was on its way."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        elected: list[bool] = []

        def late(node: Any, response: Any) -> Any:
            if node.broker_id == 2 and not elected and any(each.records for each in response.partitions):
                elected.append(True)
                cluster.elect(3, 2)  # broker 2 learns it first
                assert node.state() == (0, 0, 0)
                cluster.on_response = lambda _, after: after
            return response

        cluster.on_response = late
        await asyncio.sleep(0.1)
        assert elected
        assert cluster.nodes[2].state()[1] == 0, "the answer of broker 1 was dropped"
        cluster.publish(cluster.image)
        cluster.nodes[3].append(1)
        await cluster.equal(cluster.nodes[3].state()[1])

    run(tmp_path, scenario)


def test_a_follower_with_older_metadata_waits_and_goes_on_with_the_newer_ones(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await cluster.equal(3)
        cluster.elect(1, 1)
        await asyncio.sleep(2)
        cluster.nodes[1].append(1)
        await asyncio.sleep(2)
        assert cluster.nodes[2].state()[1] == 3
        asked = len([1 for source, *_ in cluster.requests if source == 2])
        await asyncio.sleep(5)
        assert len([1 for source, *_ in cluster.requests if source == 2]) - asked <= 6, "it backs off"
        begun_s = asyncio.get_running_loop().time()
        cluster.publish(cluster.image)
        await cluster.equal(4)
        assert asyncio.get_running_loop().time() - begun_s < 0.6, "newer metadata end the pause"

    run(tmp_path, scenario)


def test_a_follower_with_newer_metadata_waits_for_its_leader(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.elect(1, 2, 3)
        cluster.nodes[1].append(1)
        await asyncio.sleep(2)
        assert cluster.nodes[2].state()[1] == 0
        cluster.publish(cluster.image)
        cluster.nodes[1].append(1)
        await cluster.equal(2)

    run(tmp_path, scenario)


def test_a_leader_that_returns_is_asked_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(2)
        await cluster.equal(2)
        await cluster.nodes[1].crash()
        [fetcher] = cluster.nodes[2].fetchers._fetchers.values()
        await until(lambda: (fetcher._plan.wait_ms(fetcher._clock.monotonic_ms()) or 0) > 900)
        cluster.start_node(1)
        brokers = {**cluster.image.brokers, 1: replace(cluster.image.brokers[1], epoch=50)}
        cluster.publish(replace(cluster.image, brokers=brokers, registrations=brokers))
        assert await cluster.nodes[1].acknowledged(cluster.nodes[1].append(1), timeout_ms=100) is None

    run(tmp_path, scenario)


def test_a_leader_that_was_deposed_before_its_first_record_follows_at_once(tmp_path: Path) -> None:
    """KAFKA-10706: consecutive elections without data, on real logs: its own empty epoch kept a follower truncating."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(2)
        await cluster.equal(2)
        cluster.elect(2)
        assert cluster.nodes[2].epochs() == [(0, 0), (1, 2)]
        cluster.elect(1)
        cluster.nodes[1].append(1)
        await cluster.equal(3, within_s=0.6)
        assert cluster.nodes[2].epochs() == [(0, 0), (2, 2)]

    run(tmp_path, scenario)


# ---- out of range ----


def delete_below(cluster: Cluster, offset: int) -> None:
    cluster.nodes[1].replicas.delete_records(P0, offset)


def test_a_log_start_of_the_leader_is_followed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        for _ in range(6):
            cluster.nodes[1].append(1)
        await cluster.equal(6)
        delete_below(cluster, 4)
        deletion = cluster.nodes[1].replicas.deletions([(P0, 4)], 5_000)
        assert deletion is not None
        assert await deletion.results() == [None]
        assert [node.state() for node in cluster.nodes.values()] == [(4, 6, 6)] * 3

    run(tmp_path, scenario)


def test_a_follower_below_the_leaders_start_empties_its_log_and_begins_there(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        for _ in range(3):
            cluster.nodes[1].append(1, producer_id=9, producer_epoch=0, base_sequence=_)
        await cluster.equal(3)
        cluster.cut = {(3, 1)}
        await asyncio.sleep(0.6)
        cluster.elect(1, isr=(1, 2))
        for _ in range(5):
            assert await cluster.nodes[1].acknowledged(cluster.nodes[1].append(1, acks=-1)) is None
        delete_below(cluster, 6)
        cluster.cut.clear()
        await until(lambda: cluster.nodes[3].state() == (6, 8, 8), 5)
        follower = cluster.nodes[3].partition().log
        assert len(list(follower.producers)) == 0, "their records are gone"
        assert follower.leader_epochs.entries() == [(1, 6)]
        await asyncio.sleep(1)
        assert cluster.image.topics[TOPIC].partitions[0].isr == (1, 2, 3)

    run(tmp_path, scenario)


def test_a_new_follower_begins_with_a_batch_that_the_log_start_cuts(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.cut = {(3, 1)}
        cluster.start(led_by(1, isr=(1, 2)))
        leader = cluster.nodes[1]
        assert await leader.acknowledged(leader.append(10, acks=-1)) is None
        delete_below(cluster, 5)
        cluster.cut.clear()
        await until(lambda: cluster.nodes[3].state() == (5, 10, 10), 5)
        assert cluster.nodes[3].content() == leader.content()

    run(tmp_path, scenario)


def test_a_follower_above_the_leaders_end_truncates_to_it(tmp_path: Path) -> None:
    """A leader elected uncleanly whose history does not know the follower's epoch."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.cut = {(3, 1), (3, 2)}
        cluster.nodes[1].append(5)
        await until(lambda: cluster.nodes[2].state()[1] == 5, 1)
        cluster.elect(3, isr=(3,))
        cluster.cut.clear()
        await cluster.equal(0)
        await settled(cluster, 0)

    run(tmp_path, scenario)


def test_a_follower_that_begins_above_the_leaders_end_begins_anew(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.cut = {(3, 1), (3, 2)}
        for _ in range(5):
            cluster.nodes[1].append(1)
        cluster.elect(1, isr=(1, 2))
        await until(lambda: cluster.nodes[2].state() == (0, 5, 5), 2)
        delete_below(cluster, 4)
        await asyncio.sleep(0.6)
        cluster.elect(3, isr=(3,))
        cluster.nodes[3].append(1)
        cluster.cut.clear()
        await cluster.equal(1)
        assert [node.state() for node in cluster.nodes.values()] == [(0, 1, 1)] * 3

    run(tmp_path, scenario)


def test_a_leader_that_answers_no_look_up_stops_only_the_partition_out_of_range(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        cluster.cut = {(3, 1), (3, 2)}
        cluster.nodes[1].append(5)
        await until(lambda: cluster.nodes[2].state()[1] == 5, 1)
        asked = []

        class Silent:
            API_KEY = list_offsets.API_KEY

            @staticmethod
            async def handle(request: Any, context: Any) -> Any:
                asked.append(request)
                await asyncio.sleep(20)
                raise AssertionError("nobody waits any more")

        cluster.elect(3, isr=(3,))
        cluster.elect(3, key=P1, isr=(3,))
        handled_requests.HANDLERS[list_offsets.API_KEY] = Silent  # type: ignore[assignment]
        try:
            cluster.cut.clear()
            await asyncio.sleep(1)
            assert asked
            cluster.nodes[3].append(1, key=P1)
            await cluster.equal(1, key=P1, within_s=1)
            assert cluster.nodes[2].state()[1] == 5
            assert len(asked) == 2, "one look-up of each follower is under way"
            assert len([1 for source, target, *_ in cluster.requests if (source, target) == (2, 3)]) < 10
        finally:
            handled_requests.HANDLERS[list_offsets.API_KEY] = list_offsets

    run(tmp_path, scenario)
