"""Nodes of the store that somebody has damaged: each is named in one line, and costs no broker its place."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headwater.logtier.broker_stages import BrokerParts
from headwater.logtier.cluster import controlled_shutdown
from headwater.logtier.controller.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    NewTopic,
)
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import Create, Delete, SetData
from headwater.logtier.metadata.topic_nodes import chunk_path
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from tests.interaction.cluster.test_closest_replica import consume, produce
from tests.interaction.cluster.test_members import Cluster, refusal, run, until

RECORDS = 20


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Lines of the log with a word; none may have a stack trace."""
    found = [record for record in caplog.records if word in record.getMessage()]
    assert all(record.exc_info is None for record in found)
    return [record.getMessage() for record in found]


def test_a_damaged_registration_costs_no_broker_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        epoch = cluster.image(1).brokers[1].epoch
        path = paths.broker_path(1)
        cluster.model.write([SetData(path, b"{damaged"), Create(f"{paths.BROKER_IDS}/one", b"")], 0)
        await until(lambda: bool(lines(caplog, "/brokers/ids/one is no registration")))
        # The controller goes on: it admits a broker that comes, and notices one that goes.
        await cluster.start(4)
        await cluster.settled()
        await cluster.stop(4)
        await cluster.settled()
        assert cluster.image(2).brokers[1].epoch == epoch
        assert any("delete it, and broker 1 registers again" in line for line in lines(caplog, path))

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (paths.CLUSTER_ID, b"{}"),
        (paths.CONTROLLER, b'{"brokerid":"first"}'),
        (paths.CONTROLLER_EPOCH, b"many"),
    ],
)
def test_a_broker_that_finds_a_damaged_node_does_not_start(tmp_path: Path, path: str, data: bytes) -> None:
    async def scenario(cluster: Cluster) -> None:
        stored = cluster.model.read(path).data
        cluster.model.write([SetData(path, data)], 0)
        line = await refusal(cluster.start(4))
        assert f"the metadata node {path} has data that this version cannot read" in line
        assert line.endswith("; restore the node from a backup of the metadata, or use the release that wrote it")
        cluster.model.write([SetData(path, stored)], 0)
        await cluster.start(4)
        await cluster.settled()

    run(tmp_path, scenario)


def test_a_damaged_change_stops_no_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        end = int(cluster.model.read(CHANGES).data)
        cluster.model.write([Create(f"{CHANGES}/{end}", b"{damaged"), SetData(CHANGES, b"%d" % (end + 1))], 0)
        await until(lambda: len(lines(caplog, f"{CHANGES}/{end} has data that this version cannot read")) == 3)
        # The nodes are read instead, and changes are followed from the next one on.
        await cluster.start(4)
        await cluster.settled()
        await cluster.stop(4)
        await cluster.settled()

    run(tmp_path, scenario)


def test_a_list_of_changes_that_was_set_back_stops_the_brokers_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlled_shutdown, "TIMEOUT_MS", 0)  # it asks a controller that has ended, too

    async def main() -> None:
        cluster = Cluster(tmp_path)
        broker = await cluster.start(1)
        await cluster.settled()
        end = int(cluster.model.read(CHANGES).data)
        cluster.model.write([Delete(f"{CHANGES}/{end - 1}"), SetData(CHANGES, b"%d" % (end - 1))], 0)
        cluster.model.lose_connection("broker-1")
        reason = f"{CHANGES}: {end - 1} is the next change, and {end - 1} is applied: ZooKeeper was restored"
        assert (await broker.failed()).startswith(reason)
        await cluster.stop(1)
        assert not [record for record in caplog.records if record.exc_info]

    asyncio.run(main())


def test_a_damaged_block_of_producer_ids_is_named_in_one_line_and_ends_the_attempts_of_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        path = paths.PRODUCER_ID_BLOCK
        producer_ids = {each: parts_of(cluster, each).services.changes.producer_ids for each in cluster.brokers}
        first = await producer_ids[1].next()
        sound = cluster.model.read(path).data
        cluster.model.write([SetData(path, b'{"version":1,"broker":1}')], 0)
        for broker_id in (2, 3):
            with pytest.raises(KafkaError) as caught:
                await producer_ids[broker_id].next()
            assert caught.value.code is ErrorCode.unknown_server_error
        assert [line.count("do not delete it") for line in lines(caplog, path)] == [1], "of two requests"
        assert not [record for record in caplog.records if record.exc_info]
        assert await producer_ids[1].next() == first + 1, "what the broker has is used up"
        cluster.model.write([SetData(path, sound)], 0)
        assert await producer_ids[2].next() == 1000

    run(tmp_path, scenario)


def parts_of(cluster: Cluster, broker_id: int) -> BrokerParts:
    parts = cluster.brokers[broker_id].parts
    assert parts is not None
    return parts


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (paths.topic_path("flights"), b"{damaged"),
        (paths.topic_path("flights"), b'{"version":4,"partitions":2}'),
        (chunk_path("flights", 0), b'{"version":1,"partitions":[]}'),
        (paths.known_broker_path(3), b""),
        (paths.topic_config_path("flights"), b'{"version":1,"config":{"retention.ms":7}}'),
        (paths.broker_config_path(paths.CLUSTER_DEFAULT), b'{"version":1}'),
    ],
)
def test_running_brokers_serve_what_they_had_and_one_that_starts_names_the_damaged_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        await create_flights(cluster)
        sound = cluster.model.read(path).data
        cluster.model.write([SetData(path, data)], 0)

        async def refused_with_one_line(broker_id: int) -> None:
            before = names(tmp_path)
            line = await refusal(cluster.start(broker_id))
            assert f"the metadata node {path} has data that this version cannot read: {data!r}; restore" in line
            assert names(tmp_path) == before

        await refused_with_one_line(4)
        for broker in list(cluster.brokers.values()):
            await to_thread(produce, broker.bootstrap_address, RECORDS)
        # The controller goes: the others elect another one, and leaders.
        await cluster.stop(controller_id)
        await cluster.settled()
        address = next(iter(cluster.brokers.values())).bootstrap_address
        await to_thread(produce, address, RECORDS)
        if cluster.model.read(path).data == data:
            await refused_with_one_line(controller_id)
            cluster.model.write([SetData(path, sound)], 0)
        await cluster.start(controller_id)
        await cluster.settled()
        reader = Consumer({"bootstrap.servers": address, "group.id": "readers"})
        reader.assign([TopicPartition("flights", 0, 0)])
        assert await to_thread(consume, reader, 4 * RECORDS) == 4 * RECORDS
        await to_thread(reader.close)
        assert not [record for record in caplog.records if record.exc_info]
        assert not [each for each in names(tmp_path) if "-stray" in each or "-delete" in each]

    run(tmp_path, scenario)


async def create_flights(cluster: Cluster) -> None:
    """Create a topic with configs of its own, and a config of all brokers."""
    controller = cluster.controller()
    (created,) = await controller.create_topics(
        [NewTopic("flights", -1, -1, {0: [1, 2, 3]}, {"retention.ms": "5000000"})]
    )
    assert created.error is None
    rate = ConfigOperation("log.cleaner.backoff.ms", ConfigOperationType.SET, "16000")
    (altered,) = await controller.alter_configs([ConfigChange(ConfigResourceType.BROKER, "", [rate])])
    assert altered.error is None
    await until(lambda: all(cluster.image(each).broker_configs for each in cluster.brokers))


def names(folder: Path) -> set[str]:
    """What the brokers' folders hold; a checkpoint that is being written counts as written."""
    held = (str(each.relative_to(folder)) for each in folder.rglob("*"))
    return {each.removesuffix(".tmp") for each in held if "broker-4" not in each}
