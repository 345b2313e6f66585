"""Three whole brokers in one process, on a ZooKeeper in memory: they come, go, and refuse what does not fit."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headwater.logtier.broker import Broker, BrokerStartError
from headwater.logtier.broker_stages import BrokerParts
from headwater.logtier.cluster import log_dir_reports
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    NewTopic,
)
from headwater.logtier.controller.controller import Controller
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.shared_store import SharedMetadataStore
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.runtime.disk import Buffer, Disk, RealDisk
from tests.simulation.zookeeper_model import ZooKeeperModel

PATIENCE_S = 30.0
#: Long enough that no session ends because the machine is busy.
SESSION_MS = 6_000


class Cluster:
    """Brokers by id, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = ZooKeeperModel(random.Random(1))
        self.brokers: dict[int, Broker] = {}

    async def start(
        self,
        broker_id: int,
        folder: str = "",
        properties: Mapping[str, object] | None = None,
        disk: Disk | None = None,
    ) -> Broker:
        name = folder or f"broker-{broker_id}"
        config = BrokerConfig.from_properties(
            {
                "node.id": broker_id,
                "log.dirs": str(self.folder / name),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "zookeeper.connect": "model:2181",
                "zookeeper.session.timeout.ms": SESSION_MS,
                "leader.imbalance.check.interval.seconds": 1,
                **(properties or {}),
            }
        )
        machine = Machine(
            metadata_store=lambda config, disk, on_failure: SharedMetadataStore(
                self.model.store(name, SESSION_MS, config.zookeeper_connection_timeout_ms)
            ),
            disk=disk or RealDisk(),
        )
        broker = Broker(config, machine)
        await broker.start()
        self.brokers[broker_id] = broker
        return broker

    def file(self, broker_id: int, name: str) -> str:
        """The text of a file in the folder of a broker."""
        return (self.folder / f"broker-{broker_id}" / name).read_text()

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    def image(self, broker_id: int) -> MetadataImage:
        parts = self.brokers[broker_id].parts
        assert parts is not None
        return parts.metadata.image

    def controller(self) -> Controller:
        """The active controller."""
        parts = self.brokers[self.image(next(iter(self.brokers))).controller_id].parts
        assert parts is not None
        return parts.controller

    def is_settled(self) -> bool:
        """Whether every broker knows exactly the others, and the same one of them as controller."""
        images = [self.image(each) for each in self.brokers]
        controllers = {image.controller_id for image in images}
        return (
            all(set(image.brokers) == set(self.brokers) for image in images)
            and len(controllers) == 1
            and controllers <= set(self.brokers)
        )

    async def settled(self) -> int:
        """Wait until the cluster is settled; return the controller."""
        await until(self.is_settled)
        return self.image(next(iter(self.brokers))).controller_id


async def until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_reached():  # noqa: ASYNC110 (the image has no event for tests)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def three_brokers(folder: Path, properties: Mapping[str, object] | None = None) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder)
    try:
        await asyncio.gather(*(cluster.start(each, properties=properties) for each in (1, 2, 3)))
        await cluster.settled()
        yield cluster
    finally:
        for broker_id in list(cluster.brokers):
            await cluster.stop(broker_id)


def run(
    folder: Path, scenario: Callable[[Cluster], Awaitable[None]], properties: Mapping[str, object] | None = None
) -> None:
    async def main() -> None:
        async with three_brokers(folder, properties) as cluster:
            await scenario(cluster)

    asyncio.run(main())


def test_a_client_of_any_broker_sees_all_brokers_and_the_controller(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.settled()
        addresses = {broker_id: broker.bootstrap_address for broker_id, broker in cluster.brokers.items()}
        for address in addresses.values():
            admin = AdminClient({"bootstrap.servers": address})
            listed = await asyncio.to_thread(admin.list_topics, timeout=PATIENCE_S)
            assert {each.id: f"{each.host}:{each.port}" for each in listed.brokers.values()} == addresses
            assert listed.controller_id == controller
            described = await asyncio.to_thread(admin.describe_cluster().result, PATIENCE_S)
            assert {node.id for node in described.nodes} == set(addresses)
            assert described.controller.id == controller
        for broker_id in addresses:
            assert f"cluster.id={cluster.image(1).cluster_id}\n" in cluster.file(broker_id, "meta.properties")

    run(tmp_path, scenario)


def test_a_broker_that_stops_is_replaced_before_its_session_ends_and_returns_cleanly(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.settled()
        epoch = cluster.image(first).brokers[first].epoch
        begun_s = asyncio.get_running_loop().time()
        await cluster.stop(first)
        second = await cluster.settled()
        assert second != first
        assert asyncio.get_running_loop().time() - begun_s < SESSION_MS / 1000
        assert cluster.file(first, ".kafka_cleanshutdown") == f'{{"version":0,"brokerEpoch":{epoch}}}'
        await cluster.start(first)
        assert await cluster.settled() == second
        back = cluster.image(second).brokers[first]
        assert back.epoch > epoch
        assert back.process.previous_epoch == epoch

    run(tmp_path, scenario)


def test_a_broker_that_lost_its_session_registers_again_and_goes_on(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        epochs = {each: cluster.image(1).brokers[each].epoch for each in cluster.brokers}
        for session_id in cluster.model.session_ids():
            cluster.model.expire(session_id)
        await until(
            lambda: (
                cluster.is_settled()
                and all(cluster.image(1).brokers[each].epoch > epoch for each, epoch in epochs.items())
            )
        )
        for broker_id, epoch in epochs.items():
            assert cluster.image(1).brokers[broker_id].process.previous_epoch == epoch

    run(tmp_path, scenario)


def test_an_unclean_election_waits_for_the_config_that_allows_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        controller = cluster.controller()
        behind, last = (each for each in cluster.brokers if each != controller_id)
        (created,) = await controller.create_topics([NewTopic("t", -1, -1, {0: [last, behind]})])
        assert created.error is None
        await cluster.stop(behind)
        await cluster.settled()
        await cluster.stop(last)
        await cluster.settled()
        await cluster.start(behind)
        await cluster.settled()
        partition = cluster.image(controller_id).topics["t"].partitions[0]
        assert (partition.leader, partition.isr, partition.elr) == (NO_BROKER, (), (last,))
        allow = ConfigOperation("unclean.leader.election.enable", ConfigOperationType.SET, "true")
        (altered,) = await controller.alter_configs([ConfigChange(ConfigResourceType.TOPIC, "t", [allow])])
        assert altered.error is None
        await until(lambda: cluster.image(behind).topics["t"].partitions[0].leader == behind)

    run(tmp_path, scenario)


def test_leaderships_return_to_the_preferred_replica_that_is_in_sync_again(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        first, second = (each for each in cluster.brokers if each != controller_id)
        controller = cluster.controller()
        (created,) = await controller.create_topics([NewTopic("t", -1, -1, {0: [first, second]})])
        assert created.error is None
        await cluster.stop(first)
        await until(lambda: cluster.image(second).topics["t"].partitions[0].leader == second)
        await cluster.start(first)
        # It fetches, joins the ISR, and is elected.
        await until(lambda: cluster.image(second).topics["t"].partitions[0].leader == first)
        assert set(cluster.image(second).topics["t"].partitions[0].isr) == {first, second}

    run(tmp_path, scenario)


async def leader_with_two_folders(cluster: Cluster, path: Path, disk: Disk | None = None) -> BrokerParts:
    """Broker 4 with two log folders, the leader of all partitions of topic `t`, which broker 1 follows."""
    folders = ",".join(str(path / name) for name in ("first", "second"))
    await cluster.start(4, properties={"log.dirs": folders}, disk=disk)
    await cluster.settled()
    (created,) = await cluster.controller().create_topics([NewTopic("t", -1, -1, {n: [4, 1] for n in range(4)})])
    assert created.error is None
    await until(lambda: all("t" in cluster.image(each).topics for each in (1, 4)))
    parts = cluster.brokers[4].parts
    assert parts is not None
    return parts


def test_a_failed_log_folder_costs_the_leaderships_in_it_and_no_others(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await leader_with_two_folders(cluster, tmp_path)
        epoch = cluster.image(1).brokers[4].epoch
        first, second = broker.log_manager.directories
        placed = {
            log.topic_partition.partition: directory
            for directory in (first, second)
            for log in broker.log_manager.placed.in_directory(directory)
        }
        assert set(placed.values()) == {first, second}
        first.health.fail("a test")

        def states() -> dict[int, tuple[int, set[int]]]:
            partitions = cluster.image(1).topics["t"].partitions
            return {index: (each.leader, set(each.isr)) for index, each in enumerate(partitions)}

        await until(lambda: states() == {n: (1, {1}) if placed[n] is first else (4, {1, 4}) for n in placed})
        assert cluster.image(1).brokers[4].epoch == epoch
        assert cluster.image(1).brokers[4].process.directory_ids == (f"{second.directory_id} {second.path}",)

    run(tmp_path, scenario)


def test_leaders_in_a_full_log_folder_give_way_until_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir_reports, "ROOM_CHECK_S", 0.2)
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    has_room = False

    class SmallDisk(RealDisk):
        def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
            if len(data) >= log_dir_reports.ROOM_BYTES and not has_room:
                raise no_space
            super().write_atomic(path, data, sync=sync)

    async def scenario(cluster: Cluster) -> None:
        nonlocal has_room
        broker = await leader_with_two_folders(cluster, tmp_path, SmallDisk())
        first, _ = broker.log_manager.directories
        await until(lambda: all(each.directory_of(4) for each in cluster.image(1).topics["t"].partitions))
        in_first = {log.topic_partition.partition for log in broker.log_manager.placed.in_directory(first)}
        assert 0 < len(in_first) < 4
        first.health.observe("append", no_space)

        def leaders() -> list[int]:
            return [each.leader for each in cluster.image(1).topics["t"].partitions]

        await until(lambda: leaders() == [1 if index in in_first else 4 for index in range(4)])
        assert all(set(each.isr) == {1, 4} for each in cluster.image(1).topics["t"].partitions)
        has_room = True
        await until(lambda: leaders() == [4] * 4)

    run(tmp_path, scenario)


def names(folder: Path) -> list[Path]:
    """Everything in a folder."""
    return sorted(folder.rglob("*"))


async def single_node(folder: Path, node_id: int) -> Broker:
    """Start a broker without ZooKeeper."""
    properties = {"node.id": node_id, "log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0"}
    broker = Broker(BrokerConfig.from_properties(properties))
    await broker.start()
    return broker


async def refusal(start: Awaitable[object]) -> str:
    """The one line with which a broker does not start."""
    with pytest.raises(BrokerStartError) as caught:
        await start
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_the_cluster_is_refused_with_one_line(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(4)
        epoch = cluster.image(4).brokers[4].epoch
        await cluster.stop(4)
        # The id of a live broker. The refused one has changed nothing, and still counts as stopped cleanly (KIP-966).
        stranger = await cluster.start(4, "new")
        stranger_epoch = cluster.image(4).brokers[4].epoch
        assert "another broker is registered with broker.id 4" in await refusal(cluster.start(4))
        assert cluster.file(4, ".kafka_cleanshutdown") == f'{{"version":0,"brokerEpoch":{epoch}}}'
        assert cluster.brokers[4] is stranger
        # A copy of the folder of a live broker: that one goes on.
        shutil.copytree(tmp_path / "new", tmp_path / "copy")
        assert "another broker is registered with broker.id 4" in await refusal(cluster.start(4, "copy"))
        assert cluster.image(1).brokers[4].epoch == stranger_epoch
        # The folder of another broker.
        assert "it belongs to node 4, but node.id is 5" in await refusal(cluster.start(5, "broker-4"))
        # A folder of another cluster, before and after that one has begun.
        other = Cluster(tmp_path)
        assert "ZooKeeper has no cluster, and log folder" in await refusal(other.start(4))
        await other.start(5, "elsewhere")
        assert "it belongs to cluster" in await refusal(other.start(4))
        await other.stop(5)
        # The folder of a cluster without ZooKeeper, and that of a single node in a cluster: nothing is created in them.
        line = await refusal(single_node(tmp_path / "broker-4", 4))
        assert "it has no metadata (__cluster_metadata): if its broker belongs to a cluster, set zookeeper" in line
        assert not (tmp_path / "broker-4" / "__cluster_metadata").exists()
        await (await single_node(tmp_path / "alone", 5)).stop()
        before = names(tmp_path / "alone")
        line = await refusal(cluster.start(5, "alone"))
        assert "it belongs to cluster" in line
        assert names(tmp_path / "alone") == before
        # A ZooKeeper that does not answer.
        other.model.kill()
        line = await refusal(other.start(6, properties={"zookeeper.connection.timeout.ms": 200}))
        assert "model:2181: ZooKeeper cannot be reached" in line
        await cluster.settled()

    run(tmp_path, scenario)


def test_an_inter_broker_listener_without_a_login_is_refused_with_one_line(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        line = await refusal(cluster.start(4, properties={"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}))
        assert "the broker has no login for other brokers; set listener.name.sasl_plaintext.scram-sha-256" in line

    run(tmp_path, scenario)
