"""`--data` and `--config`: the metadata of brokers that do not run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.stored_metadata import StoredMetadata, call_controller, with_controller
from headwater.logtier.broker import Broker
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.scram_state import ScramUpsertion
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.shared_store import SharedMetadataStore
from tests.simulation.zookeeper_model import ZooKeeperModel

SESSION_MS = 1_500


async def nothing(controller: Controller, metadata: MetadataCache) -> None:
    raise AssertionError("not called")


async def add_user(controller: Controller, _: MetadataCache) -> None:
    change = ScramUpsertion("broker", 2, 4096, b"salt", b"salted password")
    assert [each.error for each in await controller.alter_scram_credentials([], [change])] == [None]


def test_a_folder_of_a_clusters_broker_gets_no_metadata_of_its_own(tmp_path: Path) -> None:
    """They would be another cluster's, and the change would reach no broker."""
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    with pytest.raises(CliError, match="it has no metadata"):
        with_controller("user", StoredMetadata(data_dir=str(tmp_path)), nothing)
    assert [each.name for each in tmp_path.iterdir()] == ["meta.properties"]


def test_a_folder_of_several_brokers_gets_no_metadata_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "cluster.properties").write_text("brokers=3\n")
    with pytest.raises(CliError, match="is the folder of several brokers"):
        with_controller("user", StoredMetadata(data_dir=str(tmp_path)), nothing)
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.properties"]


def test_a_mistake_in_the_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text("num.partition: 3\n")
    with pytest.raises(CliError, match="num\\.partition"):
        with_controller("user", StoredMetadata(config_path=str(file)), nothing)


class OneZooKeeper:
    """Brokers, and a command line without one, on a ZooKeeper in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = ZooKeeperModel(random.Random(1))

    def config(self) -> BrokerConfig:
        return BrokerConfig.from_properties(
            {
                "node.id": 1,
                "log.dirs": str(self.folder / "data"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "zookeeper.connect": "model:2181",
                "zookeeper.session.timeout.ms": SESSION_MS,
            }
        )

    def machine(self, name: str) -> Machine:
        return Machine(
            metadata_store=lambda config, disk, on_failure: SharedMetadataStore(
                self.model.store(name, SESSION_MS, config.zookeeper_connection_timeout_ms)
            )
        )

    async def call(self, call: Callable[[Controller, MetadataCache], Coroutine[Any, Any, None]]) -> None:
        await call_controller("user", self.config(), self.machine("command line"), call)


def test_the_first_user_of_a_cluster_is_created_before_its_brokers_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        zookeeper = OneZooKeeper(tmp_path)
        await zookeeper.call(add_user)
        assert not (tmp_path / "data").exists()
        broker = Broker(zookeeper.config(), zookeeper.machine("broker"))
        await broker.start()
        assert broker.parts is not None
        image = broker.parts.metadata.image
        assert list(image.scram_credentials["broker"]) == ["SCRAM-SHA-512"]
        assert image.controller_id == 1  # elected at once: the command line has resigned
        await broker.stop()

    asyncio.run(scenario())


def test_a_controller_of_running_brokers_is_not_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        zookeeper = OneZooKeeper(tmp_path)
        broker = Broker(zookeeper.config(), zookeeper.machine("broker"))
        await broker.start()
        with pytest.raises(CliError, match="a broker is controller of the cluster at model:2181"):
            await zookeeper.call(nothing)
        assert broker.parts is not None
        assert broker.parts.controller.is_active
        await broker.stop()
        await zookeeper.call(add_user)

    asyncio.run(scenario())
