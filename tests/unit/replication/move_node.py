"""A broker's replicas in two log folders, on a disk that can crash and fail."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import cast

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataImage, metadata_delta
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch, decode_records, iterate_batches
from headwater.logtier.replication.log_dirs import ReplicaOnDisk
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import Buffer, Completion, File, RealDisk
from tests.topic_images import topic_changes, topic_deletion

P0 = TopicPartition("flights", 0)
TOPIC_ID = uuid.UUID(int=1)


class CrashError(Exception):
    """The process is gone: nothing is written any more."""


class CrashingDisk(RealDisk):
    """Changes names and files `changes_left` times, and never again."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_left = 1 << 40
        self.is_dead = False

    def change(self) -> None:
        self.changes_left -= 1
        if self.changes_left < 0:
            self.is_dead = True
            raise CrashError

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self.change()
        return super().open(path, create=create)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.change()
        super().write_atomic(path, data, sync=sync)

    def rename(self, path: str, new_path: str) -> None:
        self.change()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self.change()
        super().remove(path)

    def rmtree(self, path: str) -> None:
        self.change()
        super().rmtree(path)

    def makedirs(self, path: str) -> None:
        self.change()
        super().makedirs(path)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        self.change()
        super().copy(source, path, position, size)

    def in_background(self, task: Callable[[], None]) -> Completion:
        return super().in_background(task)


class FailingDisk(CrashingDisk):
    """Has no file descriptors left from the call that `fails_after` says on, until `recover`."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_after = 1 << 40
        self.failing_renames: list[str] = []

    def check(self) -> None:
        self.fails_after -= 1
        if self.fails_after < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def recover(self) -> None:
        self.fails_after = 1 << 40
        self.failing_renames.clear()

    def open(self, path: str, *, create: bool = False) -> File:
        self.check()
        return super().open(path, create=create)

    def open_read_only(self, path: str) -> File:
        self.check()
        return super().open_read_only(path)

    def read(self, path: str) -> bytes:
        self.check()
        return super().read(path)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.check()
        super().write_atomic(path, data, sync=sync)

    def fsync_directory(self, path: str) -> None:
        self.check()
        super().fsync_directory(path)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        self.check()
        super().copy(source, path, position, size)

    def rename(self, path: str, new_path: str) -> None:
        for part in self.failing_renames:
            if part in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(path, new_path)


class Node:
    """One broker's replicas in two folders, inside of a running event loop."""

    def __init__(self, tmp_path: Path, image: MetadataImage | None = None, config: TopicConfig | None = None) -> None:
        self.folders = [str(tmp_path / name) for name in ("one", "two")]
        self.disk = FailingDisk()
        self.config = config or TopicConfig(segment_bytes=2_000, index_interval_bytes=200)
        self.image = image or MetadataImage()
        loop = asyncio.get_running_loop()
        self.logs = LogManager(
            BrokerConfig.from_properties({"log.dirs": self.folders, "node.id": 1}),
            self.disk,
            SystemClock(),
            random.Random(1),
            topic_configs={"flights": self.config},
            topic_ids={"flights": TOPIC_ID} if image else {},
            post=lambda call: cast("None", loop.call_soon_threadsafe(call)),
        )
        self.logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda _: self.config,
            self.logs,
            SystemClock(),
            loop.call_later,
        )
        self.replicas.start(self.image)

    def create(self) -> None:
        image = self.image.apply(topic_changes("flights", TOPIC_ID, [(1,)]))
        delta = metadata_delta(self.image, image)
        self.image = image
        self.replicas.apply(delta)

    def delete(self) -> None:
        image = self.image.apply(topic_deletion(self.image, "flights"))
        delta = metadata_delta(self.image, image)
        self.image = image
        self.replicas.apply(delta)

    def append(self, value: int, **fields: int) -> int:
        batch = build_batch([Record(None, b"%d" % value, 1_000 + value)], **fields)
        return self.replicas.append(P0, batch, now_ms=1_000).first_offset

    def values(self) -> list[int]:
        log = self.replicas.log(P0)
        found: list[int] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            part = log.read(offset, 1 << 20, upper_bound_offset=log.log_end_offset, min_one_batch=True)
            for header, batch in iterate_batches(part.file.pread(part.size, part.position)):
                found += [int(record.value or b"") for record in decode_records(batch)]
                offset = header.last_offset + 1
        return found

    @property
    def folder(self) -> str:
        return os.path.dirname(self.replicas.log(P0).directory)

    @property
    def other_folder(self) -> str:
        return next(each for each in self.folders if each != self.folder)

    def future(self) -> ReplicaOnDisk | None:
        """The copy that is under way; None as well when a move has failed."""
        found = [each for where in self.replicas.log_dirs.describe(None) for each in where.replicas if each.is_future]
        return found[0] if found else None

    async def moved(self) -> None:
        """Wait until no move is under way."""
        while self.future():  # noqa: ASYNC110
            await asyncio.sleep(0)

    def kill(self) -> None:
        for directory in self.logs.directories:
            directory.release()
