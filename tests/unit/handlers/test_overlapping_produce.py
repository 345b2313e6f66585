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
from headwater.logtier.records.awaited_batches import HELD_BACK_MAX
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


def sequenced(sequence: int) -> bytes:
    """A batch of an idempotent producer."""
    return build_batch([Record(None, b"x", 1_000)], producer_id=7, producer_epoch=0, base_sequence=sequence)


DAMAGED = ErrorCode.corrupt_message
HELD_BACK = ErrorCode.not_enough_replicas
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


def damaged(sequence: int) -> bytes:
    """A batch that is refused."""
    return sequenced(sequence)[:-1] + b"?"


def test_what_is_out_of_order_behind_a_refused_batch_is_to_be_sent_again(tmp_path: Path) -> None:
    """librdkafka begins a new epoch if a batch is out of order, and doubles what it has no answer for; found by
    `make faults`, where a disk was full.
    """

    async def main() -> None:
        leader = Leader(tmp_path)
        leader.produce(1, sequenced(0))
        leader.produce(1, damaged(1))
        for sequence in (2, 3):
            leader.produce(1, sequenced(sequence))
        await asyncio.sleep(0.01)
        leader.follow()
        await asyncio.sleep(0.01)
        assert leader.codes() == [ErrorCode.none, DAMAGED, HELD_BACK, HELD_BACK]
        for sequence in (1, 2, 3):
            await leader.produce_replicated(sequenced(sequence))
        assert leader.codes()[4:] == 3 * [ErrorCode.none]
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_broker_that_leads_again_takes_the_refused_batch_first(tmp_path: Path) -> None:
    """The log does not know the producer, and would take any sequence number: librdkafka then counts the refused batch
    as acknowledged, too.
    """

    async def main() -> None:
        leader = Leader(tmp_path)
        await leader.produce_replicated(BATCH)
        leader.lose_leadership()
        await asyncio.sleep(0)
        for sequence in (0, 1):
            leader.produce(1, sequenced(sequence))
        leader.lead_again()
        leader.produce(1, sequenced(1))
        assert leader.codes()[1:] == [*2 * [ErrorCode.not_leader_or_follower], HELD_BACK]
        for sequence in (0, 1):
            await leader.produce_replicated(sequenced(sequence))
        assert leader.codes()[4:] == 2 * [ErrorCode.none]
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_batch_that_was_cut_off_before_its_acknowledgement_comes_first(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        await leader.produce_replicated(BATCH)
        leader.produce(1, sequenced(0))
        await asyncio.sleep(0)
        leader.lose_leadership()
        leader.truncate()
        leader.produce(1, BATCH)
        await asyncio.sleep(0.01)
        leader.lead_again()
        leader.produce(1, BATCH)
        leader.produce(1, sequenced(1))
        leader.follow()
        await asyncio.sleep(0.01)
        lost = ErrorCode.not_leader_or_follower
        assert leader.codes()[1:] == [lost, lost, ErrorCode.none, HELD_BACK]
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_gap_that_stays_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        await leader.produce_replicated(sequenced(0))
        leader.produce(1, sequenced(2))
        assert leader.codes()[1:] == [OUT_OF_ORDER]
        leader.produce(1, damaged(1))
        for _ in range(HELD_BACK_MAX + 1):
            leader.produce(1, sequenced(2))
        assert leader.codes()[2:] == [DAMAGED, *HELD_BACK_MAX * [HELD_BACK], OUT_OF_ORDER]
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())
