"""The records of a replica, read from the files of a stopped broker by another project's parser."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kafka.record import MemoryRecords


class ReplicaLog(NamedTuple):
    """One replica: the bytes of its segments in order, and its values by offset."""

    data: bytes
    values: dict[int, bytes]


def read_replica(folder: Path, topic: str, partition: int) -> ReplicaLog:
    """Read one replica below a broker's data folder; its batches' checksums are verified."""
    segments = sorted((folder / f"{topic}-{partition}").glob("*.log"), key=lambda path: int(path.stem))
    data = b"".join(path.read_bytes() for path in segments)
    values: dict[int, bytes] = {}
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc(), f"{folder.name}: {topic}-{partition} has a damaged batch"
        for record in batch:
            assert record.offset not in values
            values[record.offset] = bytes(record.value)
    return ReplicaLog(data, values)
