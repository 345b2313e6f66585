"""The folder of a node that has stopped, and a disk that ends a migration in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headwater.cli.shell.options import settings
from headwater.logtier.broker import Broker
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata.store import Create
from headwater.logtier.runtime.disk import Buffer, RealDisk
from headwater.migration.migrate import Migrating

#: A partition of the second one has the name that the folder of broker 1 gets.
TOPICS = {"flights": 2, "broker": 3}
NODES_FILE = "nodes.json"


class Killed(BaseException):
    """The end of the process."""


class KillingDisk(RealDisk):
    """Ends the process at the change number `left`; a removal of a folder is then half done."""

    def __init__(self, left: int | None = None) -> None:
        super().__init__()
        self.left = left
        self.changes = 0

    def _is_last(self) -> bool:
        self.changes += 1
        return self.left is not None and self.changes > self.left

    def _step(self) -> None:
        if self._is_last():
            raise Killed

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        if self._is_last():
            Path(path + ".tmp").write_bytes(bytes(data)[:5])
            raise Killed
        super().write_atomic(path, data, sync=sync)

    def rename(self, path: str, new_path: str) -> None:
        self._step()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def rmtree(self, path: str) -> None:
        if self._is_last():
            for folder, _, names in os.walk(path):
                for name in names[:1]:
                    os.remove(os.path.join(folder, name))
            raise Killed
        super().rmtree(path)

    def makedirs(self, path: str) -> None:
        self._step()
        super().makedirs(path)

    def fsync_directory(self, path: str) -> None:
        self._step()
        super().fsync_directory(path)


class NodesInAFile:
    """Stands for the files of a ZooKeeper; its writing is interrupted like all other changes."""

    def __init__(self, disk: KillingDisk) -> None:
        self._disk = disk

    def check(self) -> None:
        pass

    def write(self, creates: Sequence[Create], folder: str) -> None:
        assert not os.path.exists(folder), "what an interrupted attempt has left is of unknown value"
        self._disk.makedirs(folder)
        nodes = {create.path: create.data.decode("latin-1") for create in creates}
        self._disk.write_atomic(os.path.join(folder, NODES_FILE), json.dumps(nodes).encode())

    def await_end(self, folder: str) -> None:
        pass


def migrating(folder: Path, left: int | None = None) -> Migrating:
    """A migration that is killed at its change number `left`."""
    disk = KillingDisk(left)
    return Migrating(str(folder), disk, NodesInAFile(disk), lambda _: None)


def tree(folder: Path) -> dict[str, object]:
    """The files of a folder, by their paths: contents, or the mode of a folder. Locks have no contents."""
    found: dict[str, object] = {}
    for path, folders, names in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(path, name), folder)] = os.stat(os.path.join(path, name)).st_mode
        for name in names:
            found[os.path.relpath(os.path.join(path, name), folder)] = Path(path, name).read_bytes()
    return found


async def serve_and_stop(folder: Path, **properties: object) -> uuid.UUID:
    """Run a node that makes topics where there are none; return the id of a topic."""
    config = BrokerConfig.from_properties(
        {"log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0"}
        | {name.replace("_", "."): value for name, value in properties.items()}
    )
    broker = Broker(config)
    await broker.start()
    try:
        assert broker.parts is not None
        if not broker.parts.metadata.image.topics:
            results = await broker.parts.controller.create_topics(
                [NewTopic(name, count, 1) for name, count in TOPICS.items()]
            )
            assert [result.error for result in results] == [None] * len(TOPICS)
        return broker.parts.metadata.image.topics["flights"].topic_id
    finally:
        await broker.stop()


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in os.environ:
        if name.startswith("HEADWATER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()


@pytest.fixture(scope="session")
def stopped_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped node; tests use copies."""
    folder = tmp_path_factory.mktemp("node") / "data"
    asyncio.run(serve_and_stop(folder))
    return folder


@pytest.fixture
def node_folder(stopped_node: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of that folder."""
    folder = tmp_path / "data"
    shutil.copytree(stopped_node, folder)
    yield folder
    shutil.rmtree(folder)
