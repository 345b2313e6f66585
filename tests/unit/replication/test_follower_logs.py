"""What an answer of a leader does to a follower's log, and what it does not when the world has changed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from headwater.logtier.log.flushing.checkpoints import RECOVERY_POINTS, read_checkpoint
from headwater.logtier.peers.replica_fetch import ReplicaFetchedPartition, ReplicaFetchPartition
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition
from headwater.logtier.replication.fetching.follower_logs import AnswerOutcome, FollowerLogs
from headwater.logtier.replication.watermark_checkpoints import HIGH_WATERMARKS
from headwater.logtier.runtime.disk import RealDisk
from tests.manual_clock import ManualClock
from tests.unit.replication.replicated_node import OK, P0, TOPIC_ID, Make, ReplicatedNode, run
from tests.unit.state_topic.surroundings import settle
from tests.virtual_time import run_virtually

EPOCH = 1
FOLLOWED = FollowedPartition(P0, TOPIC_ID, 2, EPOCH, True)


def batches(offset: int, count: int = 1, epoch: int = EPOCH) -> bytes:
    return b"".join(
        build_batch([Record(None, b"v", 1_000)], base_offset=offset + i, partition_leader_epoch=epoch)
        for i in range(count)
    )


def answer(records: bytes = b"", *, watermark: int = 0, start: int = 0, **fields: Any) -> ReplicaFetchedPartition:
    return ReplicaFetchedPartition(
        TOPIC_ID,
        0,
        fields.get("error_code", OK),
        watermark,
        watermark,
        start,
        memoryview(bytearray(records)),
        fields.get("diverging"),
        None,
    )


class Follower:
    """Broker 1 follows broker 2, and led before: five records of epoch 0, three of which are committed."""

    def __init__(self, node: ReplicatedNode) -> None:
        self.node = node
        node.start()
        for _ in range(5):
            node.append()
        for broker in (2, 3):
            node.fetched(broker, 3)
        node.change(leader=2, leader_epoch=EPOCH)
        self.settled: list[TopicPartition] = []
        self.clock = ManualClock()
        self.logs = FollowerLogs(node.replicas, self.clock, lambda: 1_000, self.settled.append)

    @property
    def log(self) -> Any:
        return self.node.partition().log

    def asked(self) -> ReplicaFetchPartition:
        position = self.logs.position(FOLLOWED, 1_000)
        assert position is not None
        return position

    def take(self, found: ReplicaFetchedPartition, asked: ReplicaFetchPartition | None = None) -> AnswerOutcome:
        return self.logs.take(FOLLOWED, asked or self.asked(), found)


def test_records_watermark_and_log_start_are_followed_in_this_order(make: Make) -> None:
    follower = Follower(make())
    assert follower.asked() == ReplicaFetchPartition(0, EPOCH, 5, 0, 0, 1_000)
    assert follower.take(answer(batches(5, 2), watermark=6, start=6)) is AnswerOutcome.APPLIED
    assert follower.node.partition().high_watermark == 6
    assert follower.asked() == ReplicaFetchPartition(0, EPOCH, 7, EPOCH, 6, 1_000)


def test_the_log_start_never_passes_the_watermark(make: Make) -> None:
    follower = Follower(make())
    assert follower.take(answer(watermark=4, start=5)) is AnswerOutcome.APPLIED
    assert follower.log.log_start_offset == 4


def changed_epoch(follower: Follower) -> None:
    follower.node.change(leader=2, leader_epoch=EPOCH + 1)


def other_leader(follower: Follower) -> None:
    # The same leader epoch cannot have another leader; the check is of the partition's own state.
    follower.node.partition().leader_id = 3


def became_leader(follower: Follower) -> None:
    follower.node.change(leader=1, leader_epoch=EPOCH + 1)


def deleted(follower: Follower) -> None:
    follower.node.delete()


def offline(follower: Follower) -> None:
    follower.log.health.fail("a disk that died")


def made_anew(follower: Follower) -> None:
    follower.log.topic_id = TOPIC_ID.__class__(int=99)


def grew(follower: Follower) -> None:
    follower.log.append_as_follower(batches(5))


def shrank(follower: Follower) -> None:
    follower.log.truncate_to(4)


CHANGES = [changed_epoch, other_leader, became_leader, deleted, offline, made_anew, grew, shrank]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "late",
    [
        answer(batches(5), watermark=6),
        answer(watermark=5),
        answer(diverging=(0, 2)),
        answer(error_code=ErrorCode.offset_out_of_range),
    ],
    ids=["records", "watermark", "divergence", "range"],
)
def test_an_answer_of_an_earlier_state_changes_nothing(make: Make, change: Any, late: ReplicaFetchedPartition) -> None:
    follower = Follower(make())
    asked, log, partition = follower.asked(), follower.log, follower.node.partition()
    change(follower)
    before = (log.log_start_offset, log.log_end_offset, partition.high_watermark)
    assert follower.take(late, asked) is AnswerOutcome.OUTDATED
    assert follower.logs.move_into(FOLLOWED, asked, 9, 20) is AnswerOutcome.OUTDATED
    assert (log.log_start_offset, log.log_end_offset, partition.high_watermark) == before


@pytest.mark.parametrize(
    "found",
    [
        answer(error_code=ErrorCode.unknown_leader_epoch, watermark=-1),
        answer(error_code=ErrorCode.kafka_storage_error, watermark=-1),
        answer(batches(3, 2)),
        answer(batches(5)[:-1] + b"!"),
        answer(batches(5)[:40]),
        answer(diverging=(3, 9)),
    ],
    ids=["epoch", "storage", "overlap", "checksum", "torn", "no divergence"],
)
def test_what_cannot_be_applied_pauses_the_partition(make: Make, found: ReplicaFetchedPartition) -> None:
    follower = Follower(make())
    assert follower.take(found) is AnswerOutcome.FAILED
    assert follower.asked().fetch_offset == 5


def test_whole_batches_before_a_damaged_one_stay(make: Make) -> None:
    follower = Follower(make())
    assert follower.take(answer(batches(5, 3)[:-1] + b"!", watermark=7)) is AnswerOutcome.FAILED
    assert follower.asked().fetch_offset == 7
    assert follower.node.partition().high_watermark == 3, "the answer as a whole was not applied"


def test_a_log_within_the_leaders_range_is_left_as_it_is(make: Make) -> None:
    follower = Follower(make())
    assert follower.logs.move_into(FOLLOWED, follower.asked(), 0, 9) is AnswerOutcome.FAILED
    assert follower.asked().fetch_offset == 5


# ---- durability ----


class HeldBackground(RealDisk):
    """Does what is asked of the background one step at a time, once `is_holding`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = False
        self.held: list[tuple[Future[None], Any]] = []

    def in_background(self, task: Any) -> Any:
        done: Future[None] = Future()
        self.held.append((done, task))
        if not self.is_holding:
            self.do_all()
        return done

    def fsync_in_background(self, files: Any, directories: Any = ()) -> Any:
        return self.in_background(lambda: [file.fsync() for file in files])

    def change_folders(self, task: Any) -> Any:
        return self.in_background(task)

    def do(self) -> None:
        done, task = self.held.pop(0)
        try:
            task()
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def do_all(self) -> None:
        while self.held:
            self.do()


def test_a_truncated_log_is_fetched_again_when_that_is_on_the_device(make: Make) -> None:
    """A crash would otherwise find a recovery point or a watermark above the records."""

    async def scenario() -> None:
        disk = HeldBackground()
        follower = Follower(make(disk=disk))
        node, path = follower.node, follower.node.config.log_dirs[0]
        node.partition().log.flush()
        node.logs.flusher.checkpoint()
        node.replicas.partition_replication._checkpoints.write([node.partition()])
        assert read_checkpoint(disk, path, RECOVERY_POINTS)[P0] == 4
        assert read_checkpoint(disk, path, HIGH_WATERMARKS)[P0] == 3
        disk.is_holding = True
        asked = follower.asked()
        assert follower.take(answer(diverging=(0, 2))) is AnswerOutcome.TRUNCATED
        assert follower.log.log_end_offset == 2
        assert follower.node.partition().high_watermark == 2
        await settle()
        assert disk.held
        while disk.held:
            assert follower.settled == []
            assert follower.logs.position(FOLLOWED, 1_000) is None
            late = asked._replace(fetch_offset=2)
            assert follower.take(answer(batches(2)), late) is AnswerOutcome.OUTDATED
            disk.do()
            await settle()
        assert follower.settled == [P0]
        assert read_checkpoint(disk, path, RECOVERY_POINTS)[P0] <= 2
        assert read_checkpoint(disk, path, HIGH_WATERMARKS)[P0] == 2
        assert follower.asked().fetch_offset == 2
        disk.is_holding = False

    run(scenario)


def test_a_truncation_that_does_not_reach_the_device_is_tried_again(make: Make, monkeypatch: Any) -> None:
    async def scenario() -> None:
        follower = Follower(make())
        tries = []
        original = follower.node.replicas.partition_replication.settle_truncations

        async def fails_once(logs: Any) -> Any:
            tries.append(len(logs))
            return [] if len(tries) == 1 else await original(logs)

        monkeypatch.setattr(follower.node.replicas.partition_replication, "settle_truncations", fails_once)
        follower.take(answer(diverging=(0, 2)))
        await asyncio.sleep(0.9)
        assert (tries, follower.settled) == ([1], [])
        await asyncio.sleep(0.2)
        assert (tries, follower.settled) == ([1, 1], [P0])

    run_virtually(scenario())


def test_a_replica_that_goes_while_its_truncation_settles_is_let_go(make: Make, monkeypatch: Any) -> None:
    async def scenario() -> None:
        follower = Follower(make())

        async def goes(_: Any) -> Any:
            follower.node.delete()
            return []

        monkeypatch.setattr(follower.node.replicas.partition_replication, "settle_truncations", goes)
        follower.take(answer(diverging=(0, 2)))
        await settle()
        assert follower.settled == [P0]
        assert follower.logs._unsettled == {}

    run(scenario)
