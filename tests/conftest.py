"""Fixtures for tests that need a broker: one for the whole run, or their own to restart and kill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import settings

from headwater.pipelines.file_systems.opening import file_system
from tests.bench.processes import free_port
from tests.example_counts import DEFAULT, examples
from tests.hdfs import HdfsProcesses
from tests.s3 import CLIENT_ENVIRONMENT, S3Server

# The same examples on every run, so that a gate does not fail by chance; HYPOTHESIS_EXPLORE=1 looks for new ones. No
# deadlines: how long an example takes says more about the machine.
settings.register_profile("gate", derandomize=True, deadline=None, max_examples=examples(DEFAULT))
settings.register_profile("explore", deadline=None, max_examples=examples(DEFAULT), print_blob=True)
settings.load_profile("explore" if os.environ.get("HYPOTHESIS_EXPLORE") else "gate")

# A shell starts what runs in the background with SIGINT ignored, and processes inherit that: those that tests start
# would not hear of Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

START_S = 60
STOP_S = 30
READY = re.compile(r"^Broker is ready: kafka (\S+:\d+)((?:, [\w.-]+://\S+:\d+)*)", re.MULTILINE)


class BrokerProcess:
    """`headwater broker` in a process group of its own, and its data folder, which outlives it.

    Invariant: after `stop`, `kill` or `close` no process of the group is left.
    """

    def __init__(
        self, data_dir: Path, kafka_port: int, properties: Mapping[str, str], *, module: str = "headwater"
    ) -> None:
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        self.output = data_dir.with_name(f"{data_dir.name}.{uuid.uuid4().hex[:8]}.log")
        command = [
            sys.executable,
            "-m",
            module,
            "broker",
        ]
        # A flag would be stronger than the property.
        if "log.dirs" not in properties:
            command += ["--data", str(data_dir)]
        if "listeners" not in properties:
            # A test that starts it again finds the port free: the kernel could give one of its own choice to a client.
            command += ["--kafka-port", str(kafka_port or free_port())]
        for name, value in properties.items():
            command += ["--set", f"{name}={value}"]
        environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.address = ""
        #: Of the other listeners, by their names.
        self.addresses: dict[str, str] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def log(self) -> str:
        """Everything the broker has printed so far, both streams."""
        return self.output.read_text(errors="replace")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Ends it as a user does, by SIGTERM, and insists on a clean end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"the broker did not stop within {STOP_S} s of SIGTERM:\n{self.log()}") from None
        left = group_exists(self.pid)
        self.close()
        assert code == 0, f"the broker ended with {code} after SIGTERM:\n{self.log()}"
        assert not left, "the broker left processes of its group behind"

    def kill(self) -> None:
        """Ends the whole group without warning, as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_S)

    close = kill

    def await_ready(self) -> None:
        """Returns when the broker has said where it listens; `address` is set from then on."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if found := READY.search(self.log()):
                self.address = found[1]
                self.addresses = dict(other.split("://") for other in found[2].split(", ")[1:])
                return
            if not self.is_running():
                raise RuntimeError(f"the broker ended with {self.process.returncode} while starting:\n{self.log()}")
            time.sleep(0.02)
        raise RuntimeError(f"the broker was not ready after {START_S} s:\n{self.log()}")


def group_exists(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class StartBroker(Protocol):
    """Starts a broker on a data folder; port 0 picks a free one. Whatever still runs is ended after the test."""

    def __call__(
        self,
        data_dir: Path,
        kafka_port: int = 0,
        properties: Mapping[str, str] | None = None,
        await_ready: bool = True,
    ) -> BrokerProcess: ...


class TopicFactory(Protocol):
    """Creates a topic with a name of its own, deleted after the test."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """A factory for brokers that a test restarts or kills; `properties` become `--set name=value`."""
    started: list[BrokerProcess] = []

    def start(
        data_dir: Path,
        kafka_port: int = 0,
        properties: Mapping[str, str] | None = None,
        await_ready: bool = True,
    ) -> BrokerProcess:
        broker = BrokerProcess(data_dir, kafka_port, properties or {})
        started.append(broker)
        if await_ready:
            broker.await_ready()
        return broker

    yield start
    for broker in started:
        broker.close()


@pytest.fixture(scope="session")
def headwater_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker that all tests share; it must come through all of them and stop cleanly."""
    # Without Kafka's wait of three seconds for more members of a new group. Records of the tests are years old, and
    # pipelines write such records to topics that they make: no check of retention comes between writing and reading.
    properties = {"group.initial.rebalance.delay.ms": "0", "log.retention.check.interval.ms": "86400000"}
    broker = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", 0, properties)
    try:
        broker.await_ready()
        yield broker
        broker.stop()
    finally:
        broker.close()


@pytest.fixture(scope="session")
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """Where the broker under test listens; HEADWATER_TEST_BOOTSTRAP names another one, such as an Apache Kafka."""
    if other := os.environ.get("HEADWATER_TEST_BOOTSTRAP"):
        return other
    broker: BrokerProcess = request.getfixturevalue("headwater_broker")
    return broker.address


@pytest.fixture(scope="session")
def admin(bootstrap_servers: str) -> AdminClient:
    """librdkafka's admin client on the broker under test."""
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def new_topic(admin: AdminClient) -> Iterator[TopicFactory]:
    """A factory for topics of this test alone; they keep records of any age, however long the tests take."""
    names: list[str] = []

    def create(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        configs = {"retention.ms": "-1", **(config or {})}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=configs)
        admin.create_topics([topic], request_timeout=30)[name].result(30)
        names.append(name)
        return name

    yield create
    for future in admin.delete_topics(names, request_timeout=30).values() if names else ():
        future.result(30)


class Certificates:
    """An authority and what it has signed, as PEM files in one folder: `ca`, `server` with its key, clients by name."""

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = self._names({"CN": "test authority"})
        self.ca = self._write("ca.pem", self._signed(self._name, self._key, is_authority=True))
        self.server = self.issue("server", {"CN": "localhost"})

    def issue(self, name: str, subject: Mapping[str, str], days: float = 7) -> Path:
        """A private key and its certificate in one file, valid for some days from now; expired if they are negative."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._write(f"{name}.pem", pem + self._signed(self._names(subject), key, days=days))

    def _write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    @staticmethod
    def _names(subject: Mapping[str, str]) -> Any:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        kinds = {
            "C": NameOID.COUNTRY_NAME,
            "O": NameOID.ORGANIZATION_NAME,
            "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
            "CN": NameOID.COMMON_NAME,
            "EMAIL": NameOID.EMAIL_ADDRESS,
        }
        return x509.Name([x509.NameAttribute(kinds[kind], value) for kind, value in subject.items()])

    def _signed(self, subject: Any, key: Any, *, is_authority: bool = False, days: float = 7) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Keys and certificates for listeners and clients with TLS."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsProcesses]:
    """The HDFS that all tests of a run share; a test that kills one of its processes starts it again."""
    server = HdfsProcesses(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The S3 server that all tests of a run share."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in CLIENT_ENVIRONMENT.items():
            patched.setenv(name, value)
        server = S3Server(tmp_path_factory.mktemp("s3"))
        yield server
        server.stop()


@pytest.fixture
def hdfs_folder(hdfs: HdfsProcesses, request: pytest.FixtureRequest) -> str:
    """The URL of a folder of this test alone, which does not exist yet."""
    return f"{hdfs.url}/{re.sub(r'[^a-z0-9_]', '-', request.node.name.lower())}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def hdfs_lake(hdfs: HdfsProcesses, hdfs_folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same for code that finds the HDFS by its configuration; the folder is deleted at the end."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    yield hdfs_folder
    file_system(hdfs_folder).delete(hdfs_folder)
