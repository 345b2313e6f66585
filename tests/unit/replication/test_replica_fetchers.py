"""Followers of three brokers: what replicates, what is truncated, what stops nobody else."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headwater.logtier.peers.peers import Purpose
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.replication.fetching import fetch_plan
from headwater.logtier.replication.fetching.follower_logs import AnswerOutcome
from headwater.logtier.replication.partition_reads import FetchPartition, PartitionReads
from tests.unit.replication.replica_cluster import P0, P1, TOPIC, Cluster, led_by, run, settled, until

P2 = TopicPartition(TOPIC, 2)


def test_records_replicate_and_acks_all_completes(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(2))
        leader = cluster.nodes[1]
        begun_s = asyncio.get_running_loop().time()
        assert await leader.acknowledged(leader.append(3, acks=-1)) is None
        for _ in range(20):
            assert await leader.acknowledged(leader.append(2, acks=-1)) is None
        assert asyncio.get_running_loop().time() - begun_s < 1, "each append wakes the followers that wait"
        other = cluster.nodes[2]
        assert await other.acknowledged(other.append(acks=-1, key=P1), key=P1) is None
        await cluster.equal(43)
        await cluster.equal(1, key=P1)

    run(tmp_path, scenario)


def test_a_follower_at_the_end_learns_of_the_watermark_within_the_wait(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await cluster.equal(3, within_s=0.6)

    run(tmp_path, scenario)


def test_a_follower_that_was_away_joins_the_isr_and_changes_its_connection(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.cut = {(3, 1)}
        cluster.start(led_by(1, isr=(1, 2)))
        leader = cluster.nodes[1]
        for _ in range(30):
            assert await leader.acknowledged(leader.append(5, acks=-1)) is None
        assert cluster.nodes[3].state() == (0, 0, 0)
        cluster.cut.clear()
        await cluster.equal(150)
        await asyncio.sleep(1)
        assert cluster.image.topics[TOPIC].partitions[0].isr == (1, 2, 3)
        purposes = [purpose for source, _, purpose, _ in cluster.requests if source == 3]
        assert purposes[0] is Purpose.FETCH_CATCHING_UP
        assert purposes[-1] is Purpose.FETCH_IN_SYNC
        assert {purpose for source, _, purpose, _ in cluster.requests if source == 2} == {Purpose.FETCH_IN_SYNC}

    run(tmp_path, scenario)


def test_followers_of_idle_partitions_stay_in_the_isr_though_their_fetches_seldom_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read_one = PartitionReads.read_one

    def noted(self: PartitionReads, wanted: FetchPartition, *rest: Any) -> Any:
        reads.append(wanted)
        return read_one(self, wanted, *rest)

    monkeypatch.setattr(PartitionReads, "read_one", noted)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        leader = cluster.nodes[1]
        assert await leader.acknowledged(leader.append(acks=-1)) is None
        await asyncio.sleep(2)
        cluster.requests.clear()
        reads.clear()
        await asyncio.sleep(60)  # twice the lag time
        assert len(cluster.requests) > 200
        assert len(reads) < 2 * 2 * (60 / 3 + 2), "each follower reads each partition every three seconds"
        for _ in range(3):
            assert await leader.acknowledged(leader.append(acks=-1, key=P1), key=P1) is None
            await asyncio.sleep(1)
        assert [state.isr for state in cluster.image.topics[TOPIC].partitions] == [(1, 2, 3), (1, 2, 3)]
        assert leader.partition(P1).isr == (1, 2, 3)

    run(tmp_path, scenario)


def test_a_replica_that_joins_while_its_connection_waits_is_fetched_at_once(tmp_path: Path) -> None:
    """A request of those in sync waits half a second at an idle leader; producers must not wait for its end."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1, isr=(1, 2)))
        leader = cluster.nodes[1]
        await until(lambda: cluster.image.topics[TOPIC].partitions[1].isr == (1, 2, 3))
        await appended_at_once(cluster, 1)
        for node in (2, 3):
            assert [len(each) for each in fetchers(cluster, node, Purpose.FETCH_IN_SYNC)] == [2]
        await asyncio.sleep(1)
        for node in (2, 3):
            assert [len(each) for each in fetchers(cluster, node, Purpose.FETCH_CATCHING_UP) if len(each)] == []
        assert await leader.acknowledged(leader.append(2, acks=-1, key=P1), key=P1) is None
        await cluster.equal(3, key=P1)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_leader_that_followers_wait_at_already_serves_a_new_partition_at_once(
    tmp_path: Path, is_dropped: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(2))
        other = cluster.nodes[2]
        assert await other.acknowledged(other.append(3, acks=-1, key=P1), key=P1) is None
        await asyncio.sleep(0.75)  # the followers' requests have waited for half of their time
        cluster.elect(1, key=P1)
        await appended_at_once(cluster, 1)
        if is_dropped:  # before the other connection has asked for it
            cluster.elect(3, key=P1)
            await until(lambda: cluster.nodes[3].partition(P1).is_leader)
            await appended_at_once(cluster, 3)
            await asyncio.sleep(1)
            assert not any(map(len, fetchers(cluster, 2, Purpose.FETCH_CATCHING_UP, leader=1)))
        await asyncio.sleep(1)
        for node in cluster.nodes:
            assert not any(map(len, fetchers(cluster, node, Purpose.FETCH_CATCHING_UP)))

    run(tmp_path, scenario)


@pytest.mark.parametrize("pause_s", [0.0, 0.005, 0.2])
def test_elections_one_after_the_other_are_served_at_once(tmp_path: Path, pause_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(2), led_by(2))
        await in_wait_at(cluster, 1)
        cluster.elect(1, key=P1)
        await asyncio.sleep(pause_s)
        cluster.elect(1, key=P2)
        await appended_at_once(cluster, 1, P2)
        await appended_at_once(cluster, 1)

    run(tmp_path, scenario)


def test_elections_of_more_than_a_request_has_room_for_are_served_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_plan, "POSITIONS_MAX", 2)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), *[led_by(2)] * 6)
        await asyncio.sleep(3)
        await in_wait_at(cluster, 1)
        cluster.publish(cluster.with_topic(led_by(1), *[led_by(1, epoch=1)] * 6))
        await appended_at_once(cluster, 1, TopicPartition(TOPIC, 6))

    run(tmp_path, scenario)


@pytest.mark.parametrize("pause_s", [0.005, 0.3])
def test_a_follower_that_leaves_and_joins_within_a_request_learns_of_the_watermark(
    tmp_path: Path, pause_s: float
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        await asyncio.sleep(1)
        cluster.nodes[1].append(1, acks=1)
        await asyncio.sleep(pause_s)  # the record is there; the watermark waits for the end of the follower's request
        state = cluster.image.topics[TOPIC].partitions[0]
        alone = replace(state, isr=(1, 2), partition_epoch=state.partition_epoch + 1)
        cluster.publish(cluster.with_topic(alone))
        await until(lambda: cluster.image.topics[TOPIC].partitions[0].isr == (1, 2, 3))
        await cluster.equal(1, within_s=1.0)

    run(tmp_path, scenario)


async def in_wait_at(cluster: Cluster, leader_id: int) -> None:
    """Until a follower has just sent a request to a leader that has nothing for it."""
    await asyncio.sleep(0.75)
    count = len(cluster.requests)
    await until(lambda: any(target == leader_id for _, target, *_ in cluster.requests[count:]))
    await asyncio.sleep(0.01)


async def appended_at_once(cluster: Cluster, leader_id: int, key: TopicPartition = P1) -> None:
    leader, loop = cluster.nodes[leader_id], asyncio.get_running_loop()
    begun_s = loop.time()
    assert await leader.acknowledged(leader.append(acks=-1, key=key), key=key) is None
    assert loop.time() - begun_s < 0.15, "virtual seconds"


def fetchers(cluster: Cluster, node: int, purpose: Purpose, leader: int | None = None) -> list[Any]:
    found = cluster.nodes[node].fetchers._fetchers
    return [each for key, each in found.items() if key[1] is purpose and leader in (None, key[0])]


def test_an_idle_follower_asks_twice_a_second_in_one_session(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(*[led_by(1)] * 4)
        await asyncio.sleep(1)
        cluster.requests.clear()
        await asyncio.sleep(10)
        asked = [request for source, _, _, request in cluster.requests if source == 2]
        assert 18 <= len(asked) <= 20
        assert len({len(request.body) for request in asked}) == 1
        assert len(asked[0].body) < 50, "positions that the leader knows are not repeated"
        assert len(cluster.nodes[1].services.fetch_sessions) == 2

    run(tmp_path, scenario)


def test_a_follower_without_a_session_asks_in_full(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        cluster.nodes[1].services.fetch_sessions._slots_max = 0
        for key in (P0, P1):
            cluster.nodes[1].append(4, key=key)
        for key in (P0, P1):
            await cluster.equal(4, key=key)

    run(tmp_path, scenario)


def test_a_session_that_the_leader_dropped_is_begun_anew_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        leader = cluster.nodes[1]
        assert await leader.acknowledged(leader.append(acks=-1)) is None
        await asyncio.sleep(1)
        sessions = leader.services.fetch_sessions
        for session_id in list(sessions._sessions):
            sessions.remove(session_id)
        leader.append()
        await cluster.equal(2, within_s=1.2)

    run(tmp_path, scenario)


def test_transactions_and_producers_are_known_to_a_follower(tmp_path: Path) -> None:
    """KAFKA-9807: the last stable offset stays below a marker that the watermark has not passed."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        leader = cluster.nodes[1]
        replicas = leader.replicas
        verification = replicas.begin_verification(P0, 7, 0, 0, is_epoch_bumped=False)
        batch = build_batch(
            [Record(None, b"v", 1)] * 2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
        )
        replicas.append(P0, memoryview(bytearray(batch)), verification=verification)
        await cluster.equal(2)
        assert [node.partition().last_stable_offset for node in cluster.nodes.values()] == [0, 0, 0]
        replicas.append_end_txn_marker(
            P0, producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=False, transaction_version=1
        )
        await asyncio.sleep(3 * 0.001)
        for node in cluster.nodes.values():
            partition = node.partition()
            assert partition.last_stable_offset == (3 if partition.high_watermark == 3 else 0)
        await cluster.equal(3)
        for node in cluster.nodes.values():
            assert node.partition().last_stable_offset == 3
            assert len(node.partition().log.aborted_transactions(0, 3)) == 1
        assert [next(iter(node.partition().log.producers))[0] for node in cluster.nodes.values()] == [7, 7, 7]

    run(tmp_path, scenario)


# ---- topics that go ----


def test_kafka_12257_a_topic_made_anew_gets_no_records_of_the_old_one(tmp_path: Path) -> None:
    """KAFKA-12257: metadata of a topic made anew were ignored, as its epochs begin below those of the old one."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        await cluster.equal(3)
        new_id = uuid.UUID(int=6)
        image = cluster.with_topic(led_by(1), topic_id=new_id)
        cluster.publish(image, 1)
        await asyncio.sleep(0.2)
        assert cluster.nodes[2].state()[1] == 3
        cluster.publish(image)
        cluster.nodes[1].append(1)
        await cluster.equal(1)
        assert cluster.nodes[2].partition().log.topic_id == new_id

    run(tmp_path, scenario)


def test_a_follower_that_knows_a_topic_first_waits_for_its_leader(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        new_id = uuid.UUID(int=6)
        image = cluster.with_topic(led_by(1), topic_id=new_id)
        cluster.publish(image, 2, 3)
        await asyncio.sleep(1.5)
        cluster.publish(image)
        cluster.nodes[1].append(2)
        await cluster.equal(2)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_replica_that_goes_during_a_fetch_is_left_alone(tmp_path: Path, is_new: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        cluster.nodes[1].append(3)
        cluster.nodes[1].append(3, key=P1)
        gone: list[bool] = []

        def remove(node: Any, response: Any) -> Any:
            if node.broker_id == 2 and not gone:
                gone.append(True)
                other = replace(led_by(1), replicas=(1, 3), isr=(1, 3), partition_epoch=1)
                cluster.publish(cluster.with_topic(other, led_by(1)))
                if is_new:
                    cluster.publish(cluster.with_topic(replace(led_by(1), partition_epoch=2), led_by(1)))
            return response

        cluster.on_response = remove
        await cluster.equal(3, key=P1)
        assert gone
        if is_new:
            await cluster.equal(3)
        else:
            assert cluster.nodes[2].replicas.usable_partition(P0) is None
            assert await cluster.nodes[1].acknowledged(cluster.nodes[1].append(acks=-1)) is None

    run(tmp_path, scenario)


def test_a_follower_that_becomes_leader_fetches_no_more(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(2)
        await cluster.equal(2)
        cluster.elect(2)
        await asyncio.sleep(1)
        cluster.requests.clear()
        await asyncio.sleep(5)
        assert {(source, target) for source, target, *_ in cluster.requests} == {(1, 2), (3, 2)}
        await settled(cluster, 2)

    run(tmp_path, scenario)


def test_a_broker_that_stops_writes_no_watermarks_after_the_last_ones(tmp_path: Path) -> None:
    """Its image goes on until its logs are closed, and then nobody may write to their folders."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        node = cluster.nodes[1]
        await settled(cluster, 0)
        await node.fetchers.aclose()
        node.replicas.partition_replication.stop()
        cluster.elect(2)
        node.is_up = False
        node.logs.close()
        problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["message"]))
        await asyncio.sleep(20)
        assert problems == []

    run(tmp_path, scenario)


# ---- failures of one partition ----


def test_a_damaged_batch_stops_only_its_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        cluster.nodes[1].append(3)
        cluster.nodes[1].append(3, key=P1)

        def damage(node: Any, response: Any) -> Any:
            parts = []
            for each in getattr(response, "partitions", ()):
                if node.broker_id == 2 and each.partition == 0 and each.records:
                    records = bytearray(each.records)
                    records[-1] ^= 1
                    each = each._replace(records=memoryview(records))
                parts.append(each)
            return response._replace(partitions=parts)

        cluster.on_response = damage
        await cluster.equal(3, key=P1)
        assert cluster.nodes[2].state() == (0, 0, 0)
        assert "checksum" in caplog.text
        await asyncio.sleep(3)
        assert len([1 for line in caplog.messages if "checksum" in line]) <= 4, "it backs off"
        cluster.on_response = lambda _, response: response
        await cluster.equal(3)

    run(tmp_path, scenario)


def test_an_unforeseen_error_of_one_log_stops_only_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        leader, follower = cluster.nodes[1], cluster.nodes[2]

        def fail(*_: object) -> None:
            raise ValueError("a state that nobody thought of")

        monkeypatch.setattr(follower.partition().log, "append_as_follower", fail)
        for round_number in range(1, 6):
            leader.append()
            assert await leader.acknowledged(leader.append(acks=-1, key=P1), key=P1, timeout_ms=900) is None
            await cluster.equal(round_number, key=P1)
        assert "nobody thought of" in caplog.text
        monkeypatch.undo()
        await cluster.equal(5)

    run(tmp_path, scenario)


def test_kafka_10778_no_append_follows_a_failed_write(tmp_path: Path) -> None:
    """KAFKA-10778: after a failed write appends went on until the folder was taken offline.

    Here the disk is only full, and takes records again; one that fails: log/test_append.py.
    """

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1), led_by(1))
        await asyncio.sleep(0.1)
        follower = cluster.nodes[2]
        log = follower.partition().log
        segment = log.segments.active

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        log.segments.active._file = type("Full", (), {"append": fail, "path": "x"})()
        for _ in range(3):
            cluster.nodes[1].append(1)
            cluster.nodes[1].append(1, key=P1)
            await asyncio.sleep(0.2)
        assert follower.state()[:2] == (0, 0)
        assert follower.state(P1)[1] == 3
        assert segment.size == 0
        segment.release()
        await cluster.equal(3)

    run(tmp_path, scenario)


def test_an_answer_with_nothing_whole_pauses_the_partition(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(3)
        answers = []

        def torn(node: Any, response: Any) -> Any:
            answers.append(node.broker_id)
            parts = [each._replace(records=each.records[:70]) for each in response.partitions]
            return response._replace(partitions=parts)

        cluster.on_response = torn
        await asyncio.sleep(5)
        assert answers.count(2) <= 12
        cluster.on_response = lambda _, response: response
        await cluster.equal(3)

    run(tmp_path, scenario)


def test_fetches_of_a_process_that_registered_anew_are_refused(tmp_path: Path) -> None:
    """KAFKA-7235: what a broker had sent before it bounced counted as said by its next process."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        cluster.nodes[1].append(1)
        await cluster.equal(1)
        brokers = {**cluster.image.brokers, 2: replace(cluster.image.brokers[2], epoch=90)}
        cluster.nodes[2].fetchers._identity = cluster.nodes[2].fetchers._identity._replace(broker_epoch=lambda: 12)
        for fetcher in cluster.nodes[2].fetchers._fetchers.values():
            fetcher._identity = cluster.nodes[2].fetchers._identity
        cluster.publish(replace(cluster.image, brokers=brokers, registrations=brokers))
        cluster.nodes[1].append(1)
        await asyncio.sleep(3)
        assert cluster.nodes[2].state()[1] == 1
        assert cluster.nodes[3].state()[1] == 2

    run(tmp_path, scenario)


def test_an_answer_of_an_earlier_state_lets_the_leader_tell_everything_anew(tmp_path: Path) -> None:
    """Its watermark counts as told, and may not move again for long."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(led_by(1))
        await asyncio.sleep(1)
        follower = cluster.nodes[2]
        logs: Any = follower.fetchers._logs
        original = logs.take
        dropped: list[Any] = []

        def drop(followed: Any, asked: Any, answer: Any) -> AnswerOutcome:
            if answer.high_watermark == 1 and not dropped:
                dropped.append(answer)
                return AnswerOutcome.OUTDATED
            return cast("AnswerOutcome", original(followed, asked, answer))

        logs.take = drop
        cluster.nodes[1].append(1)
        await until(lambda: bool(dropped))
        await cluster.equal(1, within_s=1)

    run(tmp_path, scenario)
