"""Thousands of partitions are made and deleted while other connections are served."""

from __future__ import annotations

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
    """Asks, and asks again soon after it is answered, until it is stopped; the times of its answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)), WAIT_S)
        self.answered_s: list[float] = [time.perf_counter()]
        self.is_stopped = False
        self.thread = threading.Thread(target=self.ask)

    def ask(self) -> None:
        reader = self.connection.makefile("rb")
        while not self.is_stopped:
            self.connection.sendall(REQUEST)
            (size,) = struct.unpack(">i", reader.read(4))
            reader.read(size)
            self.answered_s.append(time.perf_counter())
            time.sleep(PAUSE_S)

    def during(self, work: Callable[[], None]) -> tuple[int, float]:
        """How many answers came while something was done, and the longest wait as a part of the whole time."""
        self.thread.start()
        begun = time.perf_counter()
        work()
        ended = time.perf_counter()
        self.is_stopped = True
        self.thread.join()
        self.connection.close()
        times = [at for at in self.answered_s if begun <= at <= ended]
        waits = [after - before for before, after in zip([begun, *times], [*times, ended], strict=True)]
        return len(times), max(waits) / (ended - begun)


def test_another_connection_is_served_while_thousands_of_partitions_are_made(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.list_topics(timeout=WAIT_S)

    def create() -> None:
        admin.create_topics([NewTopic("many", PARTITIONS, 1)], request_timeout=WAIT_S)["many"].result(WAIT_S)

    answers, longest = OtherClient(broker.address).during(create)
    assert answers > 20
    assert longest < 0.5
    # They are there when the answer is: each takes records.
    described = admin.list_topics("many", timeout=WAIT_S).topics["many"].partitions
    assert len(described) == PARTITIONS
    admin.delete_topics(["many"], request_timeout=WAIT_S)["many"].result(WAIT_S)
    broker.stop()
    assert list((tmp_path / "data").glob("many-?")) == []
