"""A broker's replicas of one topic on a real disk, appended to and fetched from without a network."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataImage, metadata_delta
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.disk import RealDisk
from tests.manual_clock import ManualClock
from tests.topic_images import Changes, topic_changes, topic_deletion

TOPIC = "flights"
LARGE = 1 << 30
NOW_MS = 1_000


def partition(index: int) -> TopicPartition:
    return TopicPartition(TOPIC, index)


class ReplicasOnDisk:
    """Partitions 0 to `partitions` - 1 of one topic, led by this broker."""

    def __init__(self, path: Path, partitions: int, config: TopicConfig | None = None) -> None:
        clock = ManualClock(NOW_MS)
        self.log_manager = LogManager(
            BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1}),
            RealDisk(),
            clock,
            random.Random(1),
        )
        self.log_manager.start()
        topic_config = config or TopicConfig()
        self.replicas = ReplicaManager(
            1,
            lambda _: topic_config,
            self.log_manager,
            clock,
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
        )
        self.image = MetadataImage()
        self._sequences: dict[tuple[int, int], int] = {}
        self.change(topic_changes(TOPIC, uuid.UUID(int=5), [(1,)] * partitions))

    def change(self, changes: Changes) -> None:
        """Give the topic another image, or none."""
        self.follow(self.image.apply(changes))

    def delete(self) -> None:
        """Delete the topic."""
        self.change(topic_deletion(self.image, TOPIC))

    def follow(self, image: MetadataImage) -> None:
        delta = metadata_delta(self.image, image)
        self.image = image
        self.replicas.apply(delta)

    def append(self, index: int = 0, value_bytes: int = 100) -> int:
        """Append a batch of one record; the batch's size."""
        batch = build_batch([Record(None, b"v" * value_bytes, NOW_MS)])
        return self.replicas.append(partition(index), batch).size_bytes

    def append_in_transaction(self, index: int = 0, producer_id: int = 7, value_bytes: int = 100) -> int:
        """Append a batch of a producer's transaction, which begins here if it is not open; the batch's size."""
        sequence = self._sequences.get((index, producer_id), 0)
        verification = self.replicas.begin_verification(
            partition(index), producer_id, 0, sequence, is_epoch_bumped=False
        )
        batch = build_batch(
            [Record(None, b"v" * value_bytes, NOW_MS)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        info = self.replicas.append(partition(index), batch, verification=verification)
        self._sequences[index, producer_id] = sequence + 1
        return info.size_bytes

    def end_transaction(self, index: int = 0, producer_id: int = 7, *, commit: bool = True) -> int:
        """Append the marker; its size."""
        info = self.replicas.append_end_txn_marker(
            partition(index),
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            transaction_version=1,
        )
        return info.size_bytes

    def end_offset(self, index: int = 0) -> int:
        return self.replicas.log(partition(index)).log_end_offset

    def wanted(
        self, index: int = 0, offset: int | None = None, bytes_max: int = LARGE, *, committed: bool = False
    ) -> FetchPartition:
        """What is asked of a partition, from its end on if no offset is given."""
        offset = self.end_offset(index) if offset is None else offset
        return FetchPartition(partition(index), None, offset, bytes_max, is_read_committed=committed)

    def fetch(
        self, wanted: Sequence[FetchPartition], bytes_min: int, *, bytes_max: int = LARGE, wait_ms: int = 3_600_000
    ) -> Fetched | asyncio.Future[Fetched]:
        return self.replicas.fetches.fetch(wanted, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms)

    def waiting(
        self, wanted: Sequence[FetchPartition], bytes_min: int, *, bytes_max: int = LARGE, wait_ms: int = 3_600_000
    ) -> asyncio.Future[Fetched]:
        """A fetch that has to wait."""
        found = self.fetch(wanted, bytes_min, bytes_max=bytes_max, wait_ms=wait_ms)
        assert not isinstance(found, list), found
        return found

    def read(self, wanted: Sequence[FetchPartition], bytes_max: int = LARGE) -> Fetched:
        """The same, without a wait."""
        found = self.replicas.fetches.fetch(wanted, bytes_max=bytes_max, bytes_min=0, wait_ms_max=0)
        assert isinstance(found, list)
        return found


def size_of(fetched: Fetched) -> int:
    return sum(each.size for each in fetched)
