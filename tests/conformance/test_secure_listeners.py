"""Unmodified clients through every kind of listener, and those who try to get past it."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from cryptography.hazmat.primitives.asymmetric import ec
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from headwater.logtier.client import blocking
from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.security import ClientSecurity

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, Certificates

pytestmark = pytest.mark.slow

TIMEOUT_S = 30
#: Of a session. Clients that are not run for a moment still renew it in time.
SHORT_MS = 6_000
SECRETS = ("alice-secret", "bob-secret", "carol-secret", "key-secret")
ISSUER_KEY = ec.generate_private_key(ec.SECP256R1())
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'


def token(subject: str = "dave", lifetime_s: int = 600, key: Any = ISSUER_KEY) -> str:
    now = int(time.time())
    return jwt.encode(
        {"sub": subject, "iat": now, "exp": now + lifetime_s, "aud": "kafka"}, key, "ES256", headers={"kid": "issuer"}
    )


def add_user(data_dir: Path, user: str, password: str, *mechanisms: str) -> None:
    command = [sys.executable, "-m", "headwater", "user", "add", user, "--data", str(data_dir)]
    for mechanism in mechanisms:
        command += ["-m", mechanism]
    subprocess.run(command, input=f"{password}\n", text=True, check=True, capture_output=True, timeout=60)


class Secure:
    """A broker with a listener of each kind, and what its clients need."""

    def __init__(self, broker: BrokerProcess, certificates: Certificates) -> None:
        self.broker = broker
        self.addresses = {"PLAINTEXT": broker.address, **broker.addresses}
        self.certificates = certificates
        self.alice = certificates.issue("mtls-alice", {"CN": "Alice", "OU": "People"})

    def properties(self, listener: str, mechanism: str | None = None, password: str | None = None) -> dict[str, Any]:
        """librdkafka's properties of a client that comes through a listener."""
        protocol = "SSL" if listener == "MTLS" else listener
        properties: dict[str, Any] = {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": protocol,
            "log_level": 0,
            "socket.timeout.ms": TIMEOUT_S * 1000,
        }
        if protocol.endswith("SSL"):
            properties["ssl.ca.location"] = str(self.certificates.ca)
        if listener == "MTLS":
            properties |= {"ssl.certificate.location": str(self.alice), "ssl.key.location": str(self.alice)}
        if mechanism == "OAUTHBEARER":
            properties["sasl.mechanism"] = mechanism
            properties["oauth_cb"] = lambda _: (password or token(), time.time() + 600)
        elif mechanism is not None:
            user = "alice" if mechanism == "PLAIN" else "bob"
            properties |= {
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password or f"{user}-secret",
            }
        return properties


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Secure]:
    from tests.conftest import BrokerProcess

    folder = tmp_path_factory.mktemp("secure")
    algorithm: Any = jwt.algorithms.ECAlgorithm
    keys = [{**algorithm.to_jwk(ISSUER_KEY.public_key(), as_dict=True), "kid": "issuer"}]
    (folder / "jwks.json").write_text(json.dumps({"keys": keys}))
    add_user(folder / "data", "bob", "bob-secret", "SCRAM-SHA-256", "SCRAM-SHA-512")
    listeners = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "MTLS", "SHORT")
    properties = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in listeners),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,"
        "MTLS:SSL,SHORT:SASL_PLAINTEXT",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.location": str(certificates.ca),
        "ssl.key.password": "key-secret",
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.short.plain.connections.max.reauth.ms": str(SHORT_MS),
        "connection.handshake.timeout.ms": "10000",
        "group.initial.rebalance.delay.ms": "0",
        **{f"listener.name.{name}.plain.sasl.jaas.config": JAAS for name in ("sasl_plaintext", "sasl_ssl", "short")},
    }
    broker = BrokerProcess(folder / "data", 0, properties)
    try:
        broker.await_ready()
        yield Secure(broker, certificates)
        log = broker.log()
        assert "Traceback" not in log
        for secret in SECRETS:
            assert secret not in log
        broker.stop()
    finally:
        broker.close()


WAYS_IN = [
    ("PLAINTEXT", None),
    ("SSL", None),
    ("MTLS", None),
    *((listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS_IN)
def test_confluent_kafka_produces_and_consumes(secure: Secure, listener: str, mechanism: str | None) -> None:
    properties = secure.properties(listener, mechanism)
    topic = f"test-{uuid.uuid4().hex[:8]}"
    producer = Producer(properties)
    for number in range(300):
        producer.produce(topic, bytes(2000), str(number))
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**properties, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received = 0
    deadline = time.monotonic() + TIMEOUT_S
    while received < 300 and time.monotonic() < deadline:
        received += sum(message.error() is None for message in consumer.consume(300, 1))
    # Clients are told the address of the listener that they came through.
    [told] = consumer.list_topics(timeout=TIMEOUT_S).brokers.values()
    consumer.close()
    assert received == 300
    assert f"{told.host}:{told.port}" == secure.addresses[listener]


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """kafka-python's source of tokens."""

    def token(self) -> str:
        return token()


@pytest.mark.parametrize(("listener", "mechanism"), WAYS_IN)
def test_kafka_python_produces_and_consumes(secure: Secure, listener: str, mechanism: str | None) -> None:
    properties: dict[str, Any] = {
        "bootstrap_servers": secure.addresses[listener],
        "security_protocol": "SSL" if listener == "MTLS" else listener,
    }
    if "SSL" in properties["security_protocol"]:
        properties["ssl_cafile"] = str(secure.certificates.ca)
    if listener == "MTLS":
        properties |= {"ssl_certfile": str(secure.alice), "ssl_keyfile": str(secure.alice)}
    if mechanism == "OAUTHBEARER":
        properties |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens()}
    elif mechanism is not None:
        user = "alice" if mechanism == "PLAIN" else "bob"
        properties |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": f"{user}-secret",
        }
    topic = f"test-{uuid.uuid4().hex[:8]}"
    producer = KafkaProducer(**properties)
    for number in range(50):
        producer.send(topic, str(number).encode())
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **properties)
    received = [next(consumer).value for _ in range(50)]
    consumer.close()
    assert received == [str(number).encode() for number in range(50)]


@pytest.mark.parametrize(("listener", "mechanism"), [way for way in WAYS_IN if way[1] != "OAUTHBEARER"])
def test_our_own_client_comes_in(secure: Secure, listener: str, mechanism: str | None) -> None:
    properties = secure.properties(listener, mechanism)
    [address] = parse_bootstrap_servers(properties.pop("bootstrap.servers"))
    for name in ("log_level", "socket.timeout.ms"):
        del properties[name]
    topic = f"test-{uuid.uuid4().hex[:8]}"
    with ClusterClient(ClientConfig((address,), security=ClientSecurity.from_properties(properties))) as cluster:
        assert cluster.partitions(topic, allow_auto_create=True) == [0]
        assert cluster.list_offsets({(topic, 0): LATEST}) == {(topic, 0): 0}


def test_a_session_of_our_own_client_goes_on_after_its_end(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "REAUTHENTICATE_AT", 0.25)  # with time to spare
    [(host, port)] = parse_bootstrap_servers(secure.addresses["SHORT"])
    security = ClientSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="alice-secret")
    connection = BlockingConnection(
        host,
        port,
        client_id="short",
        connect_timeout_ms=TIMEOUT_S * 1000,
        request_timeout_ms=TIMEOUT_S * 1000,
        receive_buffer_bytes=-1,
        security=security,
    )
    with contextlib.closing(connection):
        ends = time.monotonic() + 1.25 * SHORT_MS / 1000
        while time.monotonic() < ends:
            assert connection.call(kio_request(ApiKey.API_VERSIONS, 0, {})).error_code == 0
            time.sleep(0.1)


def refusal_of(properties: Mapping[str, Any]) -> str:
    """Why a client cannot connect, as librdkafka tells its error callback."""
    errors: list[str] = []
    client = Producer({**properties, "error_cb": lambda error: errors.append(f"{error.name()} {error.str()}")})
    deadline = time.monotonic() + TIMEOUT_S
    while not errors and time.monotonic() < deadline:
        client.poll(0.1)
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=0.1)
    client.purge()
    return errors[0] if errors else ""


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_by_an_authentication_error(secure: Secure, listener: str, mechanism: str) -> None:
    refusal = refusal_of(secure.properties(listener, mechanism, "wrong"))
    assert refusal.startswith("_AUTHENTICATION")
    assert "Authentication failed" in refusal


@pytest.mark.parametrize(
    "bearer",
    [
        pytest.param(lambda: token(lifetime_s=-600), id="expired"),
        pytest.param(lambda: token(key=ec.generate_private_key(ec.SECP256R1())), id="forged"),
    ],
)
def test_a_token_that_is_not_valid_is_refused(secure: Secure, bearer: Any) -> None:
    refusal = refusal_of(secure.properties("SASL_SSL", "OAUTHBEARER", bearer()))
    assert refusal.startswith("_AUTHENTICATION")
    assert "invalid_token" in refusal


def test_no_description_of_configs_holds_a_secret(secure: Secure) -> None:
    admin = AdminClient({"bootstrap.servers": secure.addresses["PLAINTEXT"]})
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    for name in ("ssl.key.password", "listener.name.sasl_ssl.plain.sasl.jaas.config"):
        assert entries[name].is_sensitive
        assert entries[name].value is None
    text = repr([(entry.name, entry.value, str(entry.synonyms)) for entry in entries.values()])
    for secret in SECRETS:
        assert secret not in text


def test_no_file_of_the_broker_holds_a_password(secure: Secure) -> None:
    passwords = [secret.encode() for secret in SECRETS]
    for path in (secure.broker.data_dir / "__cluster_metadata").rglob("*"):
        if path.is_file():
            assert not any(password in path.read_bytes() for password in passwords), path


class Raw:
    """A socket that says what it likes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.correlation_id = 0

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, body: bytes) -> None:
        self.correlation_id += 1
        frame = struct.pack(">hhih", api_key, version, self.correlation_id, -1) + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes | None:
        """The next frame without its correlation id; None at the end of the connection."""
        size = self._exactly(4)
        if size is None:
            return None
        frame = self._exactly(struct.unpack(">i", size)[0])
        return None if frame is None else frame[4:]

    def token(self, token: bytes) -> bytes | None:
        """A token in a frame of its own, and the answer."""
        self.socket.sendall(struct.pack(">i", len(token)) + token)
        size = self._exactly(4)
        return None if size is None else self._exactly(struct.unpack(">i", size)[0])

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> int:
        self.send(17, version, struct.pack(">h", len(mechanism)) + mechanism.encode())
        answer = self.receive()
        assert answer is not None
        return int(struct.unpack_from(">h", answer)[0])

    def authenticate(self, token: bytes = b"\0alice\0alice-secret", version: int = 1) -> tuple[int, int] | None:
        """The error code and how long the session lasts; None if there is no answer."""
        self.send(36, version, struct.pack(">i", len(token)) + token)
        answer = self.receive()
        if answer is None:
            return None
        [code, message_size] = struct.unpack_from(">hh", answer)
        position = 4 + max(0, message_size)
        [token_size] = struct.unpack_from(">i", answer, position)
        lifetime = struct.unpack_from(">q", answer, position + 4 + max(0, token_size))[0] if version else 0
        return code, lifetime

    def is_open(self) -> bool:
        """Whether a request is answered."""
        try:
            self.send(18, 0, b"")
            return self.receive() is not None
        except (ConnectionResetError, BrokenPipeError):
            return False

    def ends(self) -> bool:
        """Whether the other side closes without a word."""
        self.socket.settimeout(TIMEOUT_S)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)


METADATA, ILLEGAL_SASL_STATE, AUTHENTICATION_FAILED, UNSUPPORTED_MECHANISM = 3, 34, 58, 33


def test_a_handshake_of_version_0_is_followed_by_tokens_without_headers(secure: Secure) -> None:
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake(version=0) == 0
        assert raw.token(b"\0alice\0alice-secret") == b""
        assert raw.is_open()
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake(version=0) == 0
        assert raw.token(b"\0a\0b") is None


def test_requests_before_authentication_end_the_connection(secure: Secure) -> None:
    for api_key, body in ((METADATA, struct.pack(">i", 0)), (36, struct.pack(">i", 0)), (0, b""), (99, b"")):
        with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
            assert raw.is_open(), "ApiVersions comes before everything"
            raw.send(api_key, 1, body)
            assert raw.ends()


def test_another_request_during_the_exchange_is_an_illegal_state(secure: Secure) -> None:
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake() == 0
        raw.send(18, 0, b"")
        answer = raw.receive()
        assert answer is not None
        assert struct.unpack_from(">h", answer)[0] == ILLEGAL_SASL_STATE
        assert raw.ends()


def test_a_mechanism_that_there_is_not_is_answered_and_ends_the_connection(secure: Secure) -> None:
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake("GSSAPI") == UNSUPPORTED_MECHANISM
        assert raw.ends()


def test_after_a_failure_nothing_more_is_answered(secure: Secure) -> None:
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake() == 0
        assert raw.authenticate(b"\0alice\0guess") == (AUTHENTICATION_FAILED, 0)
        assert not raw.is_open()


def test_sasl_on_a_listener_without_it_is_an_illegal_state_and_the_connection_goes_on(secure: Secure) -> None:
    with Raw(secure.addresses["PLAINTEXT"]) as raw:
        assert raw.handshake() == ILLEGAL_SASL_STATE
        assert raw.authenticate() == (ILLEGAL_SASL_STATE, 0)
        assert raw.is_open()


def test_a_session_that_is_not_renewed_ends(secure: Secure) -> None:
    with Raw(secure.addresses["SHORT"]) as renewed, Raw(secure.addresses["SHORT"]) as raw:
        for one in (renewed, raw):
            assert one.handshake() == 0
            assert one.authenticate() == (0, SHORT_MS)
            assert one.is_open()
        time.sleep(1)  # sooner it would be refused
        renewed_s = time.monotonic()
        assert renewed.handshake() == 0
        assert renewed.authenticate() == (0, SHORT_MS)
        deadline_s = renewed_s + TIMEOUT_S
        while raw.is_open():
            assert time.monotonic() < deadline_s, "it goes on without being renewed"
            time.sleep(0.02)
        # On a busy machine the second session may be over as well.
        assert renewed.is_open() or time.monotonic() - renewed_s > SHORT_MS / 1000


def test_a_token_over_the_limit_is_refused_before_it_is_read(secure: Secure) -> None:
    with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
        assert raw.handshake() == 0
        raw.socket.sendall(struct.pack(">i", 600_000))
        assert raw.ends()
    assert "(sasl.server.max.receive.size)" in secure.broker.log()


def test_floods_and_slow_handshakes_leave_the_others_alone(secure: Secure) -> None:
    """Half handshakes, silence, a byte at a time, garbage and refused logins, while somebody works."""
    done = threading.Event()
    worked: list[int] = []

    def work() -> None:
        with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
            raw.handshake()
            assert raw.authenticate() == (0, 0)
            while not done.is_set():
                assert raw.is_open()
                worked.append(1)
                time.sleep(0.01)

    worker = threading.Thread(target=work)
    worker.start()
    hostile: list[socket.socket] = []
    try:
        for name in ("SSL", "SASL_SSL", "SASL_PLAINTEXT", "MTLS"):
            host, _, port = secure.addresses[name].rpartition(":")
            for number in range(50):
                connection = socket.create_connection((host, int(port)), TIMEOUT_S)
                connection.sendall([b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0"][number % 4])
                hostile.append(connection)
        slow = Raw(secure.addresses["SASL_PLAINTEXT"])
        hostile.append(slow.socket)
        for byte in struct.pack(">i", 100_000) + bytes(20):
            slow.socket.sendall(bytes([byte]))
        for _ in range(20):
            with Raw(secure.addresses["SASL_PLAINTEXT"]) as raw:
                raw.handshake()
                raw.authenticate(base64.b64encode(bytes(1000)))
        before = len(worked)
        for connection in hostile:
            connection.settimeout(TIMEOUT_S)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "whoever does not authenticate in time is turned away"
        # Where all of them were turned away before they were looked at, no time has passed for work.
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(worked) == before and worker.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert len(worked) > before
    finally:
        done.set()
        worker.join(TIMEOUT_S)
        for connection in hostile:
            connection.close()


@pytest.mark.parametrize(
    ("listener", "log"), [("SSL", "does not speak TLS"), ("PLAINTEXT", "the client speaks TLS to")]
)
def test_the_wrong_protocol_is_named_in_the_log(secure: Secure, listener: str, log: str) -> None:
    host, _, port = secure.addresses[listener].rpartition(":")
    if listener == "SSL":
        with Raw(secure.addresses[listener]) as raw, contextlib.suppress(OSError):
            raw.send(18, 0, b"")
            assert raw.ends()
    else:
        context = ssl.create_default_context(cafile=str(secure.certificates.ca))
        with pytest.raises(OSError), socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            context.wrap_socket(connection, server_hostname="localhost")
    assert log in secure.broker.log()


def test_passwords_are_set_listed_and_deleted_by_command_and_by_request(secure: Secure, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=bob\nsasl.password=bob-secret\n"
        f"ssl.truststore.location={secure.certificates.ca}\n"
    )

    def headwater(*arguments: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "headwater", *arguments, "-b", secure.addresses["SASL_SSL"]]
        done = subprocess.run(
            [*command, "--command-config", str(config)],
            check=False,
            input=stdin,
            text=True,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    headwater("user", "add", "carol", "-m", "SCRAM-SHA-256", stdin="carol-secret\n")
    assert '{"user": "carol", "mechanism": "SCRAM-SHA-256", "iterations": 8192}' in headwater(
        "user", "list", "-o", "jsonl"
    )
    carol = secure.properties("SASL_SSL", "SCRAM-SHA-256", "carol-secret") | {"sasl.username": "carol"}
    topic = f"test-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(carol)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    assert topic in headwater("topic", "list")
    headwater("user", "delete", "carol", "-m", "SCRAM-SHA-256")
    assert refusal_of(carol).startswith("_AUTHENTICATION")
