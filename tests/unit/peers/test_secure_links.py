"""Links through real sockets and our own listeners, with and without TLS and SASL, on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import AuthenticationError, BrokerConnectionError, ClientError
from headwater.logtier.client.messages import kio_request
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import BrokerConfig
from headwater.logtier.handlers.cluster import api_versions
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.security import sasl_authenticate, sasl_handshake
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from headwater.logtier.quota.client_quotas import ClientQuotas
from headwater.logtier.runtime import outgoing
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.runtime.outgoing import SocketOutgoingNetwork
from headwater.logtier.runtime.random_bytes import system_random_bytes
from headwater.logtier.security.scram import ScramCredential, ScramUsers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Certificates

HANDLERS = {module.API_KEY: module for module in (api_versions, sasl_handshake, sasl_authenticate)}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
BOB = ScramCredential.from_password("SCRAM-SHA-256", "bob-secret")
PING = kio_request(api_versions.API_KEY, 3, {"client_software_name": "test", "client_software_version": "1"})


class Listening:
    """Listeners that know users, and connections of another broker to them."""

    def __init__(self, certificates: Certificates, protocol: str, **properties: str) -> None:
        self.certificates = certificates
        self.protocol = protocol
        self.host = properties.pop("host", "127.0.0.1")
        given = {
            "listeners": f"{protocol}://{self.host}:0",
            "ssl.keystore.location": str(certificates.server),
            "ssl.truststore.location": str(certificates.ca),
            "connection.failed.authentication.delay.ms": "0",
        }
        if protocol.startswith("SASL"):
            given["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256"
            given[f"listener.name.{protocol.lower()}.plain.sasl.jaas.config"] = JAAS
        given |= {name.replace("_", "."): value for name, value in properties.items()}
        #: API keys of the requests, in their order.
        self.served: list[int] = []
        self.connections: set[Any] = set()
        services: Any = SimpleNamespace(
            session_watch=None,
            advertised_versions={key: module.VERSIONS for key, module in HANDLERS.items()},
            metadata=SimpleNamespace(image=MetadataImage()),
            clock=SystemClock(),
            quotas=ClientQuotas(),
            metrics=BrokerMetrics(),
        )
        dispatcher = Dispatcher(services, HANDLERS)

        def dispatch(frame: memoryview, connection: Any) -> Any:
            self.served.append(struct.unpack_from(">h", frame)[0])
            self.connections.add(connection)
            return dispatcher.dispatch(frame, connection)

        users = ScramUsers(lambda: {"bob": {"SCRAM-SHA-256": BOB}}, bytes)
        self._listeners = Listeners(
            BrokerConfig.from_properties(given), SocketNetwork(), SystemClock(), dispatch, users
        )

    async def __aenter__(self) -> Listening:
        self._listeners.open()
        self._listeners.serve()
        self.port = self._listeners.advertised[0].port
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listeners.stop()
        await asyncio.sleep(0)

    def security(self, mechanism: str | None = None, **properties: str) -> ClientSecurity:
        given = {"security.protocol": self.protocol, "ssl.ca.location": str(self.certificates.ca)}
        if mechanism is not None:
            user = "alice" if mechanism == "PLAIN" else "bob"
            given |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": f"{user}-secret"}
        return ClientSecurity.from_properties(
            given | {name.replace("_", "."): value for name, value in properties.items()}
        )


def connections(port: int, security: Callable[[], ClientSecurity], host: str = "127.0.0.1", **settings: Any) -> Peers:
    context = LinkContext(
        SocketOutgoingNetwork(),
        SystemClock(),
        random.Random(1).random,
        system_random_bytes,
        PeerSettings("test", **settings),
    )
    return Peers(lambda _: BrokerAddress(host, port), lambda _: security(), context)


async def ping(peers: Peers) -> Any:
    return await peers.call(1, Purpose.CONTROLLER, PING)


async def refusal(peers: Peers) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await ping(peers)
    await peers.aclose()
    return caught.value


def on_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    run(main())


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("PLAINTEXT", None),
        ("SSL", None),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
    ],
)
def test_64_pipelined_requests_are_answered_in_order_on_one_connection(
    certificates: Certificates, protocol: str, mechanism: str | None
) -> None:
    async def scenario() -> None:
        async with Listening(certificates, protocol) as listening:
            peers = connections(listening.port, lambda: listening.security(mechanism))
            answers = await asyncio.gather(*(ping(peers) for _ in range(64)))
            assert all(answer.api_keys for answer in answers)
            assert len(listening.connections) == 1
            await peers.aclose()

    on_loop(scenario)


def test_a_broker_shows_its_certificate(certificates: Certificates) -> None:
    pem = str(certificates.issue("peer", {"CN": "broker-2"}))

    async def scenario() -> None:
        async with Listening(certificates, "SSL", ssl_client_auth="required") as listening:
            peers = connections(listening.port, lambda: listening.security(ssl_certificate_location=pem))
            assert (await ping(peers)).api_keys
            [connection] = listening.connections
            assert connection.principal == "User:CN=broker-2"
            await peers.aclose()
            without = await refusal(connections(listening.port, listening.security))
            assert isinstance(without, AuthenticationError | BrokerConnectionError)
            assert not isinstance(without, AuthenticationError) or "certificate required" in str(without)

    on_loop(scenario)


@pytest.mark.parametrize(
    ("host", "properties", "reason"),
    [
        ("127.0.0.2", {}, "is not to be trusted: .*IP address mismatch"),
        ("127.0.0.1", {"ssl_ca_location": "{other}"}, "is not to be trusted: .*certificate verify failed"),
        ("127.0.0.1", {"ssl_ca_location": "missing.pem"}, "can be read from missing.pem: No such file"),
    ],
)
def test_a_broker_has_to_be_who_it_says(
    certificates: Certificates, tmp_path: Path, host: str, properties: dict[str, str], reason: str
) -> None:
    from tests.conftest import Certificates

    other = Certificates(tmp_path).ca

    async def scenario() -> None:
        async with Listening(certificates, "SSL", host=host) as listening:
            security = listening.security(**{name: value.format(other=other) for name, value in properties.items()})
            failure = await refusal(connections(listening.port, lambda: security, host))
            assert isinstance(failure, AuthenticationError)
            assert re.search(reason, str(failure))

    on_loop(scenario)


def test_a_certificate_that_is_renewed_on_disk_takes_effect_without_a_restart(
    certificates: Certificates, tmp_path: Path
) -> None:
    from tests.conftest import Certificates

    trusted = tmp_path / "trusted.pem"
    (tmp_path / "other").mkdir()
    trusted.write_bytes(Certificates(tmp_path / "other").ca.read_bytes())

    async def scenario() -> None:
        async with Listening(certificates, "SSL") as listening:
            security = listening.security(ssl_ca_location=str(trusted))
            peers = connections(listening.port, lambda: security)
            with pytest.raises(AuthenticationError):
                await ping(peers)
            trusted.write_bytes(certificates.ca.read_bytes())
            assert (await ping(peers)).api_keys
            await peers.aclose()

    on_loop(scenario)


def test_a_name_is_resolved_and_its_addresses_are_tried_in_turn(certificates: Certificates) -> None:
    async def scenario() -> None:
        # Where localhost is ::1, too, that address refuses.
        async with Listening(certificates, "SSL") as listening:
            peers = connections(listening.port, listening.security, "localhost")
            assert (await ping(peers)).api_keys
            await peers.aclose()

    on_loop(scenario)


def test_a_silent_address_does_not_hide_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog swallows attempts to connect."""
    monkeypatch.setattr(outgoing, "ADDRESS_WAIT_S", 0.05)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as full, contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as there:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):
                filling = stack.enter_context(socket.socket())
                filling.setblocking(False)
                filling.connect_ex(full.getsockname())
            targets = [(socket.AF_INET, each.getsockname()) for each in (full, there)]
            connected = await outgoing._first_that_accepts(loop, targets, (-1, -1))
            with connected:
                assert connected.getpeername() == there.getsockname()

    on_loop(scenario)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_and_the_right_one_taken_later(
    certificates: Certificates, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Listening(certificates, "SASL_PLAINTEXT") as listening:
            security = [listening.security(mechanism, sasl_password="wrong-secret")]
            peers = connections(listening.port, lambda: security[0])
            for _ in range(3):
                with pytest.raises(AuthenticationError, match="refuses"):
                    await ping(peers)
            security[0] = listening.security(mechanism)
            assert (await ping(peers)).api_keys
            await peers.aclose()

    on_loop(scenario)
    [line] = [record for record in caplog.records if "peers" in record.name and record.levelname == "ERROR"]
    assert "refuses" in line.getMessage()
    assert "secret" not in caplog.text


def test_a_session_is_renewed_before_it_ends(certificates: Certificates) -> None:
    async def scenario() -> None:
        # The broker accepts a renewal after a second at the earliest.
        async with Listening(certificates, "SASL_PLAINTEXT", connections_max_reauth_ms="1500") as listening:
            peers = connections(listening.port, lambda: listening.security("SCRAM-SHA-256"))
            while listening.served.count(sasl_handshake.API_KEY) < 3:
                assert all(answer.api_keys for answer in await asyncio.gather(*(ping(peers) for _ in range(5))))
                await asyncio.sleep(0.02)
            assert len(listening.connections) == 1
            await peers.aclose()

    on_loop(scenario)


def test_tls_to_a_listener_without_it_and_the_other_way_round(certificates: Certificates) -> None:
    async def scenario() -> None:
        async with Listening(certificates, "PLAINTEXT") as plain, Listening(certificates, "SSL") as encrypted:
            failure = await refusal(connections(plain.port, encrypted.security))
            assert "TLS" in str(failure)
            failure = await refusal(connections(encrypted.port, plain.security))
            assert isinstance(failure, ClientError)

    on_loop(scenario)


def test_a_login_that_the_listener_does_not_have_is_named(certificates: Certificates) -> None:
    async def scenario() -> None:
        async with Listening(certificates, "SASL_PLAINTEXT", sasl_enabled_mechanisms="PLAIN") as listening:
            failure = await refusal(connections(listening.port, lambda: listening.security("SCRAM-SHA-256")))
            assert isinstance(failure, AuthenticationError)
            assert "does not authenticate by SCRAM-SHA-256" in str(failure)

    on_loop(scenario)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_broker_that_accepts_and_never_answers_is_given_up(certificates: Certificates, protocol: str) -> None:
    security = ClientSecurity.from_properties({"security.protocol": protocol, "ssl.ca.location": str(certificates.ca)})

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            peers = connections(mute.getsockname()[1], lambda: security, setup_timeout_ms=50)
            assert "within 50 ms" in str(await refusal(peers))

    on_loop(scenario)


def test_a_refused_connection_and_an_unknown_host_are_named() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        refused = await refusal(connections(port, ClientSecurity))
        assert f"no connection to broker 1 at 127.0.0.1:{port}: Connection refused" in str(refused)
        unknown = await refusal(connections(port, ClientSecurity, "host.invalid"))
        assert isinstance(unknown, BrokerConnectionError)
        unnameable = await refusal(connections(port, ClientSecurity, "x" * 64 + ".invalid"))
        assert isinstance(unnameable, BrokerConnectionError)

    on_loop(scenario)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_large_response_comes_whole(certificates: Certificates, encrypted: bool) -> None:
    """The records of a fetch; the response is received into its own memory."""
    body = random.Random(5).randbytes(8 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(size := await reader.read(4)) == 4:
            frame = await reader.readexactly(struct.unpack(">i", size)[0])
            is_versions = frame[:2] == struct.pack(">h", api_versions.API_KEY)
            answer = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 3, 0, 0) if is_versions else body
            writer.write(struct.pack(">i", 4 + len(answer)) + frame[4:8] + answer)
        writer.close()

    async def scenario() -> None:
        context = None
        if encrypted:
            import ssl

            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificates.server)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        security = ClientSecurity.from_properties(
            {"security.protocol": "SSL" if encrypted else "PLAINTEXT", "ssl.ca.location": str(certificates.ca)}
        )
        peers = connections(server.sockets[0].getsockname()[1], lambda: security)
        fetch: Request[memoryview] = Request(3, 0, False, b"", lambda received: received, False)
        for received in await asyncio.gather(*(peers.call(1, Purpose.FETCH_IN_SYNC, fetch) for _ in range(3))):
            assert received == body
        await peers.aclose()
        server.close()
        await server.wait_closed()

    on_loop(scenario)
