"""Produce requests of one connection that wait for a follower together: quotas, and what the waits keep."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import uuid
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.context import Services
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.records import produce
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataCache, MetadataImage, metadata_delta
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.server import ClientConnection
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.quota.client_quotas import ClientQuotas
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.records.compression import ZSTD
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from tests.topic_images import topic_changes
from tests.unit.network.test_overlapping_requests import Client
from tests.unit.quota.test_client_quotas import quota

TOPIC, CLIENT = b"flights", b"tower"
BATCH = build_batch([Record(None, b"x", 1_000)])


class Leader(Client):
    """A client of a broker that leads a partition, whose other replica does not follow."""

    def __init__(self, folder: Path, config: TopicConfig | None = None) -> None:
        broker_config = BrokerConfig.from_properties({"log.dirs": [str(folder)], "node.id": 1})
        logs = LogManager(broker_config, RealDisk(), SystemClock(), random.Random(1))
        logs.start()
        topic_config, loop = config or TopicConfig(), asyncio.get_running_loop()
        replicas = ReplicaManager(1, lambda _: topic_config, logs, SystemClock(), loop.call_later)
        image = MetadataImage().apply(topic_changes(TOPIC.decode(), uuid.UUID(int=5), [(1, 2)]))
        replicas.apply(metadata_delta(MetadataImage(), image))
        self.image = image
        metadata, absent = MetadataCache(broker_config), None
        metadata.publish(image)
        others: Any = absent
        self.services = Services(
            SystemClock(), random.Random(1), metadata, others, replicas, others, others, others, others
        )
        self.dispatcher = Dispatcher(self.services, {produce.API_KEY: produce})
        super().__init__()

    def dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        self.served.append(len(self.served))
        return self.dispatcher.dispatch(frame, connection)

    def lose_leadership(self) -> None:
        """The other replica leads."""
        self._elect(2)

    def lead_again(self) -> None:
        """This one leads after the other one."""
        self._elect(1)

    def _elect(self, leader: int) -> None:
        topic = self.image.topics[TOPIC.decode()]
        former = topic.partitions[0]
        epoch, version = former.leader_epoch + 1, former.partition_epoch + 1
        state = replace(former, leader=leader, leader_epoch=epoch, partition_epoch=version)
        moved = replace(self.image, topics={topic.name: replace(topic, partitions=(state,))})
        self.services.replica_manager.apply(metadata_delta(self.image, moved))
        self.image = moved

    def follow(self) -> None:
        """The other replica fetches all records."""
        replicas, key = self.services.replica_manager, TopicPartition(TOPIC.decode(), 0)
        end = replicas.partition(key).log.log_end_offset
        replicas.partition_replication.follower_fetched(key, 2, fetch_offset=end, log_start_offset=0, broker_epoch=-1)

    def truncate(self) -> None:
        """Cut all records off, as a replica does that follows another leader."""
        self.services.replica_manager.partition(TopicPartition(TOPIC.decode(), 0)).log.truncate_to(0)

    async def produce_replicated(self, batch: bytes) -> None:
        """Send a batch that the other replica fetches, and take the answer."""
        self.produce(1, batch)
        await asyncio.sleep(0)
        self.follow()
        await asyncio.sleep(0.01)

    def codes(self) -> list[ErrorCode]:
        """The codes of the answers that were sent so far."""
        answers, codes = b"".join(self.written), []
        while answers:
            (size,) = struct.unpack_from(">i", answers)
            # Correlation id, number of topics, the name, number of partitions, index, and the code.
            (code,) = struct.unpack_from(">h", answers, 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4)
            codes.append(ErrorCode(code))
            answers = answers[4 + size :]
        return codes

    def produce(self, count: int, batch: bytes = BATCH) -> None:
        for number in range(count):
            body = struct.pack(">hhih", produce.API_KEY, 7, number, len(CLIENT)) + CLIENT
            body += struct.pack(">hhiih", -1, -1, 60_000, 1, len(TOPIC)) + TOPIC
            body += struct.pack(">iii", 1, 0, len(batch)) + batch
            data = struct.pack(">i", len(body)) + body
            self.connection.get_buffer()[: len(data)] = data
            self.connection.buffer_updated(len(data))


def test_the_quota_of_request_time_mutes_before_others_follow(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.services.quotas = ClientQuotas()
        leader.services.quotas.replace([quota("request_percentage", 0.001, client_id=CLIENT.decode())])
        leader.produce(1)
        await asyncio.sleep(0)
        leader.produce(1)
        assert len(leader.served) == 1, "the first request has used up the quota"
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_records_that_were_recompressed_are_not_kept_by_the_wait(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path, TopicConfig(compression_type="uncompressed"))
        small = build_batch([Record(None, bytes(500_000), 1_000)], codec=ZSTD)
        for number in range(3):
            leader.produce(1, small)
            async with asyncio.timeout(30):
                while not leader.connection._is_carried_out:  # noqa: ASYNC110 - a thread compresses
                    await asyncio.sleep(0.002)
            assert len(leader.served) == number + 1
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each).__name__ == "ProduceRequest"]
        assert kept == []
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())
