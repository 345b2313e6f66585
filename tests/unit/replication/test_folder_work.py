"""Logs that are made and put away beside the event loop, while the metadata goes on changing."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import Buffer, RealDisk
from tests.topic_images import Changes, topic_changes, topic_deletion

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
BATCH = build_batch([Record(None, b"v" * 100, 1_000)])
#: Some more than are made at a time.
MANY = 100


class WatchedDisk(RealDisk):
    """Notes which thread makes and renames folders; holds those threads up until `go`; fails some paths."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.go = threading.Event()
        self.go.set()
        self.failing: dict[str, OSError] = {}

    def check(self, path: str) -> None:
        self.threads.add(threading.get_ident())
        for part, error in self.failing.items():
            if part in path:
                raise error

    def change_folders(self, task: Callable[[], None]) -> Any:
        def later() -> None:
            self.go.wait()
            task()

        return super().change_folders(later)

    def makedirs(self, path: str) -> None:
        self.check(path)
        super().makedirs(path)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.check(path)
        super().write_atomic(path, data, sync=sync)

    def rename(self, path: str, new_path: str) -> None:
        self.check(path)
        super().rename(path, new_path)


class Node:
    """The replicas of one broker behind its metadata, as the broker puts them together."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        self.disk = WatchedDisk()
        config = BrokerConfig.from_properties({"log.dirs": folders, "node.id": 1})
        loop = asyncio.get_running_loop()
        post = cast("Callable[[Callable[[], None]], None]", loop.call_soon_threadsafe)
        self.logs = LogManager(config, self.disk, SystemClock(), random.Random(1), post=post)
        self.logs.start()
        self.replicas = ReplicaManager(1, lambda _: TopicConfig(), self.logs, SystemClock(), loop.call_later)
        self.metadata = MetadataCache(config)
        self.metadata.prepare_with(self.replicas.prepare)
        self.metadata.subscribe(self.replicas.apply)
        self.disk.threads.clear()

    async def change(self, changes: Changes) -> None:
        await self.metadata.advance(self.metadata.image.apply(changes))

    async def create(self, topic: str, partitions: int = MANY, topic_id: uuid.UUID = FIRST) -> None:
        await self.change(topic_changes(topic, topic_id, [(1,)] * partitions))

    def append(self, topic: str, partition: int = 0) -> int | ErrorCode:
        try:
            return self.replicas.append(TopicPartition(topic, partition), BATCH, now_ms=1_000).first_offset
        except KafkaError as error:
            return error.code

    def names(self, end: str = "") -> list[str]:
        return [
            name
            for folder in self.folders
            for name in os.listdir(folder)
            if name.startswith(("flights", "trains")) and name.endswith(end)
        ]

    def close(self) -> None:
        self.disk.go.set()
        self.logs.close()


def run(folders: list[str], scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        node = Node(folders)
        try:
            await scenario(node)
        finally:
            node.close()

    asyncio.run(main())


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("one", "two")]


def test_the_thread_of_the_event_loop_makes_and_renames_no_folder(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.create("flights")
        assert len(node.names()) == MANY
        await node.change(topic_deletion(node.metadata.image, "flights"))
        await node.create("trains", 1)
        assert len(node.names("-delete")) == MANY
        assert threading.get_ident() not in node.disk.threads

    run(folders, scenario)


def test_a_topic_is_seen_by_nobody_until_all_of_its_logs_are_there(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        seen: list[MetadataDelta] = []
        node.metadata.subscribe(seen.append)
        node.disk.go.clear()
        creating = asyncio.create_task(node.create("flights"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not creating.done()
        assert node.metadata.image.topic("flights") is None
        assert node.append("flights") is ErrorCode.unknown_topic_or_partition
        assert not seen
        node.disk.go.set()
        await creating
        assert node.append("flights", MANY - 1) == 0

    run(folders, scenario)


def test_the_loop_has_turns_between_the_logs_of_one_topic(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        turns = 0
        creating = asyncio.create_task(node.create("flights"))
        while not creating.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > MANY // 64

    run(folders, scenario)


def test_a_topic_made_anew_at_once_does_not_lose_its_folders_to_the_deletion_before(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.create("flights", 3)
        assert node.append("flights") == 0
        node.disk.go.clear()
        await node.change(topic_deletion(node.metadata.image, "flights"))
        assert node.append("flights") is ErrorCode.unknown_topic_or_partition
        creating = asyncio.create_task(node.create("flights", 3, SECOND))
        await asyncio.sleep(0)
        node.disk.go.set()
        await creating
        assert [node.append("flights", partition) for partition in range(3)] == [0, 0, 0]
        assert {log.topic_id for log in node.logs.logs.values()} == {SECOND}
        assert sorted(name for name in node.names() if not name.endswith("-delete")) == [
            f"flights-{index}" for index in range(3)
        ]
        assert len(node.names("-delete")) == 3

    run(folders, scenario)


def test_a_log_that_the_disk_does_not_take_leaves_the_others_alone(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        node.disk.failing = {"flights-1/": OSError(errno.ENOSPC, "No space left on device")}
        with pytest.raises(OSError, match="No space left"):
            await node.create("flights", 3)
        assert [node.append("flights", index) for index in range(3)] == [0, ErrorCode.kafka_storage_error, 0]
        await node.replicas.make_missing_logs()
        assert node.append("flights", 1) is ErrorCode.kafka_storage_error
        node.disk.failing = {}
        await node.replicas.make_missing_logs()
        assert node.append("flights", 1) == 0

    run(folders, scenario)


def test_logs_go_to_the_folder_that_is_left_when_the_other_one_fails_meanwhile(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        node.disk.failing = {f"{folders[1]}/flights-": OSError(errno.EIO, "Input/output error")}
        with pytest.raises(OSError, match="Input/output error"):
            await node.create("flights")
        assert not node.logs.directories[1].is_online
        await node.replicas.make_missing_logs()
        assert [node.append("flights", partition) for partition in range(MANY)] == [0] * MANY
        assert {os.path.dirname(log.directory) for log in node.logs.logs.values()} == {folders[0]}

    run(folders, scenario)


def test_logs_made_in_a_folder_that_fails_before_they_are_taken_are_made_in_another(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        async def unplug(_: MetadataDelta) -> None:
            node.logs.directories[1].health.fail("unplugged")

        node.metadata.prepare_with(unplug)
        await node.create("flights", 4)
        assert [node.append("flights", partition) for partition in range(4)] == [0] * 4
        assert {os.path.dirname(log.directory) for log in node.logs.logs.values()} == {folders[0]}

    run(folders, scenario)


def test_new_logs_are_spread_over_the_folders_as_if_they_were_made_one_by_one(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.create("flights", 20)
        assert [node.logs.placed.count_in(directory) for directory in node.logs.directories] == [10, 10]
        await node.change(topic_deletion(node.metadata.image, "flights"))
        assert [node.logs.placed.count_in(directory) for directory in node.logs.directories] == [0, 0]

    run(folders, scenario)


def test_a_topic_that_goes_while_its_missing_log_is_made_leaves_nothing(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        node.disk.failing = {"flights-0/": OSError(errno.ENOSPC, "No space left on device")}
        with pytest.raises(OSError, match="No space left"):
            await node.create("flights", 1)
        node.disk.failing = {}
        node.disk.go.clear()
        making = asyncio.create_task(node.replicas.make_missing_logs())
        await asyncio.sleep(0)
        await node.change(topic_deletion(node.metadata.image, "flights"))
        node.disk.go.set()
        await making
        await node.create("trains", 1)  # after what was asked for before
        assert [name for name in node.names() if not name.endswith("-delete")] == ["trains-0"]
        assert node.append("flights") is ErrorCode.unknown_topic_or_partition

    run(folders, scenario)


def test_a_stop_waits_for_the_folders_that_are_being_made(folders: list[str]) -> None:
    async def scenario(node: Node) -> None:
        node.disk.go.clear()
        creating = asyncio.create_task(node.create("flights"))
        for _ in range(5):
            await asyncio.sleep(0)
        threading.Timer(0.01, node.disk.go.set).start()
        node.logs.close()
        made = len(node.names())
        assert made > 0
        with pytest.raises(OSError, match=r"all folders of log\.dirs are offline"):
            await creating
        assert len(node.names()) == made, "nothing is written to a folder that was given up"

    run(folders, scenario)
