"""A disk that is full or broken: the right error, nothing half done, and work goes on when it is well again."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataImage, metadata_delta
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import Buffer, Completion, File, RealDisk, RealFile
from tests.topic_images import Changes, topic_changes, topic_deletion

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
NO_SPACE = OSError(28, "No space left on device")
BROKEN = OSError(5, "Input/output error")


class FaultyDisk(RealDisk):
    """Fails the operations named in `failing`, for paths that contain `where`."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, OSError] = {}
        self.where = ""

    def check(self, operation: str, path: str) -> None:
        if operation in self.failing and self.where in path:
            raise self.failing[operation]

    def open(self, path: str, *, create: bool = False) -> File:
        self.check("create" if create else "open", path)
        return FaultyFile(self, path, create)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.check("write_atomic", path)
        super().write_atomic(path, data, sync=sync)

    def rename(self, path: str, new_path: str) -> None:
        self.check("rename", path)
        super().rename(path, new_path)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        self.check("copy", source.path)
        super().copy(source, path, position, size)

    def change_folders(self, task: Callable[[], None]) -> Completion:
        """At once, while it fails what it is to fail."""
        done: Future[None] = Future()
        task()
        done.set_result(None)
        return done


class FaultyFile(RealFile):
    def __init__(self, disk: FaultyDisk, path: str, create: bool) -> None:
        super().__init__(path, 0o102 if create else 2)
        self.disk = disk

    def append(self, buffers: Sequence[Buffer]) -> int:
        self.disk.check("append", self.path)
        return super().append(buffers)

    def pread(self, size: int, position: int) -> bytes:
        self.disk.check("pread", self.path)
        return super().pread(size, position)


class World:
    """The replicas of one broker on a faulty disk, driven by images."""

    def __init__(self, path: Path, config: TopicConfig) -> None:
        self.disk = FaultyDisk()
        broker = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1})
        self.logs = LogManager(broker, self.disk, SystemClock(), random.Random(1))
        self.logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda _: config,
            self.logs,
            SystemClock(),
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
        )
        self.image = MetadataImage()

    def change(self, changes: Changes) -> None:
        image = self.image.apply(changes)
        delta = metadata_delta(self.image, image)
        self.image = image
        self.replicas.apply(delta)

    def create(self, topic_id: uuid.UUID, partitions: int = 1) -> None:
        self.change(topic_changes("flights", topic_id, [(1,)] * partitions))

    def delete(self) -> None:
        self.change(topic_deletion(self.image, "flights"))

    def append(self, topic_partition: TopicPartition = P0, **fields: int) -> int:
        batch = build_batch([Record(None, b"v" * 100, 1_000)], **fields)
        return self.replicas.append(topic_partition, batch, now_ms=1_000).first_offset

    def code_of_append(self, topic_partition: TopicPartition = P0) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            self.append(topic_partition)
        return raised.value.code

    def fetch(self, offset: int = 0, *topic_partitions: TopicPartition) -> list[ErrorCode]:
        wanted = [FetchPartition(each, None, offset, 1_000_000) for each in topic_partitions or (P0,)]
        found = self.replicas.fetches.fetch(wanted, bytes_max=1_000_000, bytes_min=0, wait_ms_max=0)
        assert isinstance(found, list)
        return [each.error_code for each in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, TopicConfig(segment_bytes=1_000))


@pytest.mark.parametrize("operation", ["append", "write_atomic"])
def test_a_full_disk_appends_nothing_and_the_retry_gets_the_same_offset(world: World, operation: str) -> None:
    world.create(FIRST)
    world.disk.failing = {operation: NO_SPACE}
    assert world.code_of_append() is ErrorCode.kafka_storage_error
    assert world.replicas.log(P0).log_end_offset == 0
    world.disk.failing = {}
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert world.append(P0, **sequence) == 0
    assert world.append(P0, **sequence) == 0
    assert world.replicas.log(P0).log_end_offset == 1


@pytest.mark.parametrize("operation", ["create", "write_atomic"])
def test_a_segment_that_cannot_be_begun_refuses_the_batch_and_begins_later(world: World, operation: str) -> None:
    world.create(FIRST)
    for _ in range(6):
        world.append()
    world.disk.failing = {operation: NO_SPACE}
    end = world.replicas.log(P0).log_end_offset
    while world.replicas.log(P0).segment_count == 1 and end < 20:
        try:
            world.append()
        except KafkaError as error:
            assert error.code is ErrorCode.kafka_storage_error
            break
        end += 1
    assert world.replicas.log(P0).log_end_offset == end
    world.disk.failing = {}
    assert world.append() == end
    assert world.replicas.log(P0).segment_count == 2
    assert world.fetch() == [ErrorCode.none]


def test_a_partition_that_cannot_be_read_fails_alone(world: World) -> None:
    world.create(FIRST, partitions=2)
    for _ in range(10):
        world.append(P0)
        world.append(P1)
    world.disk.failing, world.disk.where = {"pread": BROKEN}, "flights-1"
    assert world.fetch(1, P0, P1) == [ErrorCode.none, ErrorCode.kafka_storage_error]


def test_a_producer_does_not_get_the_read_error_of_a_fetch_that_it_wakes(world: World) -> None:
    async def scenario() -> None:
        world.create(FIRST)
        for _ in range(10):
            world.append()
        # The append begins a segment: the second one's records are all it gets, and lie on the disk.
        wanted = [FetchPartition(P0, None, 10, 1_000_000), FetchPartition(P0, None, 6, 10)]
        waiting = world.replicas.fetches.fetch(wanted, bytes_max=1_000_000, bytes_min=1_000_000, wait_ms_max=60_000)
        assert not isinstance(waiting, list)
        world.disk.failing = {"pread": BROKEN}
        assert world.append() == 10
        codes = [each.error_code for each in await waiting]
        assert ErrorCode.kafka_storage_error in codes

    asyncio.run(scenario())


def test_a_log_that_cannot_be_made_is_made_later_and_keeps_no_other_from_it(world: World) -> None:
    world.disk.failing, world.disk.where = {"write_atomic": NO_SPACE}, "flights-0"
    with pytest.raises(OSError, match="No space left"):
        world.create(FIRST, partitions=2)
    assert world.append(P1) == 0
    assert world.code_of_append(P0) is ErrorCode.kafka_storage_error
    assert world.fetch(0, P0) == [ErrorCode.kafka_storage_error]
    asyncio.run(world.replicas.make_missing_logs())
    assert world.code_of_append(P0) is ErrorCode.kafka_storage_error
    world.disk.failing = {}
    asyncio.run(world.replicas.make_missing_logs())
    assert world.append(P0) == 0
    assert world.append(P1) == 1


def test_a_log_whose_topic_id_cannot_be_stored_keeps_its_records(world: World, tmp_path: Path) -> None:
    """A power loss took the topic id, and the disk is full at the start: the log is not made anew."""
    world.create(FIRST)
    assert world.append(P0) == 0
    world.logs.close()
    (tmp_path / "flights-0" / "partition.metadata").unlink()
    again = World(tmp_path, TopicConfig(segment_bytes=1_000))
    again.disk.failing = {"write_atomic": NO_SPACE}
    again.replicas.start(world.image)
    assert again.code_of_append(P0) is ErrorCode.kafka_storage_error
    again.disk.failing = {}
    asyncio.run(again.replicas.make_missing_logs())
    assert again.append(P0) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("flights")] == ["flights-0"]


def test_a_deletion_that_the_disk_fails_leaves_nothing_to_the_next_topic_of_the_name(world: World) -> None:
    world.create(FIRST, partitions=2)
    world.append(P0)
    world.append(P1)
    world.disk.failing = {"rename": NO_SPACE}
    world.delete()
    assert world.fetch(0, P0, P1) == [ErrorCode.unknown_topic_or_partition] * 2
    world.disk.failing = {}
    world.create(SECOND, partitions=2)
    assert world.replicas.log(P0).topic_id == SECOND
    assert [world.append(P0), world.append(P1)] == [0, 0]


def test_a_topic_deleted_while_its_log_is_missing_is_not_made_later(world: World) -> None:
    world.disk.failing = {"create": NO_SPACE}
    with pytest.raises(OSError, match="No space left"):
        world.create(FIRST)
    world.disk.failing = {}
    world.delete()
    asyncio.run(world.replicas.make_missing_logs())
    assert world.code_of_append() is ErrorCode.unknown_topic_or_partition


def test_a_fetch_that_waits_is_answered_when_its_topic_goes(world: World) -> None:
    async def scenario() -> None:
        world.create(FIRST, partitions=2)
        wanted = [FetchPartition(each, None, 0, 1_000) for each in (P0, P1)]
        waiting = world.replicas.fetches.fetch(wanted, bytes_max=1_000, bytes_min=1, wait_ms_max=60_000)
        assert not isinstance(waiting, list)
        world.delete()
        world.create(SECOND, partitions=2)
        found = await waiting
        assert found[0].error_code is ErrorCode.unknown_topic_or_partition

    asyncio.run(scenario())
