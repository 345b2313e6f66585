"""Produce with a transactional id: when the coordinator is asked, what its answers become, what readers then see."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.records import (
    list_offsets,
    produce,
)
from headwater.logtier.handlers.transactions import (
    describe_producers,
    write_txn_markers,
)
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataCache, MetadataImage, metadata_delta
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.fetch_response import FetchedPartition, encode_fetch_response
from headwater.logtier.protocol.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.awaited_batches import AwaitedBatches
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.security.listener import PLAINTEXT_LISTENER
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.markers import MarkerWriter
from headwater.logtier.transaction.verifier import VerifiedPartition
from tests.topic_images import topic_changes

TOPIC = "flights"
TOPIC_ID = uuid.UUID(int=5)
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
PRODUCER = 9
V1, V2 = 9, 12
"""Produce versions of transaction.version 1 and 2."""


class Coordinator:
    """Answers as told; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, bool]] = []
        self.answers: list[KafkaError | Awaitable[None] | None] = []

    def verify_partition(self, verified: VerifiedPartition, /) -> Awaitable[None] | None:
        assert (verified.transactional_id, verified.producer_id) == ("payments", PRODUCER)
        self.asked.append((verified.topic_partition, verified.adds))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, KafkaError):
            raise answer
        return answer


class Denying:
    """Forbids operations on kinds of resources."""

    def __init__(self, *denied: tuple[AclOperation, ResourceType]) -> None:
        self.denied = denied

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        return (operation, resource_type) not in self.denied

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return (operation, resource_type) not in self.denied


class World:
    """A broker's replicas and a transactional producer's connection to them."""

    def __init__(self, path: Path, **properties: object) -> None:
        config = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1, **properties})
        logs = LogManager(config, RealDisk(), SystemClock(), random.Random(1))
        logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda _: TopicConfig(),
            logs,
            SystemClock(),
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
        )
        image = MetadataImage().apply(topic_changes(TOPIC, TOPIC_ID, [(1,)] * 2))
        self.replicas.apply(metadata_delta(MetadataImage(), image))
        self.metadata = MetadataCache(config)
        self.metadata.publish(image)
        self.coordinator = Coordinator()
        nobody: Any = None
        self.markers: list[tuple[TopicPartition, int, int, bool]] = []
        self.services = Services(
            SystemClock(),
            random.Random(1),
            self.metadata,
            nobody,
            self.replicas,
            nobody,
            nobody,
            verifier=self.coordinator,
            markers=MarkerWriter(1, self.replicas, self.metadata, self.marker_written, None),
            inter_broker_listener=PLAINTEXT_LISTENER.name,
        )

    def marker_written(self, topic_partition: TopicPartition, producer_id: int, offset: int, committed: bool) -> None:
        self.markers.append((topic_partition, producer_id, offset, committed))

    def context(self, api_key: int, version: int) -> RequestContext:
        return RequestContext(self.services, api_key, version, 1, "tester", "127.0.0.1", "User:a")

    def produce(
        self,
        sequence: int,
        *partitions: int,
        version: int = V1,
        transactional_id: str | None = "payments",
        epoch: int = 0,
        attributes: int = TRANSACTIONAL,
        producer_ids: tuple[int, ...] = (PRODUCER,),
    ) -> list[ErrorCode] | Awaitable[list[ErrorCode]]:
        """The codes of the partitions, now or later."""
        data = [
            PartitionProduceData(
                index,
                memoryview(
                    build_batch(
                        [Record(None, b"x", 1_000)],
                        producer_id=producer_ids[i % len(producer_ids)],
                        producer_epoch=epoch,
                        base_sequence=sequence,
                        attributes=attributes,
                    )
                ),
            )
            for i, index in enumerate(partitions or (0,))
        ]
        request = ProduceRequest(transactional_id, -1, 1_000, [TopicProduceData(TOPIC, None, data)])
        answer = produce.handle(request, self.context(produce.API_KEY, version))
        if isinstance(answer, Awaitable):
            return self._codes_later(answer, version)
        return self._codes(answer, version)

    async def _codes_later(self, answer: Awaitable[Any], version: int) -> list[ErrorCode]:
        return self._codes(await answer, version)

    def _codes(self, answer: Any, version: int) -> list[ErrorCode]:
        frame = b"".join(bytes(part) for part in answer)
        response: Any
        response, _ = entity_reader(load_response_schema(0, version))(frame[9 if version >= 9 else 8 :], 0)
        return [partition.error_code for topic in response.responses for partition in topic.partition_responses]

    def end(self, *, commit: bool, epoch: int = 0, version: int = 1) -> None:
        self.replicas.append_end_txn_marker(
            P0,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            coordinator_epoch=0,
            commit=commit,
            transaction_version=version,
        )

    def fetch(self, *, wait_ms: int = 0, offset: int = 0) -> Any:
        wanted = [FetchPartition(P0, None, offset, 1_000_000, is_read_committed=True)]
        return self.replicas.fetches.fetch(wanted, bytes_max=1_000_000, bytes_min=1, wait_ms_max=wait_ms)

    def call(self, handler: Any, version: int, **fields: Any) -> Any:
        tree = handler.handle(SimpleNamespace(**fields), self.context(handler.API_KEY, version))
        if asyncio.iscoroutine(tree):
            tree = asyncio.run(tree)
        body = messages.encode_response(handler.API_KEY, version, tree)
        response, _ = entity_reader(load_response_schema(handler.API_KEY, version))(body, 0)
        return response


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)


OK = [ErrorCode.none]


def test_the_coordinator_is_asked_once_for_a_transaction_in_a_partition(world: World) -> None:
    assert world.produce(0) == OK
    assert world.produce(1) == OK
    assert world.coordinator.asked == [(P0, False)]
    world.end(commit=True)
    assert world.produce(2) == OK
    assert len(world.coordinator.asked) == 2


def test_from_version_12_on_partitions_are_added_to_the_transaction(world: World) -> None:
    assert world.produce(0, 0, 1, version=V2) == [ErrorCode.none] * 2
    assert world.coordinator.asked == [(P0, True), (P1, True)]


def test_records_without_a_transaction_ask_nobody(world: World) -> None:
    assert world.produce(0, transactional_id=None, attributes=0) == OK
    assert world.coordinator.asked == []


def test_an_answer_that_takes_time_is_waited_for(world: World) -> None:
    async def scenario() -> None:
        world.coordinator.answers = [asyncio.sleep(0)]
        answer = world.produce(0, 0, 1)
        assert isinstance(answer, Awaitable)
        assert world.replicas.log(P0).log_end_offset == 0
        assert await answer == [ErrorCode.none] * 2

    asyncio.run(scenario())


def test_a_marker_that_comes_while_the_answer_is_under_way_keeps_the_records_out(world: World) -> None:
    async def scenario() -> None:
        answered = asyncio.get_running_loop().create_future()
        world.coordinator.answers = [answered]
        answer = world.produce(0)
        assert isinstance(answer, Awaitable)
        waiting = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        world.end(commit=False)
        answered.set_result(None)
        assert await waiting == [ErrorCode.invalid_txn_state]
        assert world.replicas.log(P0).log_end_offset == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        (V1, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (V1, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (V2, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (V1, ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
        (V2, ErrorCode.coordinator_load_in_progress, ErrorCode.not_enough_replicas),
        (V2, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_the_coordinators_refusal_is_told_in_codes_that_the_client_knows(
    world: World, version: int, code: ErrorCode, told: ErrorCode
) -> None:
    world.coordinator.answers = [KafkaError(code, "no")]
    assert world.produce(0, version=version) == [told]
    assert world.replicas.log(P0).log_end_offset == 0


def test_one_partitions_refusal_does_not_concern_the_others(world: World) -> None:
    world.coordinator.answers = [KafkaError(ErrorCode.transaction_abortable)]
    assert world.produce(0, 0, 1) == [ErrorCode.invalid_txn_state, ErrorCode.none]


def test_a_transaction_that_is_still_being_ended_is_asked_about_again(tmp_path: Path) -> None:
    world = World(tmp_path, **{"add.partitions.to.txn.retry.backoff.ms": 1})

    async def scenario(refusals: int) -> list[ErrorCode]:
        world.coordinator.asked.clear()
        world.coordinator.answers = [KafkaError(ErrorCode.concurrent_transactions)] * refusals
        answer = world.produce(0, version=V2)
        assert isinstance(answer, Awaitable)
        return await answer

    assert asyncio.run(scenario(200)) == [ErrorCode.not_enough_replicas]
    assert 50 < len(world.coordinator.asked) < 150
    assert asyncio.run(scenario(3)) == OK
    assert len(world.coordinator.asked) == 4


def test_verification_can_be_switched_off_at_any_time_where_clients_add_partitions_themselves(tmp_path: Path) -> None:
    world = World(tmp_path)
    path, off = paths.broker_config_path("<default>"), {"transaction.partition.verification.enable": "false"}
    world.metadata.publish(world.metadata.image.apply([(path, paths.encode_config(off))]))
    assert world.produce(0) == OK
    assert world.coordinator.asked == []
    world.end(commit=True)
    assert world.produce(0, epoch=1, version=V2) == OK
    assert world.coordinator.asked == [(P0, True)]


def test_transactional_records_need_a_transactional_id_that_the_client_may_use(world: World) -> None:
    denied = [ErrorCode.transactional_id_authorization_failed]
    assert world.produce(0, transactional_id=None) == denied
    world.services.authorizer = Denying((AclOperation.write, ResourceType.transactional_id))
    assert world.produce(0) == denied
    assert (world.coordinator.asked, world.replicas.log(P0).log_end_offset) == ([], 0)


def test_a_topic_that_the_client_may_not_write_to_is_not_added_to_the_transaction(world: World) -> None:
    world.services.authorizer = Denying((AclOperation.write, ResourceType.topic))
    assert world.produce(0, version=V2) == [ErrorCode.topic_authorization_failed]
    assert world.coordinator.asked == []


def test_records_of_two_producers_in_one_request_are_refused(world: World) -> None:
    refused = world.produce(0, 0, 1, producer_ids=(PRODUCER, PRODUCER + 1))
    assert refused == [ErrorCode.invalid_producer_id_mapping] * 2


def test_refusing_again_and_again_keeps_nothing(world: World) -> None:
    """An error object that is raised more than once holds on to every frame it went through."""
    for _ in range(3):
        world.produce(0, transactional_id=None)
    assert produce.TRANSACTION_DENIED.__traceback__ is None


# -- readers


def test_a_read_committed_fetch_wakes_when_the_transaction_ends(world: World) -> None:
    async def scenario() -> None:
        world.produce(0)
        waiting = world.fetch(wait_ms=20_000)
        assert isinstance(waiting, asyncio.Future)
        world.end(commit=True)
        [found] = waiting.result()
        assert (found.last_stable_offset, found.high_watermark, found.aborted_transactions) == (2, 2, [])
        assert found.size > 0

    asyncio.run(scenario())


def test_what_was_aborted_stands_in_the_answer(world: World) -> None:
    world.produce(0)
    world.produce(1)
    [found] = world.fetch()
    assert (found.size, found.last_stable_offset, found.high_watermark) == (0, 0, 2)
    world.end(commit=False)
    [found] = world.fetch()
    assert [each[:2] for each in found.aborted_transactions] == [(PRODUCER, 0)]
    [found] = world.fetch(offset=2)
    assert [each[:2] for each in found.aborted_transactions] == [(PRODUCER, 0)]
    [found] = world.fetch(offset=3)
    assert found.aborted_transactions == []


@pytest.mark.parametrize("version", range(4, 19))
def test_aborted_transactions_are_encoded_in_every_version(version: int) -> None:
    fetched = FetchedPartition(3, ErrorCode.none, 9, 8, 0, None, [(7, 2, 5, 6), (8, 3, 6, 7)])
    parts = encode_fetch_response(version, 1, [(TOPIC, TOPIC_ID, [fetched])])
    frame = b"".join(cast("bytes", part) for part in parts)
    response: Any
    response, _ = entity_reader(load_response_schema(1, version))(frame[9 if version >= 12 else 8 :], 0)
    [partition] = response.responses[0].partitions
    assert [(each.producer_id, each.first_offset) for each in partition.aborted_transactions] == [(7, 2), (8, 3)]
    assert (partition.partition_index, partition.last_stable_offset) == (3, 8)


def test_list_offsets_answers_the_last_stable_offset_to_read_committed(world: World) -> None:
    world.produce(0, transactional_id=None, attributes=0, producer_ids=(1,))
    world.produce(0)

    def latest(isolation_level: int) -> int:
        partition = SimpleNamespace(partition_index=0, timestamp=-1, current_leader_epoch=-1)
        topic = SimpleNamespace(name=TOPIC, partitions=[partition])
        answer = world.call(list_offsets, 6, topics=[topic], isolation_level=isolation_level, replica_id=-1)
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    assert (latest(0), latest(1)) == (2, 1)


# -- the administrator's APIs


def marker(commit: bool = False, epoch: int = 0, coordinator_epoch: int = 0, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        transaction_result=commit,
        coordinator_epoch=coordinator_epoch,
        topics=[SimpleNamespace(name=TOPIC, partition_indexes=[index])],
    )


def written(world: World, *markers: SimpleNamespace) -> list[ErrorCode]:
    answer = world.call(write_txn_markers, 1, markers=markers)
    return [partition.error_code for each in answer.markers for topic in each.topics for partition in topic.partitions]


def test_an_administrator_ends_a_hanging_transaction(world: World) -> None:
    world.produce(0)
    assert written(world, marker()) == OK
    assert world.markers == [(P0, PRODUCER, 1, False)]
    [found] = world.fetch()
    assert found.last_stable_offset == 2
    world.produce(1)
    assert written(world, marker(epoch=-1)) == [ErrorCode.invalid_request]
    assert written(world, marker(coordinator_epoch=-1)) == [ErrorCode.transaction_coordinator_fenced]
    assert written(world, marker(index=7)) == [ErrorCode.unknown_topic_or_partition]


def test_only_brokers_and_administrators_write_markers(world: World) -> None:
    world.produce(0)
    alter = (AclOperation.alter, ResourceType.cluster)
    world.services.authorizer = Denying(alter)
    assert written(world, marker()) == OK
    world.services.authorizer = Denying(alter, (AclOperation.cluster_action, ResourceType.cluster))
    with pytest.raises(KafkaError) as refused:
        written(world, marker())
    assert refused.value.code == ErrorCode.cluster_authorization_failed


def described(world: World, *topics: str) -> list[Any]:
    answer = world.call(
        describe_producers, 0, topics=[SimpleNamespace(name=name, partition_indexes=[0]) for name in topics]
    )
    return [topic.partitions[0] for topic in answer.topics]


def test_producers_are_described_with_their_open_transaction(world: World) -> None:
    world.produce(0, transactional_id=None, attributes=0, producer_ids=(1,))
    world.produce(0)
    world.produce(1)
    [partition] = described(world, TOPIC)
    by_id = {each.producer_id: each for each in partition.active_producers}
    assert (by_id[1].last_sequence, by_id[1].current_txn_start_offset, by_id[1].coordinator_epoch) == (0, -1, -1)
    assert (by_id[PRODUCER].last_sequence, by_id[PRODUCER].current_txn_start_offset) == (1, 1)
    world.end(commit=True)
    [partition] = described(world, TOPIC)
    by_id = {each.producer_id: each for each in partition.active_producers}
    assert (by_id[PRODUCER].current_txn_start_offset, by_id[PRODUCER].coordinator_epoch) == (-1, 0)


def test_producers_of_topics_that_cannot_be_described(world: World) -> None:
    codes = [each.error_code for each in described(world, "missing", "not a name")]
    assert codes == [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception]
    world.services.authorizer = Denying((AclOperation.read, ResourceType.topic))
    assert [each.error_code for each in described(world, TOPIC)] == [ErrorCode.topic_authorization_failed]


class Telling:
    """A connection that lets a few refusals be logged."""

    cold_fetches = 0

    def __init__(self, lines: int) -> None:
        self.awaited_batches = AwaitedBatches()
        self.lines = lines
        self.refusals = 0

    def sends_cold(self) -> bool:
        return False

    def carried_out(self) -> None: ...

    def logs_refusal(self, _: str) -> bool:
        self.refusals += 1
        return self.refusals <= self.lines


def test_of_many_refused_partitions_only_some_are_logged_and_what_a_client_says_is_cut(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Telling(lines=2)
    context = RequestContext(world.services, produce.API_KEY, V1, 1, "c\n" * 10_000, "127.0.0.1", "User:a")
    context.reader = connection
    data = [PartitionProduceData(index, None) for index in range(50)]
    topics = [TopicProduceData("missing\n" * 1_000, None, data)]
    produce.handle(ProduceRequest(None, -1, 1_000, topics), context)
    assert connection.refusals == 50
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(line.startswith("refused a produce to 'missing\\n") for line in lines)
    assert all(line.isprintable() and len(line) < 2_000 for line in lines)
