"""Power losses: what was not synced is gone; what was acknowledged with flush.messages=1 is there."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch, decode_records, iterate_batches
from headwater.logtier.runtime.disk import Completion, File, RealDisk
from tests.manual_clock import ManualClock

TOPIC_ID = uuid.UUID(int=1)
PARTITIONS = [TopicPartition("flights", i) for i in range(2)]
CONFIG = TopicConfig(segment_bytes=1_500, index_interval_bytes=150, flush_messages=1)


class VolatileDisk(RealDisk):
    """Knows which bytes and names are on the device; background work is done when the test wants.

    `lose_power` leaves of everything else what chance decides: a file's tail, zeros in its place, or nothing; a
    folder's new names or not.
    """

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        #: Bytes of each file (by inode) that are on the device, and names by folder (path: inode).
        self.synced_bytes: dict[int, int] = {}
        self.synced_names: dict[str, set[str]] = {}
        self.pending: list[tuple[Future[None], Callable[[], None]]] = []

    def note_file(self, path: str) -> None:
        status = os.stat(path)
        self.synced_bytes[status.st_ino] = status.st_size

    def open(self, path: str, *, create: bool = False) -> File:
        is_new = create and not os.path.exists(path)
        file = super().open(path, create=create)
        if is_new:  # it may have the inode of a file that was removed
            self.synced_bytes[os.fstat(file.fileno()).st_ino] = 0
        return file

    def write_atomic(self, path: str, data: bytes | bytearray | memoryview, *, sync: bool = True) -> None:
        super().write_atomic(path, data, sync=False)
        if sync:
            self.note_file(path)
            self.fsync_directory(os.path.dirname(path))

    def fsync_directory(self, path: str) -> None:
        self.synced_names[path] = set(os.listdir(path))

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        def sync() -> None:
            for file in files:
                status = os.fstat(file.fileno())
                self.synced_bytes[status.st_ino] = status.st_size
            for directory in directories:
                self.fsync_directory(directory)

        return self.in_background(sync)

    def in_background(self, task: Callable[[], None]) -> Completion:
        future: Future[None] = Future()
        self.pending.append((future, task))
        return future

    def do_pending(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            future, task = self.pending.pop(0)
            try:
                task()
            except OSError as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def lose_power(self, chance: random.Random) -> None:
        self.pending.clear()
        for directory, names, files in os.walk(self.root, topdown=False):
            known = self.synced_names.get(directory, set())
            for name in (*names, *files):
                path = os.path.join(directory, name)
                if name not in known and chance.random() < 0.5:
                    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
                elif not os.path.isdir(path):
                    self._tear(path, chance)

    def _tear(self, path: str, chance: random.Random) -> None:
        status = os.stat(path)
        synced = min(self.synced_bytes.get(status.st_ino, 0), status.st_size)
        if synced == status.st_size:
            return
        with open(path, "r+b") as file:
            kept = chance.randint(synced, status.st_size)
            if chance.random() < 0.5:
                file.truncate(kept)
            else:
                file.seek(kept)
                file.write(bytes(status.st_size - kept))


class World:
    def __init__(self, root: str, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.clock = ManualClock()
        #: The offsets that must be there, and the log end offset at the start.
        self.acknowledged: dict[TopicPartition, set[int]] = {partition: set() for partition in PARTITIONS}
        self.began: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 0)
        self.leader_epoch = 0
        self.start()

    def start(self) -> None:
        self.disk = VolatileDisk(self.root)
        # What survived the last loss is on the device.
        for directory, names, files in os.walk(self.root):
            self.disk.synced_names[directory] = {*names, *files}
            for name in files:
                self.disk.note_file(os.path.join(directory, name))
        self.logs = LogManager(
            BrokerConfig.from_properties({"log.dirs": self.root, "node.id": 1}),
            self.disk,
            self.clock,
            random.Random(self.chance.random()),
            topic_configs={"flights": CONFIG},
            post=lambda call: call(),
        )
        self.logs.flusher.active_checkpoint_bytes = 1
        self.logs.start()
        for partition in PARTITIONS:
            self.logs.create(partition, TOPIC_ID, CONFIG)

    def append(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        log = self.logs.logs[partition]
        offset = log.log_end_offset
        record = Record(None, b"%d" % offset * self.chance.randint(1, 20), self.clock.ms + offset)
        self.leader_epoch += self.chance.random() < 0.1
        try:
            info = log.append_as_leader(build_batch([record]), leader_epoch=self.leader_epoch, now_ms=self.clock.ms)
        except KafkaError:
            pytest.fail("nothing fails on this disk")
        assert info.flush is not None

        def note(error: KafkaError | None) -> None:
            if error is None:
                self.acknowledged[partition] |= set(range(self.began[partition], info.last_offset + 1))

        info.flush.add_done_callback(note)

    def maintain(self) -> None:
        self.clock.ms += 61_000
        self.logs.maintain(self.clock.ms, lambda key: self.logs.logs[key].log_end_offset)

    def flush_all(self) -> None:
        """As when much has come: here each last segment is written down, however little it grew."""
        self.logs.flusher.flush()

    def lose_power(self) -> None:
        for directory in self.logs.directories:
            directory.release()
        self.disk.lose_power(self.chance)
        self.start()
        for partition in PARTITIONS:
            self.check(partition)

    def check(self, partition: TopicPartition) -> None:
        log = self.logs.logs[partition]
        end = log.log_end_offset
        # What was not acknowledged may be gone although later records are there: the system writes as it likes.
        seen = set()
        offset = log.log_start_offset
        while offset < end:
            part = log.read(offset, 1_000, upper_bound_offset=end, min_one_batch=True)
            assert part.size, f"{partition} has nothing to read at {offset}, before its end at {end}"
            for header, batch in iterate_batches(part.file.pread(part.size, part.position)):
                [record] = decode_records(batch)
                assert record.offset >= offset
                assert str(record.offset).encode() in (record.value or b"")
                seen.add(record.offset)
                found = log.offset_for_timestamp(record.timestamp_ms)
                assert found is not None
                assert found.offset <= record.offset
                offset = header.last_offset + 1
        assert not self.acknowledged[partition] - seen, f"{partition} lost acknowledged records"
        epochs: dict[int, int] = {}
        for segment in log.segments:
            for _, _, header in segment.headers():
                epochs.setdefault(header.partition_leader_epoch, header.base_offset)
        assert log.leader_epochs.entries() == list(epochs.items()), f"{partition} lost leader epochs"
        for segment in log.segments:
            newest = max((found.header.max_timestamp_ms for found in segment.headers()), default=-1)
            assert segment.max_timestamp_ms == newest
        self.acknowledged[partition], self.began[partition] = seen, end


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_takes_nothing_that_was_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="headwater-log-") as parent:
        root = f"{parent}/data"
        Path(root).mkdir()
        world = World(root, chance)
        for _ in range(3):
            for _ in range(chance.randint(1, 80)):
                action = chance.random()
                if action < 0.7:
                    world.append()
                elif action < 0.9:
                    world.disk.do_pending(chance.randint(1, 3))
                elif action < 0.95:
                    world.flush_all()
                else:
                    world.maintain()
            world.lose_power()
