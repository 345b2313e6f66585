"""Replicas that move between log folders: while they are written to, and through a crash at any moment."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from tests.unit.replication.move_node import P0, CrashError, Node


def mark(target: str, source: str) -> None:
    """Say that the log in one folder replaces that in the other one, once the move itself no longer does."""
    marker = Path(target, "flights-0", "replaces")
    while marker.exists():
        time.sleep(0.001)
    properties = Path(source, "meta.properties").read_text().splitlines()
    directory_id = next(line.partition("=")[2] for line in properties if line.startswith("directory.id"))
    marker.write_text(f"{directory_id} 0\n")


def code_of(node: Node, topic_partition: TopicPartition, path: str) -> ErrorCode:
    try:
        node.replicas.log_dirs.alter(topic_partition, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def test_a_replica_moves_with_all_of_its_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(200):
            node.append(value)
        target = node.other_folder
        assert code_of(node, P0, target) is ErrorCode.none
        assert code_of(node, P0, target) is ErrorCode.none
        await node.moved()
        assert node.folder == target
        assert node.values() == list(range(200))
        assert node.append(200) == 200
        found = node.replicas.log_dirs.describe({P0})
        assert [len(each.replicas) for each in found] == [int(path == target) for path in node.folders]
        node.kill()
        again = Node(tmp_path, node.image)
        assert again.folder == target
        assert again.values() == list(range(201))
        again.kill()

    asyncio.run(scenario())


def test_what_is_written_during_a_move_is_moved_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        value = 0
        while value < 100:
            node.append(value)
            value += 1
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        lagged = False
        while future := node.future():
            if value < 1_000:
                for _ in range(20):
                    assert node.append(value) == value
                    value += 1
            lagged = lagged or future.offset_lag > 0
            await asyncio.sleep(0)
        assert node.folder == target
        assert node.values() == list(range(value))
        assert lagged
        node.kill()

    asyncio.run(scenario())


def test_a_producers_sequence_goes_on_after_a_move_though_its_batches_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for sequence in range(30):
            node.append(sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log = node.replicas.log(P0)
        log.roll(1_000)
        log.delete_records_before(30, log.log_end_offset)
        log.delete_old_segments(1_000, log.log_end_offset)
        node.replicas.log_dirs.alter(P0, node.other_folder)
        await node.moved()
        assert node.values() == []
        assert node.append(30, producer_id=7, producer_epoch=0, base_sequence=30) == 30
        assert node.append(30, producer_id=7, producer_epoch=0, base_sequence=30) == 30
        node.kill()
        again = Node(tmp_path, node.image)
        assert again.replicas.log(P0).log_start_offset == 30
        assert again.values() == [30]
        again.kill()

    asyncio.run(scenario())


def test_those_who_wait_for_the_device_are_answered_after_a_move(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path, config=TopicConfig(flush_messages=1))
        node.create()
        for value in range(50):
            node.append(value)
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        answers: list[asyncio.Future[None]] = []
        value = 50
        while node.future():
            if len(answers) > 2_000:
                await asyncio.sleep(0.001)
                continue
            batch = build_batch([Record(None, b"%d" % value, 1_000)])
            replication = node.replicas.replication(P0, node.replicas.append(P0, batch, acks=-1), 1_000)
            assert replication is not None
            answers.append(asyncio.ensure_future(replication))
            value += 1
            await asyncio.sleep(0)
        await asyncio.gather(*answers)
        assert node.folder == target
        assert node.values() == list(range(value))
        node.kill()

    asyncio.run(scenario())


@pytest.mark.parametrize("changes", range(40))
def test_a_crash_at_any_moment_of_a_move_loses_nothing(tmp_path: Path, changes: int) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(60):
            node.append(value)
        source, target = node.folder, node.other_folder
        node.disk.changes_left = changes
        try:
            node.replicas.log_dirs.alter(P0, target)
            for _ in range(20_000):
                if node.folder == target or node.disk.is_dead:
                    break
                await asyncio.sleep(0)
        except CrashError:
            pass
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        node.disk.changes_left = -1
        node.kill()
        again = Node(tmp_path, node.image)
        assert again.values() == list(range(60))
        # An interrupted move goes on, a finished one stays finished.
        if again.folder == source and again.logs.interrupted_moves:
            again.replicas.log_dirs.resume()
            await again.moved()
            assert again.folder == target
        assert again.append(60) == 60
        for _ in range(200):
            if sum(len(os.listdir(folder)) for folder in again.folders) and not [
                name for folder in again.folders for name in os.listdir(folder) if name.endswith("-future")
            ]:
                break
            await asyncio.sleep(0.001)
        again.kill()
        last = Node(tmp_path, node.image)
        assert last.values() == list(range(61))
        assert not [name for folder in last.folders for name in os.listdir(folder) if name.endswith("-future")]
        last.kill()

    asyncio.run(scenario())


def test_both_names_after_a_power_loss_are_told_apart_by_the_marker(tmp_path: Path) -> None:
    """The new name reached the device and the renaming of the old log did not."""

    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(40):
            node.append(value)
        source, target = node.folder, node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        [deleted] = [name for name in os.listdir(source) if name.endswith("-delete")]
        node.append(40)
        node.kill()
        os.rename(f"{source}/{deleted}", f"{source}/flights-0")
        mark(target, source)
        again = Node(tmp_path, node.image)
        assert again.folder == target
        assert again.values() == list(range(41))
        again.kill()

    asyncio.run(scenario())


def test_a_topic_deleted_during_its_move_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(100):
            node.append(value)
        node.replicas.log_dirs.alter(P0, node.other_folder)
        await asyncio.sleep(0)
        node.delete()
        await node.moved()
        node.create()
        assert node.append(0) == 0
        node.kill()

    asyncio.run(scenario())


def test_retention_during_a_move_is_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(200):
            node.append(value)
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        await asyncio.sleep(0)
        log = node.replicas.log(P0)
        log.delete_records_before(150, log.log_end_offset)
        log.delete_old_segments(1_000, log.log_end_offset)
        await node.moved()
        assert node.folder == target
        assert node.replicas.log(P0).log_start_offset == 150
        assert node.values()[-50:] == list(range(150, 200))
        node.kill()

    asyncio.run(scenario())


def test_what_cannot_be_moved_is_refused_as_kafka_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        there, other = node.folder, node.other_folder
        assert code_of(node, P0, there) is ErrorCode.none
        assert code_of(node, P0, str(tmp_path / "none")) is ErrorCode.log_dir_not_found
        assert code_of(node, TopicPartition("flights", 9), other) is ErrorCode.unknown_topic_or_partition
        assert code_of(node, TopicPartition("t" * 240, 0), other) is ErrorCode.invalid_topic_exception
        node.logs.directories[node.folders.index(other)].health.fail("unplugged")
        assert code_of(node, P0, other) is ErrorCode.kafka_storage_error
        node.kill()

    asyncio.run(scenario())


def test_a_partition_that_comes_later_is_made_where_it_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        assert code_of(node, P0, node.folders[1]) is ErrorCode.unknown_topic_or_partition
        node.create()
        assert node.folder == node.folders[1]
        node.kill()

    asyncio.run(scenario())


def test_moves_keep_to_the_rate_that_is_set_and_go_on_when_it_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(200):
            node.append(value)
        target = node.other_folder
        node.replicas.log_dirs.limit_moves(0)
        node.replicas.log_dirs.alter(P0, target)
        for _ in range(200):
            await asyncio.sleep(0.0001)
        halted = node.future()
        assert halted is not None
        assert halted.size_bytes == 0
        node.replicas.log_dirs.limit_moves(10_000_000)
        await node.moved()
        assert node.folder == target
        assert node.values() == list(range(200))
        node.kill()

    asyncio.run(scenario())


def test_a_limited_move_copies_in_small_parts_and_follows_what_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(200):
            node.append(value)
        target = node.other_folder
        # A tenth of a second's is a part: less than a segment.
        node.replicas.log_dirs.limit_moves(15_000)
        node.replicas.log_dirs.alter(P0, target)
        sizes: set[int] = set()
        while (future := node.future()) and len(sizes) < 3:
            sizes.add(future.size_bytes)
            await asyncio.sleep(0.001)
        assert len(sizes) == 3
        node.append(200)
        node.replicas.log_dirs.limit_moves(LONG_MAX)
        await node.moved()
        assert node.folder == target
        assert node.values() == list(range(201))
        node.kill()

    asyncio.run(scenario())


def test_a_truncation_during_a_move_begins_the_copy_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's log that diverges is cut, and has other records at the same offsets afterwards."""

    async def scenario() -> None:
        node = Node(tmp_path)
        node.create()
        for value in range(1_900):
            node.append(value)
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        [(move, _)] = node.replicas.log_dirs._moves.values()
        is_open, go_on = asyncio.Event(), asyncio.Event()
        catch_up = move._catch_up

        async def later(future: Log) -> None:
            is_open.set()
            await go_on.wait()
            await catch_up(future)

        monkeypatch.setattr(move, "_catch_up", later)
        async with asyncio.timeout(20):
            await is_open.wait()
        for value in range(1_900, 2_000):
            node.append(value)
        assert move._future is not None
        assert 300 <= move._future.log_end_offset < 2_000
        node.replicas.log(P0).truncate_to(250)
        for value in range(10_250, 12_000):
            node.append(value)
        go_on.set()
        await node.moved()
        assert node.folder == target
        assert node.values() == [*range(250), *range(10_250, 12_000)]
        node.kill()

    asyncio.run(scenario())
