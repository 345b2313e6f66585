"""A leader of three behind its handlers: what readers see, deletions, watermarks on disk; and a single node."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.handlers.records import delete_records, list_offsets
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import BrokerRegistration, TopicImage
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL
from headwater.logtier.replication.partition_instructions import IsrDecision
from headwater.logtier.replication.partition_replication import no_followers
from headwater.logtier.replication.watermark_checkpoints import HIGH_WATERMARKS
from tests.unit.replication.replicated_node import OK, P0, P1, TOPIC, TOPIC_ID, Make, ReplicatedNode, batch, run
from tests.unit.state_topic.surroundings import settle

LATEST = -1


def sizes(fetched: Any) -> int:
    [found] = fetched
    assert found.error_code == OK
    return int(found.size)


# ---- readers ----


def test_consumers_read_to_the_high_watermark_and_followers_to_the_log_end(make: Make) -> None:
    node = make()
    node.start()
    size = node.append().size_bytes
    for follower in (2, 3):
        node.fetched(follower)
    node.append()
    assert sizes(node.fetch(0)) == size
    assert sizes(node.fetch(1)) == 0
    assert sizes(node.fetch(0, is_of_replica=True)) == 2 * size
    assert sizes(node.fetch(1, is_of_replica=True)) == size


def test_an_append_wakes_the_follower_and_the_watermark_wakes_the_consumer(make: Make) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        follower = node.fetch(0, wait_ms=60_000, is_of_replica=True)
        consumer = node.fetch(0, wait_ms=60_000)
        node.append()
        assert sizes(await follower) > 0
        await settle()
        assert not consumer.done()
        again = node.fetch(1, wait_ms=60_000, is_of_replica=True)
        for broker in (2, 3):
            node.fetched(broker)
        assert sizes(await consumer) > 0
        await settle()
        assert not again.done(), "the watermark brings a follower no records"
        again.cancel()

    run(scenario)


def test_a_transaction_is_open_until_its_marker_is_replicated(make: Make) -> None:
    """KAFKA-9807: the last stable offset never passes a marker above the watermark, and follows the watermark."""
    node = make()
    node.start()
    partition = node.partition()
    verification = node.replicas.begin_verification(P0, 7, 0, 0, is_epoch_bumped=False)

    records = batch(2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    node.replicas.append(P0, memoryview(records), verification=verification)
    node.replicas.append_end_txn_marker(
        P0, producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True, transaction_version=1
    )
    for follower in (2, 3):
        node.fetched(follower, 2)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
    for follower in (2, 3):
        node.fetched(follower, 3)
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)


def end_of(node: ReplicatedNode, timestamp: int = LATEST, *, version: int = 10, replica_id: int = -1) -> Any:
    wanted = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    request = SimpleNamespace(
        replica_id=replica_id, isolation_level=0, topics=[SimpleNamespace(name=TOPIC, partitions=[wanted])]
    )
    tree = asyncio.run(node.call(list_offsets, version, request))
    [found] = tree["topics"][0]["partitions"]
    return found["error_code"], found["offset"]


def test_a_new_leader_tells_no_end_before_its_watermark_has_reached_its_epoch(make: Make) -> None:
    node = make()
    node.start()
    node.append(count=5)
    node.change(leader_epoch=1)
    assert end_of(node) == (ErrorCode.offset_not_available, -1)
    assert end_of(node, version=4) == (ErrorCode.leader_not_available, -1)
    assert end_of(node, 2_000_000) == (ErrorCode.offset_not_available, -1)
    assert end_of(node, 1_000_000) == (ErrorCode.offset_not_available, -1), "a record above the watermark"
    assert end_of(node, -2) == (OK, 0)
    assert end_of(node, replica_id=2) == (OK, 5)
    for follower in (2, 3):
        node.fetched(follower)
    assert end_of(node) == (OK, 5)
    assert end_of(node, 2_000_000) == (OK, -1)
    assert end_of(node, 1_000_000) == (OK, 0)


# ---- deletions ----


def delete(node: ReplicatedNode, *offsets: int, timeout_ms: int = 1_000) -> Any:

    wanted = [SimpleNamespace(partition_index=index, offset=offset) for index, offset in enumerate(offsets)]
    topic = SimpleNamespace(name=TOPIC, partitions=wanted)
    request = SimpleNamespace(topics=[topic], timeout=timedelta(milliseconds=timeout_ms))
    return node.call(delete_records, 2, request)


def told(tree: Any) -> list[tuple[ErrorCode, int]]:
    return [(each["error_code"], each["low_watermark"]) for each in tree["topics"][0]["partitions"]]


def filled(node: ReplicatedNode) -> ReplicatedNode:
    node.start()
    for key in (P0, P1):
        node.append(key, 10)
        for follower in (2, 3):
            node.fetched(follower, 8, key=key)
    return node


def test_records_are_deleted_when_every_live_replica_has_deleted_them(make: Make) -> None:
    async def scenario() -> None:
        node = filled(make())
        answer = asyncio.ensure_future(delete(node, 5, 9))
        await settle()
        assert node.partition().log.log_start_offset == 5
        node.fetched(2, 8, start=5)
        await settle()
        assert not answer.done()
        node.fetched(3, 8, start=6)
        assert told(await answer) == [(OK, 5), (ErrorCode.offset_out_of_range, -1)], "9 is above the watermark"
        assert told(delete(node, 4)) == [(OK, 5)], "every log begins there already"

    run(scenario)


def test_a_replica_that_dies_is_not_waited_for(make: Make) -> None:
    async def scenario() -> None:
        node = filled(make())
        answer = asyncio.ensure_future(delete(node, 5))
        await settle()
        node.fetched(2, 8, start=5)
        brokers = {each: BrokerRegistration(each, "here", 9092, epoch=10 + each) for each in (1, 2)}

        node.follow(replace(node.image, brokers=brokers))
        assert told(await answer) == [(OK, 5)]

    run(scenario)


@pytest.mark.parametrize("end", ["time", "leader", "topic"])
def test_a_deletion_that_is_not_followed_is_told(make: Make, end: str) -> None:
    async def scenario() -> None:
        node = filled(make())
        answer = asyncio.ensure_future(delete(node, 5))
        await settle()
        if end == "time":
            node.timers.pass_time(1)
        elif end == "leader":
            node.change(leader=2, leader_epoch=1)
        else:
            node.delete()
        codes = {
            "time": ErrorCode.request_timed_out,
            "leader": ErrorCode.not_leader_or_follower,
            "topic": ErrorCode.unknown_topic_or_partition,
        }
        assert told(await answer) == [(codes[end], -1)]
        assert node.replicas.delayed_operations == 0

    run(scenario)


def test_retention_deletes_nothing_that_a_follower_may_need_as_the_next_leader(make: Make) -> None:
    node = make(retention_ms="1", segment_bytes="1048576")
    node.start()
    for _ in range(3):
        node.append(count=4)
        node.partition().log.roll(node.clock.ms)
    for follower in (2, 3):
        node.fetched(follower, 9)
    node.clock.ms += 10**9
    node.logs.maintain(node.clock.ms, node.replicas.high_watermark)
    assert node.partition().log.log_start_offset == 8
    assert node.replicas.high_watermark(TopicPartition("unknown", 0)) == 0


# ---- proposals ----


def test_a_proposal_goes_to_the_controller_and_its_answer_to_the_partition(make: Make) -> None:
    node = make()
    node.start(isr=(1,))
    node.append()
    node.fetched(2)
    [proposal] = node.proposals
    assert (proposal.topic_partition, proposal.isr, proposal.partition_epoch) == (P0, (1, 2), 0)
    decision = IsrDecision(OK, 0, 1, (1, 2))
    node.replicas.partition_replication.isr_decided(proposal, decision)
    assert node.partition().isr == (1, 2)
    node.delete()
    node.replicas.partition_replication.isr_decided(proposal, decision)


def test_a_fetch_of_no_replica_is_refused(make: Make) -> None:
    node = make()
    node.start()
    for key, broker, code in (
        (TopicPartition(TOPIC, 9), 2, ErrorCode.unknown_topic_or_partition),
        (P0, 4, ErrorCode.unknown_leader_epoch),
    ):
        with pytest.raises(KafkaError) as refused:
            node.fetched(broker, 0, key=key)
        assert refused.value.code is code


def test_a_single_node_proposes_nothing_ticks_never_and_writes_no_watermarks(make: Make, tmp_path: Path) -> None:
    node = make()
    node.start(isr=(1,), replicas=(1,))
    node.append()
    assert node.partition().high_watermark == 1
    assert not node.timers.pending
    node.close()
    assert not (tmp_path / "data" / HIGH_WATERMARKS).exists()
    assert not node.proposals
    with pytest.raises(AssertionError, match="a single node proposes"):
        no_followers(None)  # type: ignore[arg-type]


# ---- watermarks on disk ----


def test_the_watermarks_are_written_at_their_interval_where_they_changed(make: Make, tmp_path: Path) -> None:
    node = make()
    node.start()
    path = tmp_path / "data" / HIGH_WATERMARKS
    node.append(count=3)
    for follower in (2, 3):
        node.fetched(follower, 2)
    node.timers.pass_time(4.9)
    assert not path.exists()
    node.timers.pass_time(0.1)
    assert path.read_text() == "0\n2\nflights 0 2\nflights 1 0\n"
    path.unlink()
    node.timers.pass_time(5)
    assert not path.exists(), "nothing has changed"
    for follower in (2, 3):
        node.fetched(follower, 3)
    node.timers.pass_time(5)
    assert path.read_text() == "0\n2\nflights 0 3\nflights 1 0\n"


def test_a_start_begins_with_the_watermark_of_the_stop(make: Make) -> None:
    node = make()
    node.start()
    node.append(count=5)
    for follower in (2, 3):
        node.fetched(follower, 3)
    node.close()
    again = make()
    again.start(epoch=1)
    assert again.partition().high_watermark == 3
    assert sizes(again.fetch(3)) == 0, "what no follower has is not told"
    again.delete()
    again.start(epoch=2)
    assert again.partition().high_watermark == 0, "a new log has nothing of the old one"


@pytest.mark.parametrize("text", ["", "0\n1\nflights 0\n", "nonsense", "0\n5\nflights 0 3\n"])
def test_a_damaged_file_costs_the_watermarks_and_nothing_else(
    make: Make, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = make()
    node.start()
    node.append(count=5)
    node.close()
    (tmp_path / "data" / HIGH_WATERMARKS).write_text(text)
    again = make()
    again.start(epoch=1)
    assert (again.partition().high_watermark, again.partition().log.log_end_offset) == (0, 5)
    assert "begin at the log start offsets" in caplog.text


def test_a_watermark_past_the_log_is_cut_to_it(make: Make, tmp_path: Path) -> None:
    """A power loss took records of which the checkpoint speaks."""
    node = make()
    node.start()
    node.append(count=5)
    node.close()
    (tmp_path / "data" / HIGH_WATERMARKS).write_text("0\n2\nflights 0 9\nflights 1 9\n")
    again = make()
    again.start(epoch=1)
    assert [again.partition(key).high_watermark for key in (P0, P1)] == [5, 0]


def test_topics_that_go_leave_the_file(make: Make, tmp_path: Path) -> None:
    node = make()
    node.start()
    node.timers.pass_time(5)
    assert (tmp_path / "data" / HIGH_WATERMARKS).read_text() == "0\n2\nflights 0 0\nflights 1 0\n"
    node.delete()
    node.close()
    assert (tmp_path / "data" / HIGH_WATERMARKS).read_text() == "0\n0\n"


def test_a_topic_that_goes_leaves_no_watermark_to_a_later_one_of_its_name(make: Make, tmp_path: Path) -> None:
    """A kill before the next checkpoint: the new log would begin with a watermark that no follower has reached."""
    node = make()
    node.start()
    node.append(count=5)
    for follower in (2, 3):
        node.fetched(follower)
    node.timers.pass_time(5)
    assert (tmp_path / "data" / HIGH_WATERMARKS).read_text() == "0\n2\nflights 0 5\nflights 1 0\n"
    node.delete()
    assert (tmp_path / "data" / HIGH_WATERMARKS).read_text() == "0\n0\n"


def test_a_topic_that_was_made_anew_meanwhile_begins_with_no_watermark_of_the_former_one(
    make: Make, tmp_path: Path
) -> None:
    """Neither in this run nor after a kill before its first checkpoint."""
    file = tmp_path / "data" / HIGH_WATERMARKS
    node = make()
    node.start()
    node.append(count=5)
    for follower in (2, 3):
        node.fetched(follower)
    node.close()
    assert file.read_text() == "0\n2\nflights 0 5\nflights 1 0\n"
    again = make()
    state = PartitionImage(1, 0, 0, (1, 2, 3), (1, 2, 3))
    other_id = uuid.UUID(int=6)
    again.image = again.metadata.image = replace(
        again.image,
        topics={TOPIC: TopicImage(TOPIC, other_id, (state, state), {})},
        topic_names={other_id: TOPIC},
        deleted_topics={str(TOPIC_ID): 1},
    )
    again.replicas.start(again.image)
    again.append(count=5)
    assert again.partition().high_watermark == 0
    assert file.read_text() == "0\n0\n"


def test_the_manager_of_a_stopped_node_ticks_no_more(make: Make) -> None:
    node = make()
    node.start()
    assert len([each for each in node.timers.pending if not each[2].is_cancelled]) == 1
    node.close()
    assert not [each for each in node.timers.pending if not each[2].is_cancelled]
    assert isinstance(node.logs, LogManager)


def test_a_partition_that_gets_followers_waits_for_them_from_then_on(make: Make) -> None:
    node = make()
    node.start(isr=(1,), replicas=(1,))
    assert node.produce(0) == [(OK, 0)]
    node.change(replicas=(1, 2), isr=(1, 2))
    replication = node.replicas.replication(P0, node.append(acks=-1), 0)
    assert replication is not None
    replication.close()
    node.change(replicas=(1,), isr=(1,))
    assert node.produce(0) == [(OK, 2)]
    assert PartitionImage(1, 0, 2, (1,), (1,)) == node.image.topics[TOPIC].partitions[0]


@pytest.mark.parametrize(("replicas", "kept"), [((1, 2, 3), 0), ((1,), 3)])
def test_a_log_whose_topic_id_a_power_loss_took_is_no_replica_that_others_have(
    make: Make, tmp_path: Path, replicas: tuple[int, ...], kept: int
) -> None:
    """It may be of an earlier topic of that name, with the same epochs and offsets; others have the records."""
    node = make()
    node.start(replicas=(1,), isr=(1,))
    for _ in range(3):
        node.append()
    node.logs.close()
    for path in tmp_path.rglob("partition.metadata"):
        path.unlink()
    again = make()
    again.start(epoch=1, replicas=replicas, isr=replicas)
    assert again.partition().log.log_end_offset == kept
