"""A disk without room: nothing half written, indexes right, reads go on, retention makes room, work goes on."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Buffer, File, RealFile
from tests.unit.log.conftest import NOW_MS, TOPIC_ID, MakeBatch, PromptDisk

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class SmallDisk(PromptDisk):
    """Takes `room` more bytes, then refuses, with a part of the last write done; unlinking gives nothing back."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 40

    def take(self, size: int) -> int:
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def open(self, path: str, *, create: bool = False) -> File:
        return SmallFile(self, path, create)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        if self.take(len(data)) < len(data):
            raise NO_SPACE
        super().write_atomic(path, data, sync=sync)


class SmallFile(RealFile):
    def __init__(self, disk: SmallDisk, path: str, create: bool) -> None:
        super().__init__(path, 0o102 if create else 2)
        self.disk = disk

    def append(self, buffers: Sequence[Buffer]) -> int:
        wanted = sum(len(buffer) for buffer in buffers)
        taken = self.disk.take(wanted)
        if taken < wanted:
            with open(self.path, "r+b") as file:
                file.seek(self.size)
                file.write(b"".join(bytes(buffer) for buffer in buffers)[:taken])
            raise NO_SPACE
        return super().append(buffers)


class World:
    def __init__(self, path: Path, config: TopicConfig) -> None:
        path.mkdir()
        self.path = path
        self.config = config
        self.disk = SmallDisk()
        self.health = DirectoryHealth(str(path.parent))
        self.log = self.open(clean=True)

    def open(self, *, clean: bool) -> Log:
        self.log = open_log(
            self.disk,
            str(self.path),
            TopicPartition("flights", 0),
            TOPIC_ID,
            self.config,
            was_stopped_cleanly=clean,
            recovery_point=0,
            log_start_offset=0,
            now_ms=NOW_MS,
            health=self.health,
        )
        return self.log

    def append(self, batch: bytes) -> int | ErrorCode:
        try:
            return self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS).first_offset
        except KafkaError as error:
            return error.code

    def fill(self, batch: bytes) -> int:
        """Append until the disk is full; return the log's end."""
        while not isinstance(self.append(batch), ErrorCode):
            pass
        assert self.append(batch) is ErrorCode.kafka_storage_error
        return self.log.log_end_offset

    def offsets(self) -> list[int]:
        offset, found = self.log.log_start_offset, []
        while offset < self.log.log_end_offset:
            part = self.log.read(offset, 1, upper_bound_offset=self.log.log_end_offset, min_one_batch=True)
            found.append(part.first_offset)
            offset = part.first_offset + 1
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "flights-0", TopicConfig(segment_bytes=1_000, index_interval_bytes=150))


@pytest.mark.parametrize("room", [0, 1, 61, 700, 999, 1_000, 1_100, 2_345, 5_000])
def test_whatever_room_there_was_nothing_half_written_stays(world: World, make_batch: MakeBatch, room: int) -> None:
    world.disk.room = room
    end = world.fill(make_batch(1))
    assert world.offsets() == list(range(end))
    world.disk.room = 1 << 40
    assert world.append(make_batch(1)) == end
    assert world.append(make_batch(1)) == end + 1
    assert world.offsets() == list(range(end + 2))
    assert world.health.failure is None
    world.open(clean=False)
    assert world.offsets() == list(range(end + 2))


@pytest.mark.parametrize("room", [0, 1, 8, 20, 100])
def test_a_log_that_is_flushed_and_stopped_without_room_takes_records_afterwards(
    world: World, make_batch: MakeBatch, room: int
) -> None:
    """An index that cannot be written is no reason to give the log up: it is built anew when it is needed."""
    for _ in range(25):
        world.append(make_batch(1))
    world.disk.room = room
    world.log.flush()
    assert world.log.durability.is_complete
    world.log.close()
    world.disk.room = 1 << 40
    world.open(clean=True)
    assert world.offsets() == list(range(25))
    assert world.append(make_batch(1)) == 25


def test_a_segment_that_rolls_without_room_for_its_indexes_is_found_by_offset_and_time(
    world: World, make_batch: MakeBatch
) -> None:
    for i in range(5):
        world.append(make_batch(1, timestamp_ms=NOW_MS + i))
    world.disk.room = 0
    world.log.roll(NOW_MS)
    assert list(world.path.glob("*index")) == []
    world.disk.room = 1 << 40
    assert world.append(make_batch(1, timestamp_ms=NOW_MS + 5)) == 5
    world.open(clean=False)
    assert world.offsets() == list(range(6))
    found = world.log.offset_for_timestamp(NOW_MS + 3)
    assert found is not None
    assert found.offset == 3


def test_retention_makes_room_on_a_full_disk(world: World, make_batch: MakeBatch) -> None:
    world.disk.room = 5_000
    end = world.fill(make_batch(1))
    world.log.configure(TopicConfig(segment_bytes=1_000, retention_ms=1))
    world.log.delete_old_segments(NOW_MS + 1_000_000, world.log.log_end_offset)
    assert world.log.log_start_offset >= end - 10
    world.disk.room = 5_000
    assert world.append(make_batch(1)) == end


def test_producers_are_remembered_though_there_is_no_room_for_snapshots(world: World, make_batch: MakeBatch) -> None:
    def batch(sequence: int) -> bytes:
        return make_batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(5):
        world.append(batch(sequence))
    world.disk.room = 0
    world.log.roll(NOW_MS)
    world.disk.room = 1 << 40
    for sequence in range(5, 8):
        world.append(batch(sequence))
    world.open(clean=False)
    assert world.append(batch(7)) == 7
    assert world.append(batch(8)) == 8
