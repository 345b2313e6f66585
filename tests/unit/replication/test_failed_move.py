"""Moves between log folders that fail at some step: what was acknowledged is there, what was asked is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.runtime.completed import completed
from headwater.logtier.runtime.disk import Completion, File
from tests.unit.replication.move_node import P0, Node


def fill(node: Node) -> list[int]:
    """Append in two leader's epochs and from a producer whose transaction was aborted; the values."""
    node.create()
    for value in range(60):
        node.append(value)
    return list(range(60))


def append_if_possible(node: Node, values: list[int]) -> None:
    try:
        node.append(len(values))
    except KafkaError as error:
        assert error.code is ErrorCode.kafka_storage_error
    else:
        values.append(len(values))


def test_without_file_descriptors_at_any_step_of_a_move_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async def scenario(path: Path, calls: int) -> bool:
        node = Node(path, config=TopicConfig(segment_bytes=4_000, index_interval_bytes=400))
        values = fill(node)
        target = node.other_folder
        node.disk.fails_after = calls
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        has_failed = node.disk.fails_after < 0
        append_if_possible(node, values)
        node.disk.recover()
        append_if_possible(node, values)
        assert node.values() == values
        # What a failed move leaves is removed before another broker looks.
        await completed(node.disk.in_background(lambda: None))
        node.kill()
        again = Node(path, node.image)
        assert again.values() == values
        append_if_possible(again, values)
        again.kill()
        return has_failed

    calls = 0
    while asyncio.run(scenario(tmp_path / str(calls), calls)):
        calls += 1
    assert calls > 20


def test_a_log_that_cannot_take_its_place_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        values = fill(node)
        source, target = node.folder, node.other_folder
        node.disk.failing_renames = ["-future"]
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        append_if_possible(node, values)
        # That error takes the new folder offline; the old one serves on.
        assert node.folder == source
        assert values == list(range(61))
        node.kill()
        again = Node(tmp_path, node.image)
        assert (again.folder, again.values()) == (source, values)
        again.kill()

    asyncio.run(scenario())


def test_an_old_log_that_cannot_be_given_its_name_back_takes_no_more_records(tmp_path: Path) -> None:
    """Its folder has the name of a deleted one: the next start goes on with the copy."""

    async def scenario() -> None:
        node = Node(tmp_path)
        values = fill(node)
        target = node.other_folder
        node.disk.failing_renames = ["-future", "-delete"]
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        with pytest.raises(KafkaError) as caught:
            node.append(60)
        assert caught.value.code is ErrorCode.kafka_storage_error
        node.kill()
        again = Node(tmp_path, node.image)
        assert (again.folder, again.values()) == (target, values)
        again.kill()

    asyncio.run(scenario())


def test_a_question_to_the_transaction_coordinator_outlives_a_move(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        values = fill(node)
        asked = node.replicas.begin_verification(P0, 7, 0, 0, is_epoch_bumped=True)
        assert asked is not None
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        assert node.folder == target
        batch = build_batch(
            [Record(None, b"60", 1_000)], producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
        )
        assert node.replicas.append(P0, batch, now_ms=1_000, verification=asked).first_offset == 60
        assert node.values() == [*values, 60]
        node.kill()

    asyncio.run(scenario())


def test_what_is_acknowledged_from_the_device_after_a_move_has_its_folders_name_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path, config=TopicConfig(flush_messages=1))
        fill(node)
        target = node.other_folder
        node.replicas.log_dirs.alter(P0, target)
        await node.moved()
        synced: list[str] = []
        sync = node.disk.fsync_in_background

        def note(files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
            synced.extend(directories)
            return sync(files, directories)

        node.disk.fsync_in_background = note  # type: ignore[method-assign]
        batch = build_batch([Record(None, b"60", 1_000)])
        info = node.replicas.append(P0, batch, acks=-1)
        waiting = node.replicas.replication(P0, info, 1_000)
        assert waiting is not None
        await waiting
        assert target in synced
        node.kill()

    asyncio.run(scenario())
