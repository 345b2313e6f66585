"""A schema registry as users run it, on the broker of the tests: fixtures that their conftests take over."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.conftest import BrokerProcess


class Registry:
    """A registry process that can go away and come back."""

    def __init__(self, servers: str, folder: str) -> None:
        self._servers = servers
        self._folder = folder
        self._topic = f"_schemas-{uuid.uuid4().hex[:12]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = "0"
        self.url = ""

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "api", "-b", self._servers, "--http-port", self._port],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONSAFEPATH": "1", "HEADWATER_REGISTRY_TOPIC": self._topic},
            cwd=self._folder,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().split()[-1]
        self._port = self.url.rpartition(":")[2].strip("/")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=30)
            self._process = None


@pytest.fixture(scope="module")
def registry(headwater_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    found = Registry(headwater_broker.address, str(tmp_path_factory.mktemp("api")))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def schemas(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client
