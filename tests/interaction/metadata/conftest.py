from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metadata_stores import LocalStores, ModelStores, RealStores, Stores
from tests.zookeeper import ZooKeeperServer, running_zookeeper

REAL = pytest.param("zookeeper", marks=pytest.mark.slow)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """The server that the tests of a run share; a test that stops it starts it again."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["local", "model", REAL])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Each kind of store."""
    return _stores(request, tmp_path)


@pytest.fixture(params=["model", REAL])
def remote_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Each kind that has several clients, and connections to lose."""
    return _stores(request, tmp_path)


def _stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "local":
        return LocalStores(tmp_path)
    if request.param == "model":
        return ModelStores()
    return RealStores(request.getfixturevalue("zookeeper"), f"/{uuid.uuid4().hex[:12]}")
