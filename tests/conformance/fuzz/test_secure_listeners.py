"""Garbage where a handshake is expected: TLS, SASL and both."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headwater.logtier.protocol.messages import is_flexible
from tests.hostile_messages import HOSTILE_VARINTS
from tests.kio_messages import varint

if TYPE_CHECKING:
    from tests.conformance.fuzz.conftest import Target, Wire
    from tests.conftest import Certificates

pytestmark = pytest.mark.slow

MEMORY_BYTES_MAX: Final = 400 << 20
PATIENCE_S: Final = 5.0
API_VERSIONS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 3, 17, 36
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
UNSUPPORTED_MECHANISM: Final = 33
METADATA_OF_ALL: Final = b"\xff\xff\xff\xff"


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    flexible = b"\x00" if is_flexible(api_key, version) else b""
    return struct.pack(">hhih", api_key, version, correlation_id, 4) + b"fuzz" + flexible + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def greetings() -> Iterator[bytes]:
    """What may come first on a socket."""
    noise = random.Random(1)
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello := ssl.MemoryBIO(), server_hostname="x")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        whole = hello.read()
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\xff\xff" + bytes(100)
    yield b"\x80\x2e\x01\x00\x02" + bytes(50)
    yield b"\x15\x03\x03\x00\x02\x02\x28"
    for size in (1, 4, 5, 6, len(whole) // 2, len(whole) - 1):
        yield whole[:size]
    for _ in range(30):
        flipped = bytearray(whole)
        for _ in range(noise.choice([1, 3, 20])):
            flipped[noise.randrange(len(flipped))] = noise.randrange(256)
        yield bytes(flipped)
    for size in (1, 7, 100, 5000, 100_000):
        yield noise.randbytes(size)
    frame = request(API_VERSIONS, 0, 1, b"")
    yield struct.pack(">i", len(frame)) + frame
    yield struct.pack(">i", 2**31 - 1) + frame
    yield struct.pack(">i", -1) + frame


def tokens_of(mechanism: str) -> Iterator[bytes]:
    """What a client may say to authenticate itself; no such user is there."""
    noise = random.Random(mechanism)
    yield b""
    for size in (1, 10, 1000, 300_000):
        yield noise.randbytes(size)
    yield b"\x00" * 2000
    yield b"\x00alice\x00wrong"
    yield b"other\x00alice\x00alice-secret"
    yield b"alice-secret"
    yield b"\x00\xff\xfe\x00\xff"
    nonce = base64.b64encode(noise.randbytes(18))
    yield from (
        b"n,,n=nobody,r=" + nonce,
        b"n,,n=alice,r=",
        b"n,,r=" + nonce + b",n=alice",
        b"y,,n=alice,r=" + nonce,
        b"p=tls-unique,,n=alice,r=" + nonce,
        b"n,a=other,n=alice,r=" + nonce,
        b"n,,m=x,n=alice,r=" + nonce,
        b"n,,n==,r=" + nonce,
        b"n,,n=" + b"a" * 100_000 + b",r=" + nonce,
        b"n,,n=alice,r=" + nonce + b"," * 10_000,
        b"c=biws,r=" + nonce + b",p=" + nonce,
        b"c=biws,r=,p=====",
    )


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL", "SASL_PLAINTEXT", "PLAINTEXT"])
def test_whatever_comes_first_ends_its_own_connection_only(target: Target, wire: type[Wire], listener: str) -> None:
    async def greet(greeting: bytes) -> None:
        connection = await wire.open(target.addresses[listener])
        try:
            connection.writer.write(greeting)
            if connection.writer.can_write_eof():
                with contextlib.suppress(OSError):  # not connected: the broker has closed it already
                    connection.writer.write_eof()
            while await connection.receive(PATIENCE_S):
                pass
        finally:
            connection.close()

    async def attack() -> None:
        await asyncio.gather(*(greet(greeting) for greeting in greetings()))

    asyncio.run(attack())
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX


def tls(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


def test_garbage_inside_of_tls_ends_its_own_connection_only(
    target: Target, wire: type[Wire], certificates: Certificates
) -> None:
    async def greet(greeting: bytes) -> None:
        host, _, port = target.addresses["SSL"].rpartition(":")
        connection = wire(
            *await asyncio.open_connection(host, int(port), ssl=tls(certificates), server_hostname="localhost")
        )
        try:
            connection.writer.write(greeting)
            await connection.receive(0.2)
        finally:
            connection.writer.transport.abort()

    async def attack() -> None:
        await asyncio.gather(*(greet(greeting) for greeting in greetings()))

    asyncio.run(attack())
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_token_of_garbage_lets_anybody_in(target: Target, wire: type[Wire], mechanism: str, version: int) -> None:
    """Handshake version 0 is followed by bare tokens, version 1 by requests that hold them."""

    async def knock(token: bytes) -> None:
        connection = await wire.open(target.addresses["SASL_PLAINTEXT"])
        try:
            connection.send(request(SASL_HANDSHAKE, version, 1, string(mechanism)))
            shaken = await connection.receive(PATIENCE_S)
            assert shaken and shaken[4:6] == b"\x00\x00"
            for _ in range(2):
                bare = struct.pack(">i", len(token)) + token
                connection.send(request(SASL_AUTHENTICATE, 0, 2, bare) if version else token)
                if await connection.receive(PATIENCE_S) == b"":
                    break
            connection.send(request(METADATA, 1, 3, METADATA_OF_ALL))
            answer = await connection.receive(PATIENCE_S)
            assert not answer or answer[:4] != struct.pack(">i", 3), f"let in by {token[:40]!r}"
        except ConnectionError:
            pass
        finally:
            connection.close()

    async def attack() -> None:
        await asyncio.gather(*(knock(token) for token in tokens_of(mechanism)))

    asyncio.run(attack())
    assert target.memory_peak_bytes() < MEMORY_BYTES_MAX


def test_no_request_is_served_before_authentication(target: Target, wire: type[Wire]) -> None:
    async def ask(frame: bytes) -> bytes | None:
        connection = await wire.open(target.addresses["SASL_PLAINTEXT"])
        try:
            connection.send(frame)
            return await connection.receive(PATIENCE_S)
        finally:
            connection.close()

    async def attack() -> None:
        assert not await ask(request(METADATA, 1, 1, METADATA_OF_ALL))
        assert not await ask(request(SASL_AUTHENTICATE, 0, 1, struct.pack(">i", 0)))
        refused = await ask(request(SASL_HANDSHAKE, 1, 1, string("GSSAPI")))
        assert refused and struct.unpack_from(">h", refused, 4) == (UNSUPPORTED_MECHANISM,)
        for token in HOSTILE_VARINTS:
            await ask(request(SASL_AUTHENTICATE, 2, 1, token + b"x"))
            await ask(request(SASL_HANDSHAKE, 1, 1, token + b"x"))
        assert await ask(request(API_VERSIONS, 3, 1, varint(2) + b"a" + varint(2) + b"1" + b"\x00"))

    asyncio.run(attack())


def test_handshakes_that_never_go_on_are_ended(target: Target, wire: type[Wire]) -> None:
    """`connection.handshake.timeout.ms`: whoever says nothing does not keep a connection."""

    async def attack() -> None:
        silent = [await wire.open(target.addresses[name]) for name in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")]
        for connection in silent:
            assert await connection.receive(30) == b""
            connection.close()

    asyncio.run(attack())


def test_secrets_that_were_offered_are_not_in_the_log(target: Target) -> None:
    assert "alice-secret" not in Path(target.broker.output).read_text(errors="replace")
