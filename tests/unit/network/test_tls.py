"""Connections with TLS: what arrives, who is named, and what ends a connection without disturbing the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.server import ClientConnection
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.network import FileSlice, SocketNetwork
from headwater.logtier.security.scram import ScramUsers
from headwater.logtier.security.tls import ListenerTls

if TYPE_CHECKING:
    from tests.conftest import Certificates

Dispatch = Callable[[memoryview, ClientConnection], Response | Awaitable[Response]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def echo(frame: memoryview, _: ClientConnection) -> Response:
    return [framed(bytes(frame))]


def whoami(_: memoryview, connection: ClientConnection) -> Response:
    return [framed(connection.principal.encode())]


class Running:
    """A listener with TLS on a free port."""

    def __init__(self, certificates: Certificates, dispatch: Dispatch, **properties: str) -> None:
        config = BrokerConfig.from_properties(
            {
                "listeners": "SSL://127.0.0.1:0",
                "ssl.keystore.location": str(certificates.server),
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
        )
        self.listeners = Listeners(config, SocketNetwork(), SystemClock(), dispatch, ScramUsers(dict, bytes))

    async def __aenter__(self) -> Running:
        self.listeners.open()
        self.listeners.serve()
        self.port = self.listeners.advertised[0].port
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listeners.stop()
        await asyncio.sleep(0)

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def client(certificates: Certificates, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


async def exchanged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes = b"0123456789"
) -> bytes:
    writer.write(framed(payload))
    [size] = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_small_and_large_are_answered_in_their_order(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    async def main() -> None:
        context = client(certificates)
        context.minimum_version = context.maximum_version = version
        async with Running(certificates, echo) as running:
            reader, writer = await running.connect(context)
            payloads = [os.urandom(size) for size in (10, 20_000, 3_000_000, 11, 100_000, 16_384, 65_536)]
            writer.write(b"".join(map(framed, payloads)))
            for payload in payloads:
                [size] = struct.unpack(">i", await reader.readexactly(4))
                assert await reader.readexactly(size) == payload
            await close(writer)

    run(main())


def test_a_slice_of_a_file_arrives_between_its_neighbours(certificates: Certificates, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "segment").write_bytes(data)

    async def main() -> None:
        with (tmp_path / "segment").open("rb") as file:
            part = FileSlice(file.fileno(), 1000, len(data) - 2000, file)
            expected = b"head" + data[1000:-1000] + b"tail"
            async with Running(
                certificates, lambda *_: [struct.pack(">i", len(expected)), b"head", part, b"tail"]
            ) as running:
                reader, writer = await running.connect(client(certificates))
                for _ in range(2):
                    assert await exchanged(reader, writer) == expected
                await close(writer)

    run(main())


def test_a_slow_consumer_waits_alone(certificates: Certificates) -> None:
    def large(frame: memoryview, connection: ClientConnection) -> Response:
        return [framed(bytes(16 << 20))] if len(frame) > 100 else echo(frame, connection)

    async def main() -> None:
        async with Running(certificates, large) as running:
            _, slow = await running.connect(client(certificates))
            slow.write(framed(bytes(200)))
            reader, writer = await running.connect(client(certificates))
            for _ in range(50):
                assert await exchanged(reader, writer) == b"0123456789"
            await close(writer)
            slow.transport.abort()

    run(main())


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", r"User:CN=Alice,OU=People,O=Headwater\, Inc,C=DE"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "User:alice@people"),
    ],
)
def test_a_client_is_named_by_its_certificate(certificates: Certificates, rules: str, principal: str) -> None:
    alice = certificates.issue("alice", {"C": "DE", "O": "Headwater, Inc", "OU": "People", "CN": "Alice"})

    async def main() -> None:
        properties = {
            "ssl_truststore_location": str(certificates.ca),
            "ssl_client_auth": "requested",
            "ssl_principal_mapping_rules": rules,
        }
        async with Running(certificates, whoami, **properties) as running:
            reader, writer = await running.connect(client(certificates, alice))
            assert (await exchanged(reader, writer)).decode() == principal
            await close(writer)
            reader, writer = await running.connect(client(certificates))
            assert await exchanged(reader, writer) == b"User:ANONYMOUS"
            await close(writer)

    run(main())


def test_without_a_rule_for_its_name_a_client_is_turned_away(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    bob = certificates.issue("bob", {"CN": "Bob"})

    async def main() -> None:
        properties = {
            "ssl_truststore_location": str(certificates.ca),
            "ssl_client_auth": "required",
            "ssl_principal_mapping_rules": "RULE:^CN=(A.*)$/$1/",
        }
        async with Running(certificates, whoami, **properties) as running:
            reader, writer = await running.connect(client(certificates, bob))
            writer.write(framed(b"0123456789"))
            assert await reader.read() == b""
            await close(writer)

    run(main())
    assert "no rule of ssl.principal.mapping.rules matches 'CN=Bob'" in caplog.text


def test_a_client_that_must_show_a_certificate_and_does_not_is_refused(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = type(certificates)(tmp_path).issue("stranger", {"CN": "Alice"})

    async def main() -> None:
        properties = {"ssl_truststore_location": str(certificates.ca), "ssl_client_auth": "required"}
        async with Running(certificates, whoami, **properties) as running:
            for certificate in (None, stranger):
                with contextlib.suppress(OSError):
                    reader, writer = await running.connect(client(certificates, certificate))
                    writer.write(framed(b"0123456789"))
                    assert await reader.read() == b""
                    await close(writer)

    run(main())
    assert caplog.text.count("the TLS handshake failed") == 2


@pytest.mark.parametrize("said", [framed(b"\0\x12\0\0\0\0\0\1\xff\xff"), b"GET / HTTP/1.1\r\n\r\n"])
def test_plain_text_to_a_listener_with_tls_is_told_in_one_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    async def main() -> None:
        async with Running(certificates, echo) as running:
            reader, writer = await running.plain()
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await close(writer)

    run(main())
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the client does not speak TLS, which this listener asks for" in record.getMessage()


def test_half_a_handshake_and_garbage_end_and_others_go_on(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Running(certificates, echo, connection_handshake_timeout_ms="100") as running:
            halves = [await running.plain() for _ in range(20)]
            for index, (_, writer) in enumerate(halves):
                writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: index % 12])
            _, garbage = await running.plain()
            garbage.write(b"\x16\x03\x01\x00\x20" + os.urandom(1000))
            reader, writer = await running.connect(client(certificates))
            assert await exchanged(reader, writer) == b"0123456789"
            for half, _ in halves:
                with contextlib.suppress(ConnectionResetError):
                    assert await half.read() == b""
            assert await exchanged(reader, writer) == b"0123456789"
            for _, other in (*halves, (reader, writer), (reader, garbage)):
                await close(other)

    run(main())
    assert "no handshake within 100 ms" in caplog.text


def test_a_certificate_that_is_replaced_is_used_for_new_connections_and_a_damaged_one_is_not(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "server.pem"
    shutil.copy(certificates.server, path)
    config = BrokerConfig.from_properties({"listeners": "SSL://:0", "ssl.keystore.location": str(path)})
    tls = ListenerTls(config.listener_config(config.bind_endpoints[0]))
    before = tls.context()
    assert not tls.reload_if_changed()
    shutil.copy(certificates.issue("renewed", {"CN": "localhost"}), path)
    assert tls.reload_if_changed()
    renewed = tls.context()
    assert renewed is not before
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match="no private key with its certificates can be read"):
        tls.reload_if_changed()
    assert tls.context() is renewed


def test_keys_are_read_from_the_configs_themselves_and_from_pkcs12(certificates: Certificates, tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12 as stores

    pem = certificates.server.read_text()
    key, _, chain = pem.partition("-----BEGIN CERTIFICATE-----")
    made = stores.serialize_key_and_certificates(
        b"broker",
        serialization.load_pem_private_key(key.encode(), None),  # type: ignore[arg-type]
        x509.load_pem_x509_certificate(pem.encode()),
        None,
        serialization.BestAvailableEncryption(b"store-secret"),
    )
    (tmp_path / "server.p12").write_bytes(made)
    inline = {
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----" + chain,
    }
    pkcs12 = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(tmp_path / "server.p12"),
        "ssl.keystore.password": "store-secret",
    }
    for properties in (inline, pkcs12):
        config = BrokerConfig.from_properties({"listeners": "SSL://:0", **properties})
        ListenerTls(config.listener_config(config.bind_endpoints[0]))
        assert "secret" not in repr(config) and "PRIVATE" not in repr(config)
    wrong = BrokerConfig.from_properties({"listeners": "SSL://:0", **pkcs12, "ssl.keystore.password": "guess"})
    with pytest.raises(ConfigError) as caught:
        ListenerTls(wrong.listener_config(wrong.bind_endpoints[0]))
    assert "guess" not in str(caught.value)


def test_an_encrypted_key_needs_its_password_and_nobody_is_asked_for_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    pem = certificates.server.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"key-secret"),
    )
    path = tmp_path / "server.pem"
    path.write_bytes(encrypted + pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    for password, works in (("key-secret", True), ("guess", False), (None, False)):
        properties = {"listeners": "SSL://:0", "ssl.keystore.location": str(path)}
        if password is not None:
            properties["ssl.key.password"] = password
        config = BrokerConfig.from_properties(properties)
        if works:
            ListenerTls(config.listener_config(config.bind_endpoints[0]))
        else:
            with pytest.raises(ConfigError, match="is the password right"):
                ListenerTls(config.listener_config(config.bind_endpoints[0]))


@pytest.mark.parametrize(
    ("properties", "offered", "works"),
    [
        ({"ssl_protocol": "TLSv1.2"}, ssl.TLSVersion.TLSv1_3, False),
        ({"ssl_protocol": "TLSv1.2", "ssl_enabled_protocols": "TLSv1.2"}, ssl.TLSVersion.TLSv1_2, True),
        ({"ssl_protocol": "TLSv1.2", "ssl_enabled_protocols": "TLSv1.2"}, ssl.TLSVersion.TLSv1_3, False),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ssl.TLSVersion.TLSv1_2, False),
        ({"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, ssl.TLSVersion.TLSv1_2, True),
        ({"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, ssl.TLSVersion.TLSv1_3, False),
        ({"ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, ssl.TLSVersion.TLSv1_2, False),
    ],
)
def test_versions_and_suites_are_as_configured(
    certificates: Certificates, properties: dict[str, str], offered: ssl.TLSVersion, works: bool
) -> None:
    async def main() -> bool:
        context = client(certificates)
        context.minimum_version = context.maximum_version = offered
        async with Running(certificates, echo, **properties) as running:
            try:
                reader, writer = await running.connect(context)
            except ssl.SSLError:
                return False
            answer = await exchanged(reader, writer)
            await close(writer)
            return answer == b"0123456789"

    assert run(main()) is works


@pytest.mark.parametrize("suites", ["TLS_AES_128_GCM_SHA256", "TLS_NO_SUCH_SUITE", "TLS_RSA_WITH_NULL_SHA"])
def test_suites_that_cannot_be_had_are_told(certificates: Certificates, suites: str) -> None:
    config = BrokerConfig.from_properties(
        {"listeners": "SSL://:0", "ssl.keystore.location": str(certificates.server), "ssl.cipher.suites": suites}
    )
    with pytest.raises(ConfigError, match=r"ssl\.cipher\.suites"):
        ListenerTls(config.listener_config(config.bind_endpoints[0]))
