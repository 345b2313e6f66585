"""A broker to be fuzzed, and somebody who goes on working beside it."""

from __future__ import annotations

import asyncio
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, Certificates

TIMEOUT_S = 60
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Bystander:
    """Produces numbered records and consumes them again, on connections of its own, until it is told to stop."""

    def __init__(self, address: str) -> None:
        self.errors: list[Any] = []
        self.produced = 0
        self.consumed = 0
        self._topic = f"bystander-{uuid.uuid4().hex}"
        self._address = address
        self._stopping = threading.Event()
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(self._topic, 1, 1)])[self._topic].result(TIMEOUT_S)
        self._thread = threading.Thread(target=self._work, name="bystander")
        self._thread.start()

    def check_progress(self) -> None:
        """Returns when one more record has made its way."""
        consumed = self.consumed
        for _ in range(1000 * TIMEOUT_S):
            if self.consumed > consumed or self.errors:
                break
            self._stopping.wait(0.001)
        assert self.errors == []
        assert self.consumed > consumed, "the bystander is held up"

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * TIMEOUT_S)
        assert self.errors == []
        assert self.consumed == self.produced > 0

    def _work(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 0, "error_cb": self.errors.append})
        consumer = Consumer(
            {"bootstrap.servers": self._address, "group.id": "bystander", "error_cb": self.errors.append}
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._stopping.is_set() and not self.errors:
            producer.produce(self._topic, b"%d" % self.produced, on_delivery=self._delivered)
            self.produced += 1
            if producer.flush(TIMEOUT_S):
                self.errors.append(f"record {self.produced} was not acknowledged")
                break
            message = consumer.poll(TIMEOUT_S)
            if message is None or message.error() or message.value() != b"%d" % self.consumed:
                self.errors.append(f"instead of record {self.consumed} came {message and message.error()}")
                break
            self.consumed += 1
            self._stopping.wait(0.002)
        consumer.close()

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.errors.append(error)


class Target:
    """The broker that is fuzzed.

    Invariant: at the end of a test nothing of it has reached the log as a fault, and the bystander has gone on.
    """

    def __init__(self, broker: BrokerProcess, bystander: Bystander) -> None:
        self.broker = broker
        self.addresses = {"PLAINTEXT": broker.address, **broker.addresses}
        self.bystander = bystander
        self.logged = 0

    def memory_peak_bytes(self) -> int:
        """The most that was resident at any time."""
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def check(self) -> None:
        assert self.broker.is_running()
        self.bystander.check_progress()
        logged = self.broker.log()[self.logged :]
        self.logged += len(logged)
        assert "Traceback" not in logged and " ERROR " not in logged, logged[-5000:]


@pytest.fixture(scope="module")
def fuzzed_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Target]:
    from tests.conftest import BrokerProcess

    properties = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "ssl.keystore.location": str(certificates.server),
        "ssl.key.password": "key-secret",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "connection.handshake.timeout.ms": "3000",
        "group.initial.rebalance.delay.ms": "0",
        **{f"listener.name.{name}.plain.sasl.jaas.config": JAAS for name in ("sasl_plaintext", "sasl_ssl")},
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("fuzzed") / "data", 0, properties)
    try:
        broker.await_ready()
        bystander = Bystander(broker.address)
        try:
            yield Target(broker, bystander)
        finally:
            bystander.stop()
        log = broker.log()
        assert "alice-secret" not in log and "key-secret" not in log
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def target(fuzzed_broker: Target) -> Iterator[Target]:
    """The broker, checked after every test."""
    yield fuzzed_broker
    fuzzed_broker.check()


class Wire:
    """A connection that sends whatever it is given, and reads whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: str) -> Wire:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, patience_s: float) -> bytes | None:
        """One frame; b"" at the end of the stream, None when nothing comes."""
        try:
            async with asyncio.timeout(patience_s):
                size = await self.reader.readexactly(4)
                return await self.reader.readexactly(struct.unpack(">i", size)[0])
        except TimeoutError:
            return None
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    def close(self) -> None:
        self.writer.close()


@pytest.fixture(scope="session")
def wire() -> type[Wire]:
    """The class of a connection: test modules cannot import it from here."""
    return Wire
