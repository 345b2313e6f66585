"""The files of a ZooKeeper that a migration writes, in folders whose names Java reads in its own way."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headwater.logtier.metadata.store import Create
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from headwater.migration.zookeeper_files import ServedZooKeeperFiles
from headwater.zookeeper_server import ZooKeeperPlace, ZooKeeperProcess, free_port

pytestmark = pytest.mark.slow

WAIT_S = 120
HOST = "127.0.0.1"


def read_node(folder: Path, path: str) -> bytes:
    """The data of a node, by a server that is started in the folder."""
    place = ZooKeeperPlace(str(folder), HOST, free_port(HOST))
    server = ZooKeeperProcess(place)
    server.start()
    try:
        server.wait_ready(WAIT_S)

        async def get() -> bytes:
            store = ZooKeeperStore(ZooKeeperSettings(f"{HOST}:{place.port}", connection_timeout_ms=WAIT_S * 1000))
            await store.start()
            try:
                return (await store.get(path)).data
            finally:
                await store.close()

        return asyncio.run(get())
    finally:
        server.terminate()
        server.wait()
        server.release()


@pytest.mark.parametrize("name", ["dåta", "a\\b", " two words "])
def test_the_nodes_are_in_the_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    data = tmp_path / name
    data.mkdir()
    ServedZooKeeperFiles(WAIT_S * 1000).write([Create("/kept", bytes(range(256)))], str(data / "new"))
    assert os.listdir(tmp_path) == [name]
    (data / "new").rename(data / "zookeeper")
    assert read_node(data / "zookeeper", "/kept") == bytes(range(256))


def test_files_of_an_earlier_version_are_found_where_java_has_put_them(tmp_path: Path) -> None:
    folder, misread = tmp_path / "dåta", tmp_path / "dÃ¥ta"
    ServedZooKeeperFiles(WAIT_S * 1000).write([Create("/kept", b"1")], str(folder))
    (misread / "data").mkdir(parents=True)
    (folder / "data" / "version-2").rename(misread / "data" / "version-2")
    assert read_node(folder, "/kept") == b"1"
    assert os.listdir(misread / "data") == []
