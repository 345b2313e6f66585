"""A log as its files say: what checks compare with the state of brokers, and of other replicas."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RecordBatchHeader,
    check_batch,
    decode_records,
    iterate_batches,
)
from tests.simulation.file_system import Folder, Inode
from tests.simulation.history import Entry, InvariantError

_LOG_SUFFIX = ".log"
_METADATA = "partition.metadata"


class BatchKey(NamedTuple):
    """One batch: where it begins, its leader epoch, and the checksum of its bytes."""

    base_offset: int
    leader_epoch: int
    checksum: int


@dataclass(slots=True)
class LogModel:
    """A log as its files say.

    Attributes:
        folder: The log's folder: a topic made anew has another one.
        topic_id: As the folder's metadata has it.
        entries: Records by offset; not those of the brokers' own topics.
        offsets: Offsets of records by value.
        sequences: Last sequence by producer id and epoch.
        batches: Batches by their end offset, in order.
        file, position, cuts: How far the newest segment has been read, and how often it had been cut then.
        on_batch: Called with each batch, and the one before it.
        may_miss_producers: Whether a producer may begin with any sequence: what it wrote before was lost.
    """

    key: TopicPartition
    folder: Folder
    on_batch: Callable[[LogModel, int, BatchKey, BatchKey | None], None]
    may_miss_producers: bool = False
    topic_id: str = ""
    entries: dict[int, Entry] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    batches: dict[int, BatchKey] = field(default_factory=dict)
    start: int = -1
    end: int = 0
    leader_epoch: int = -1
    file: Inode | None = None
    position: int = 0
    cuts: int = 0

    def read_all(self) -> None:
        """Read every segment."""
        metadata = self.folder.entries.get(_METADATA)
        if isinstance(metadata, Inode):
            found = re.search(rb"topic_id: (\S+)", bytes(metadata.data))
            self.topic_id = found[1].decode() if found else ""
        for name, inode in segments(self.folder):
            self.read_on(inode, name)

    def continues_in(self, inode: Inode, name: str) -> bool:
        """Whether a changed segment only adds to what has been read."""
        if self.file is inode:
            return self.cuts == inode.cuts
        is_next = base_offset_of(name) == self.end
        return is_next and any(each is self.file for each in self.folder.entries.values())

    def read_on(self, inode: Inode, name: str) -> None:
        """Read the rest of a segment, which is the newest one or the next."""
        if self.file is not inode:
            base_offset = base_offset_of(name)
            if self.start < 0:
                self.start = self.end = base_offset
            if base_offset != self.end:
                raise InvariantError(f"{self.key}: a segment begins at {base_offset}, the log ends at {self.end}")
            self.file, self.position, self.cuts = inode, 0, inode.cuts
        data = bytes(inode.data[self.position :])
        for _, batch in iterate_batches(data):
            self._take(bytes(batch))
        self.position = len(inode.data)

    def _take(self, batch: bytes) -> None:
        header = check_batch(batch)
        if header.base_offset != self.end:
            raise InvariantError(f"{self.key}: a batch begins at {header.base_offset}, the log ends at {self.end}")
        if header.partition_leader_epoch < self.leader_epoch:
            raise InvariantError(f"{self.key}: leader epoch {header.partition_leader_epoch} after {self.leader_epoch}")
        self.leader_epoch = header.partition_leader_epoch
        self._check_sequence(header)
        if self.key.topic not in INTERNAL_TOPICS and not header.is_control:
            self._take_records(header, batch)
        before = self.batches.get(self.end)
        self.end = header.last_offset + 1
        found = BatchKey(header.base_offset, header.partition_leader_epoch, header.crc)
        self.batches[self.end] = found
        self.on_batch(self, self.end, found, before)

    def _take_records(self, header: RecordBatchHeader, batch: bytes) -> None:
        for record in decode_records(batch):
            assert record.value is not None
            entry = Entry(header.partition_leader_epoch, record.value.rstrip())
            twice = self.offsets.setdefault(entry.value, record.offset)
            if twice != record.offset:
                raise InvariantError(f"{self.key}: record {entry.value!r} is at offsets {twice} and {record.offset}")
            self.entries[record.offset] = entry

    def _check_sequence(self, header: RecordBatchHeader) -> None:
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = (header.producer_id, header.producer_epoch)
        for known in [each for each in self.sequences if each[0] == producer[0] and each != producer]:
            if known > producer:
                raise InvariantError(
                    f"{self.key}: producer {producer[0]} wrote in epoch {producer[1]} after {known[1]}"
                )
            del self.sequences[known]
        if header.base_sequence == NO_SEQUENCE:
            return  # of a coordinator
        last = self.sequences.get(producer)
        expected = 0 if last is None else last + 1
        # As in Kafka, a producer of which nothing is left may begin with any sequence.
        is_lost = last is None and (self.may_miss_producers or self.start > 0)
        if header.base_sequence != expected and not is_lost:
            raise InvariantError(
                f"{self.key}: producer {header.producer_id} wrote sequence {header.base_sequence}, due was {expected}"
            )
        self.sequences[producer] = header.last_sequence

    def compare(self, newer: LogModel) -> None:
        """Check that the records of the same offset and epoch are the same in a later state of the log."""
        for offset, entry in self.entries.items():
            found = newer.entries.get(offset)
            if found is not None and found.leader_epoch == entry.leader_epoch and found != entry:
                raise InvariantError(f"{self.key}: offset {offset} of one epoch had {entry}, has {found}")


def segments(folder: Folder) -> list[tuple[str, Inode]]:
    """The segment files of a log's folder, oldest first."""
    return [
        (name, inode) for name, inode in sorted(folder.entries.items()) if is_segment(name) and isinstance(inode, Inode)
    ]


def is_segment(name: str) -> bool:
    """Whether a file or its path is that of a segment.

    >>> is_segment("00000000000000000012.log"), is_segment("00000000000000000012.index")
    (True, False)
    """
    return name.endswith(_LOG_SUFFIX)


def base_offset_of(name: str) -> int:
    """The offset with which a segment begins.

    >>> base_offset_of("00000000000000000012.log")
    12
    """
    return int(name.removesuffix(_LOG_SUFFIX))
