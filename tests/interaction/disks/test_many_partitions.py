"""Thousands of partitions are made and deleted while other connections are served."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

WAIT_S = 120
PARTITIONS = 2000
#: ApiVersions, version 0, of a client without a name.
REQUEST = struct.pack(">ihhih", 10, 18, 0, 7, -1)
#: Between an answer and the next request.
PAUSE_S = 0.005


class OtherClient:
    """Asks, and asks again soon after it is answered, until it is stopped; how many partitions were there at answers.

    Args:
        broker: The address of the broker.
        data: Its folder.
    """

    def __init__(self, broker: str, data: Path) -> None:
        host, _, port = broker.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), WAIT_S)
        self._data = data
        self._partitions: set[int] = set()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        reader = self._connection.makefile("rb")
        while not self._is_stopped:
            self._connection.sendall(REQUEST)
            (size,) = struct.unpack(">i", reader.read(4))
            reader.read(size)
            self._partitions.add(sum(name.startswith("many-") for name in os.listdir(self._data)))
            time.sleep(PAUSE_S)

    def during(self, work: Callable[[], None]) -> set[int]:
        """How many partitions it has seen at its answers while something was done."""
        self._thread.start()
        work()
        self._is_stopped = True
        self._thread.join()
        self._connection.close()
        return self._partitions


def test_another_connection_is_served_while_thousands_of_partitions_are_made(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.list_topics(timeout=WAIT_S)

    def create() -> None:
        admin.create_topics([NewTopic("many", PARTITIONS, 1)], request_timeout=WAIT_S)["many"].result(WAIT_S)

    seen = OtherClient(broker.address, tmp_path / "data").during(create)
    # A broker that makes them while nobody else is served gives one answer at most while some are there and not all.
    assert len(seen - {0, PARTITIONS}) > 1, sorted(seen)
    # They are there when the answer is: each takes records.
    described = admin.list_topics("many", timeout=WAIT_S).topics["many"].partitions
    assert len(described) == PARTITIONS
    admin.delete_topics(["many"], request_timeout=WAIT_S)["many"].result(WAIT_S)
    broker.stop()
    assert list((tmp_path / "data").glob("many-?")) == []
