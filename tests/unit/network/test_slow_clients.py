"""A response that takes its client longer than an idle connection is kept."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.network.server import Server
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.security.scram import ScramUsers
from tests.manual_clock import ManualClock

if TYPE_CHECKING:
    from tests.conftest import Certificates

IDLE_MS = 60_000
STEP_BYTES = 2 << 20  # more than both ends keep in buffers
STEPS = 8
REQUEST = struct.pack(">i", 20) + bytes(20)
SOON_S = 60


class Running:
    """A listener whose every answer is large, and one client of it that has asked once."""

    def __init__(self, certificates: Certificates, protocol: str) -> None:
        self.clock = ManualClock(0)
        self.tls: ssl.SSLContext | None = None
        properties = {
            "listeners": f"{protocol}://127.0.0.1:0",
            "connections.max.idle.ms": str(IDLE_MS),
            "socket.send.buffer.bytes": "65536",
        }
        if protocol == "SSL":
            properties["ssl.keystore.location"] = str(certificates.server)
            self.tls = ssl.create_default_context(cafile=str(certificates.ca))
        self.listeners = Listeners(
            BrokerConfig.from_properties(properties),
            SocketNetwork(),
            self.clock,
            lambda *_: [bytes(STEPS * STEP_BYTES)],
            ScramUsers(dict, bytes),
        )

    async def __aenter__(self) -> Running:
        self.listeners.open()
        self.listeners.serve()
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.listeners.advertised[0].port))
        self.reader, self.writer = await asyncio.open_connection(
            sock=connected, ssl=self.tls, server_hostname="127.0.0.1" if self.tls else None
        )
        self.writer.write(REQUEST)
        await self.take(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listeners.stop()
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def take(self, size: int) -> None:
        await asyncio.wait_for(self.reader.readexactly(size), SOON_S)

    @property
    def server(self) -> Server:
        [server] = self.listeners._servers
        return server

    def pass_time(self, passed_ms: int) -> None:
        self.clock.ms += passed_ms
        self.server._check_idle()

    @property
    def is_connected(self) -> bool:
        return bool(self.server._connections)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_client_that_takes_its_response_slowly_gets_all_of_it_and_is_closed_when_it_rests(
    certificates: Certificates, protocol: str
) -> None:
    async def main() -> None:
        async with Running(certificates, protocol) as running:
            for _ in range(STEPS - 1):
                running.pass_time(IDLE_MS - 1)
                await running.take(STEP_BYTES)
            running.pass_time(IDLE_MS - 1)
            await running.take(STEP_BYTES - 1)
            running.pass_time(IDLE_MS - 1)
            assert running.is_connected
            running.pass_time(IDLE_MS + 1)
            assert not running.is_connected

    run(main())


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_client_that_takes_nothing_of_its_response_is_idle(certificates: Certificates, protocol: str) -> None:
    async def main() -> None:
        async with Running(certificates, protocol) as running:
            await running.take(STEP_BYTES)
            running.pass_time(1)  # from here on the event loop does not turn, so nothing leaves
            running.pass_time(IDLE_MS)
            assert running.is_connected
            running.pass_time(1)
            assert not running.is_connected

    run(main())
