"""The raw client's connections through listeners with TLS and SASL: real sockets, our own server in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from headwater.logtier.client import blocking
from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import AuthenticationError, BrokerConnectionError
from headwater.logtier.client.messages import kio_request
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.handlers.cluster import api_versions
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.security import (
    sasl_authenticate,
    sasl_handshake,
)
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.quota.client_quotas import ClientQuotas
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.security.scram import ScramCredential, ScramUsers

if TYPE_CHECKING:
    from tests.conftest import Certificates

HANDLERS = {module.API_KEY: module for module in (api_versions, sasl_handshake, sasl_authenticate)}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
BOB = ScramCredential.from_password("SCRAM-SHA-256", "bob-secret")


class Broker:
    """Listeners that know users, and a count of the handshakes that came through them."""

    def __init__(self, certificates: Certificates, protocol: str, **properties: str) -> None:
        self.certificates = certificates
        self.protocol = protocol
        self.handshakes = 0
        self._properties = {
            "listeners": f"{protocol}://127.0.0.1:0",
            "ssl.keystore.location": str(certificates.server),
            "ssl.truststore.location": str(certificates.ca),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": JAAS,
            "connection.failed.authentication.delay.ms": "0",
        } | {name.replace("_", "."): value for name, value in properties.items()}
        if not protocol.startswith("SASL"):
            self._properties = {name: value for name, value in self._properties.items() if "sasl" not in name}
        self._is_serving = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._is_serving.wait(60)

    async def _serve(self) -> None:
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
            self.handshakes += struct.unpack_from(">h", frame)[0] == sasl_handshake.API_KEY
            return dispatcher.dispatch(frame, connection)

        config = BrokerConfig.from_properties(self._properties)
        users = ScramUsers(lambda: {"bob": {"SCRAM-SHA-256": BOB}}, bytes)
        listeners = Listeners(config, SocketNetwork(), SystemClock(), dispatch, users)
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        listeners.open()
        listeners.serve()
        self.port = listeners.advertised[0].port
        self._is_serving.set()
        await self._stop.wait()
        listeners.stop()
        await asyncio.sleep(0)

    def close(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def security(self, mechanism: str | None = None, **properties: str) -> ClientSecurity:
        given = {"security.protocol": self.protocol, "ssl.ca.location": str(self.certificates.ca)}
        if mechanism is not None:
            user = "alice" if mechanism == "PLAIN" else "bob"
            given |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": f"{user}-secret"}
        return ClientSecurity.from_properties(
            given | {name.replace("_", "."): value for name, value in properties.items()}
        )

    def connect(self, security: ClientSecurity, host: str = "127.0.0.1") -> BlockingConnection:
        return BlockingConnection(
            host,
            self.port,
            client_id="test",
            connect_timeout_ms=10_000,
            request_timeout_ms=10_000,
            receive_buffer_bytes=-1,
            security=security,
        )


StartBroker = Callable[..., Broker]


@pytest.fixture
def start(certificates: Certificates) -> Iterator[StartBroker]:
    started: list[Broker] = []

    def start_one(protocol: str, **properties: str) -> Broker:
        started.append(Broker(certificates, protocol, **properties))
        return started[-1]

    yield start_one
    for broker in started:
        broker.close()


def works(connection: BlockingConnection) -> bool:
    with contextlib.closing(connection):
        return bool(connection.call(kio_request(api_versions.API_KEY, 0, {})).api_keys)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_user_comes_in(start: StartBroker, protocol: str, mechanism: str) -> None:
    broker = start(protocol)
    assert works(broker.connect(broker.security(mechanism)))
    assert broker.handshakes == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_told_at_once_and_never_shown(start: StartBroker, mechanism: str) -> None:
    broker = start("SASL_SSL")
    security = broker.security(mechanism, sasl_password="wrong-secret")
    config = ClientConfig((("127.0.0.1", broker.port),), security=security)
    with ClusterClient(config) as cluster, pytest.raises(AuthenticationError) as caught:
        cluster.any_connection()
    assert "refuses user" in str(caught.value)
    assert "secret" not in str(caught.value) + repr(config)
    assert broker.handshakes == 1


def test_a_mechanism_that_the_listener_does_not_have_is_named_with_those_it_has(start: StartBroker) -> None:
    broker = start("SASL_SSL", sasl_enabled_mechanisms="PLAIN")
    with pytest.raises(AuthenticationError, match=r"by SCRAM-SHA-256 \(UNSUPPORTED_SASL_MECHANISM; .*: PLAIN\)"):
        broker.connect(broker.security("SCRAM-SHA-256"))


@pytest.mark.parametrize(
    ("properties", "host", "reason"),
    [
        ({"ssl_ca_location": "{other}"}, "127.0.0.1", "certificate verify failed"),
        ({}, "127.0.0.2", "IP address mismatch"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "127.0.0.2", None),
        ({"ssl_ca_location": "{other}", "enable_ssl_certificate_verification": "false"}, "127.0.0.2", None),
        ({}, "localhost", None),
    ],
)
def test_a_broker_has_to_be_who_it_says(
    start: StartBroker, tmp_path: Path, properties: dict[str, str], host: str, reason: str | None
) -> None:
    from tests.conftest import Certificates

    broker = start("SSL", listeners=f"SSL://{host}:0")
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other").ca
    security = broker.security(**{name: value.format(other=other) for name, value in properties.items()})
    if reason is None:
        assert works(broker.connect(security, host))
    else:
        with pytest.raises(AuthenticationError, match=reason):
            broker.connect(security, host)


def test_a_client_shows_its_certificate_from_pem_or_pkcs12(
    start: StartBroker, certificates: Certificates, tmp_path: Path
) -> None:
    broker = start("SSL", ssl_client_auth="required")
    pem = certificates.issue("raw-client", {"CN": "Raw"})
    key = load_pem_private_key(pem.read_bytes(), None)
    [certificate] = load_pem_x509_certificates(pem.read_bytes())
    store = tmp_path / "store.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"me",
            key,  # type: ignore[arg-type]
            certificate,
            None,
            BestAvailableEncryption(b"store-secret"),
        )
    )
    for properties in (
        {"ssl_certificate_location": str(pem), "ssl_key_location": str(pem)},
        {"ssl_certificate_location": str(pem)},
        {"ssl_certificate_pem": pem.read_text(), "ssl_key_location": str(pem)},
        {"ssl_keystore_location": str(store), "ssl_keystore_password": "store-secret"},
    ):
        assert works(broker.connect(broker.security(**properties)))
    with pytest.raises(AuthenticationError, match=r"refuses us: .*certificate required"):
        broker.connect(broker.security())
    with pytest.raises(ConfigError, match=r"store\.p12") as caught:
        broker.connect(broker.security(ssl_keystore_location=str(store), ssl_keystore_password="wrong-secret"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"ssl_ca_location": "missing.pem"}, "no certificates to trust can be read from missing.pem: No such file"),
        ({"ssl_certificate_location": "missing.pem"}, "can be read from missing.pem: No such file"),
        ({"ssl_key_pem": "secret"}, "no certificate of it"),
        ({"ssl_cipher_suites": "ROT13"}, "ssl.cipher.suites: none of ROT13 is known"),
    ],
)
def test_files_that_cannot_be_used_are_named_before_anybody_is_asked(
    certificates: Certificates, properties: dict[str, str], reason: str
) -> None:
    given = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.ca)}
    security = ClientSecurity.from_properties(
        given | {name.replace("_", "."): value for name, value in properties.items()}
    )
    with pytest.raises(ConfigError, match=reason):
        BlockingConnection(
            "127.0.0.1",
            1,
            client_id="test",
            connect_timeout_ms=1000,
            request_timeout_ms=1000,
            receive_buffer_bytes=-1,
            security=security,
        )


def test_tls_to_a_listener_without_it_is_told(start: StartBroker, certificates: Certificates) -> None:
    broker = start("PLAINTEXT")
    security = ClientSecurity.from_properties({"security.protocol": "SSL", "ssl.ca.location": str(certificates.ca)})
    with pytest.raises((AuthenticationError, BrokerConnectionError), match="TLS"):
        broker.connect(security)


def test_a_broker_that_never_answers_the_handshake_is_given_up(certificates: Certificates) -> None:
    security = ClientSecurity.from_properties({"security.protocol": "SSL", "ssl.ca.location": str(certificates.ca)})
    mute = socket.create_server(("127.0.0.1", 0))
    with mute, pytest.raises(BrokerConnectionError, match=r"no TLS handshake with .* within 50 ms"):
        BlockingConnection(
            "127.0.0.1",
            mute.getsockname()[1],
            client_id="test",
            connect_timeout_ms=50,
            request_timeout_ms=50,
            receive_buffer_bytes=-1,
            security=security,
        )


def test_a_response_that_came_while_this_process_stood_still_is_read(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start("SSL")
    connection = broker.connect(broker.security())
    connection.send(kio_request(api_versions.API_KEY, 0, {}))
    begun_s = time.monotonic()
    looks = iter([begun_s] * 2)  # the length is read, the pause begins, the rest follows
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=lambda: next(looks, begun_s + 1_000)))
    assert connection.receive().correlation_id == 1
    connection.close()


def test_a_session_is_renewed_before_it_ends(start: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start("SASL_PLAINTEXT", connections_max_reauth_ms="3600000")
    connection = broker.connect(broker.security("SCRAM-SHA-256"))
    assert broker.handshakes == 1
    soon_s = time.monotonic() + 0.9 * 3600
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=lambda: soon_s))
    assert works(connection)
    assert broker.handshakes == 2
