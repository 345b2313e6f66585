"""A part of a response that the disk does not give: told from a peer that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.logtier.network.server import Server, ServerLimits
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.network import FileSlice, SocketNetwork, UnreadableError
from headwater.logtier.runtime.streams import Part

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=100, connections_per_host_max=100, idle_ms_max=60_000)
OWNER = object()


async def unreadable_after(parts: Sequence[Part]) -> list[UnreadableError]:
    """What the server is told when a response of these parts is asked for; the connection ends."""
    told: list[UnreadableError] = []
    server = Server(SocketNetwork(), SystemClock(), lambda *_: list(parts), LIMITS)
    server.on_unreadable = told.append
    host, port = server.bind("127.0.0.1", 0)
    server.serve()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(struct.pack(">i", 20) + bytes(20))
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), LIMITS.idle_ms_max / 2000)
    writer.close()
    server.stop()
    await asyncio.sleep(0)
    return told


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.ESTALE])
def test_the_owner_of_a_slice_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", failing)
    with (tmp_path / "segment").open("wb+") as file:
        [told] = asyncio.run(unreadable_after([b"head", FileSlice(file.fileno(), 0, 100, OWNER)]))
    assert told.owner is OWNER
    assert told.cause.errno == told.errno == code


@pytest.mark.parametrize("code", [errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT])
def test_a_peer_that_is_gone_is_no_fault_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", failing)
    with (tmp_path / "segment").open("wb+") as file:
        assert asyncio.run(unreadable_after([b"head", FileSlice(file.fileno(), 0, 100, OWNER)])) == []


def test_a_file_that_is_shorter_than_its_slice_ends_the_connection_only(tmp_path: Path) -> None:
    with (tmp_path / "segment").open("wb+") as file:
        assert asyncio.run(unreadable_after([b"head", FileSlice(file.fileno(), 0, 100, OWNER)])) == []


def test_the_error_of_a_buffer_is_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(socket.socket):
        def sendmsg(self, *_: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(socket, "socket", Broken)
    assert asyncio.run(unreadable_after([b"head", b"body"])) == []
