"""A folder with one log in it, opened and crashed at will."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from crc32c import crc32c

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.log import AppendInfo, Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    CRC,
    HEADER,
    Record,
    RecordBatchHeader,
    build_batch,
    check_batch,
    decode_records,
    iterate_batches,
)
from headwater.logtier.runtime.disk import Completion, File, RealDisk

TOPIC_ID = uuid.UUID(int=7)
NOW_MS = 1_000_000


class PromptDisk(RealDisk):
    """Does at once what is asked of the background."""

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        def sync() -> None:
            for file in files:
                file.fsync()
            for directory in directories:
                self.fsync_directory(directory)

        return self.in_background(sync)

    def change_folders(self, task: Callable[[], None]) -> Completion:
        return self.in_background(task)

    def in_background(self, task: Callable[[], None]) -> Completion:
        done: Future[None] = Future()
        try:
            task()
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done


def resealed(batch: bytes, **changes: int) -> bytes:
    """The batch with other fields in its header and the checksum of these."""
    header = replace(RecordBatchHeader.parse(batch), **changes)
    changed = bytearray(batch)
    HEADER.pack_into(changed, 0, *astuple(header))
    changed[CRC:ATTRIBUTES] = crc32c(bytes(changed[ATTRIBUTES:])).to_bytes(4, "big")
    return bytes(changed)


class MakeBatch(Protocol):
    def __call__(self, count: int = 1, *, value: bytes = ..., timestamp_ms: int = ..., **fields: Any) -> bytes: ...


@dataclass
class LogFolder:
    """Opens logs in a folder; `crash` leaves the files as a killed broker does."""

    path: Path
    config: TopicConfig
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        self.open()

    def open(self, *, clean: bool = True, recovery_point: int = 0, log_start_offset: int = 0) -> Log:
        self.log = open_log(
            PromptDisk(),
            str(self.path),
            TopicPartition("flights", 0),
            TOPIC_ID,
            self.config,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=NOW_MS,
        )
        return self.log

    def reopen(self, *, log_start_offset: int = 0) -> Log:
        self.log.close()
        return self.open(clean=True, recovery_point=self.log.log_end_offset, log_start_offset=log_start_offset)

    def crash(self, *, recovery_point: int = 0) -> Log:
        """What is in the page cache survives a killed process; the object is let go without closing."""
        copy = self.path.with_name(self.path.name + "-after")
        shutil.copytree(self.path, copy)
        shutil.rmtree(self.path)
        copy.rename(self.path)
        return self.open(clean=False, recovery_point=recovery_point)

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.log.configure(self.config)

    def append(self, batch: bytes, *, leader_epoch: int = 0, now_ms: int = NOW_MS) -> AppendInfo:
        return self.log.append_as_leader(batch, leader_epoch=leader_epoch, now_ms=now_ms)

    def names(self, suffix: str) -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.name.endswith(suffix))

    def read_all(self, *, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
        """Every (offset, value), read as a consumer does; checks each batch's checksum."""
        found: list[tuple[int, bytes | None]] = []
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            part = self.log.read(offset, max_bytes, upper_bound_offset=self.log.log_end_offset, min_one_batch=True)
            data = part.file.pread(part.size, part.position)
            batches: Sequence[memoryview] = [batch for _, batch in iterate_batches(data)]
            assert batches, f"nothing to read at {offset}"
            for batch in batches:
                check_batch(batch)
                found += [(record.offset, record.value) for record in decode_records(batch) if record.offset >= offset]
                offset = check_batch(batch).last_offset + 1
        return found


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    return LogFolder(tmp_path / "flights-0", TopicConfig())


@pytest.fixture
def small_segments(tmp_path: Path) -> LogFolder:
    """Segments of about ten small batches, an index entry for every second of them."""
    return LogFolder(tmp_path / "flights-0", TopicConfig(segment_bytes=1_000, index_interval_bytes=150))


@pytest.fixture
def make_batch() -> MakeBatch:
    def make(count: int = 1, *, value: bytes = b"v" * 20, timestamp_ms: int = NOW_MS, **fields: Any) -> bytes:
        records = [Record(None, value, timestamp_ms + i) for i in range(count)]
        return build_batch(records, **fields)

    return make
