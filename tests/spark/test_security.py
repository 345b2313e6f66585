"""Spark against listeners with TLS and SASL, its options as Kafka's Java client has them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.pipelines.datasource.errors import user_message
from tests.bench.peers import apache_kafka
from tests.bench.processes import free_port
from tests.conftest import BrokerProcess, Certificates
from tests.spark.conftest import KAFKA_JVM

pytestmark = pytest.mark.slow

USER, PASSWORD, STORE_PASSWORD = "alice", "alice-secret", "store-secret"
LOGIN = "org.apache.kafka.common.security"
PLAIN_USERS = f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'


@dataclass(frozen=True)
class Stores:
    """What a client has: files of both formats."""

    authority_pem: Path
    authority_p12: Path
    client_p12: Path


@dataclass(frozen=True)
class SecureBroker:
    """A broker by the addresses of its listeners; its topic is made through the one without security."""

    addresses: Mapping[str, str]
    topic: str


@pytest.fixture(scope="module")
def stores(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp("stores")
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    authority = load_pem_x509_certificates(certificates.ca.read_bytes())
    pem = certificates.issue("spark-client", {"CN": "spark"}).read_bytes()
    key: Any = load_pem_private_key(pem, None)
    (folder / "trusted.p12").write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, authority, encryption))
    (folder / "client.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"spark", key, load_pem_x509_certificates(pem)[0], None, encryption)
    )
    return Stores(certificates.ca, folder / "trusted.p12", folder / "client.p12")


@pytest.fixture(scope="module", params=["headwater", "kafka"])
def secure_broker(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secure")
    ports = {"SASL": free_port(), "MTLS": free_port()} if request.param == "kafka" else {"SASL": 0, "MTLS": 0}
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MTLS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": PLAIN_USERS,
    }
    if request.param == "headwater":
        properties["listeners"] = ",".join(["PLAINTEXT://127.0.0.1:0", *listeners])
        broker = BrokerProcess(folder / "data", 0, properties)
        end = broker.close
    else:
        properties["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        scram = f"{LOGIN}.scram.ScramLoginModule required;"
        properties["listener.name.sasl.scram-sha-512.sasl.jaas.config"] = scram
        child, port = apache_kafka.start(folder / "broker", more=properties, listeners=listeners, jvm=KAFKA_JVM)
        end = child.stop
    try:
        if request.param == "headwater":
            broker.await_ready()
            addresses = {"PLAINTEXT": broker.address, **broker.addresses}
        else:
            addresses = {name: f"127.0.0.1:{at}" for name, at in (("PLAINTEXT", port), *ports.items())}
        admin = AdminClient({"bootstrap.servers": addresses["PLAINTEXT"]})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([change])[USER].result(30)
        topic = f"secure-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
        yield SecureBroker(addresses, topic)
    finally:
        end()


def security(kind: str, stores: Stores) -> tuple[str, dict[str, str]]:
    """(listener, options) of a way in."""
    trusted_pem = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(stores.authority_pem)}
    trusted_p12 = {
        "kafka.ssl.truststore.type": "PKCS12",
        "kafka.ssl.truststore.location": str(stores.authority_p12),
        "kafka.ssl.truststore.password": STORE_PASSWORD,
    }
    if kind == "mtls":
        return "MTLS", {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.keystore.type": "PKCS12",
            "kafka.ssl.keystore.location": str(stores.client_p12),
            "kafka.ssl.keystore.password": STORE_PASSWORD,
            **trusted_p12,
        }
    module = {"plain": "plain.PlainLoginModule", "scram": "scram.ScramLoginModule"}[kind]
    return "SASL", {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": {"plain": "PLAIN", "scram": "SCRAM-SHA-512"}[kind],
        "kafka.sasl.jaas.config": f'{LOGIN}.{module} required username="{USER}" password="{PASSWORD}";',
        **(trusted_pem if kind == "plain" else trusted_p12),
    }


@pytest.mark.parametrize("kind", ["plain", "scram", "mtls"])
def test_batches_and_streams_are_written_and_read(
    kind: str, secure_broker: SecureBroker, stores: Stores, spark: SparkSession, tmp_path: Path
) -> None:
    listener, options = security(kind, stores)
    options |= {"kafka.bootstrap.servers": secure_broker.addresses[listener]}
    rows = spark.range(500).selectExpr("cast(id AS string) AS key", f"concat('{kind} ', id) AS value")
    rows.write.format("headwater").mode("append").options(topic=secure_broker.topic, **options).save()
    frame = spark.read.format("headwater").options(subscribe=secure_broker.topic, **options).load()
    assert frame.where(f"string(value) LIKE '{kind} %'").count() == 500
    counts: list[int] = []
    query = (
        spark.readStream.format("headwater")
        .options(subscribe=secure_broker.topic, startingOffsets="earliest", **options)
        .load()
        .where(f"string(value) LIKE '{kind} %'")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, _: counts.append(batch.count()))
        .start()
    )
    assert query.awaitTermination(120)
    assert sum(counts) == 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kafka.sasl.jaas.config": f'{LOGIN}.p.X required username="{USER}" password="bad-secret";'}, "refuses user"),
        ({"kafka.ssl.truststore.location": ""}, "is not to be trusted"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, "no broker answers|speaks TLS"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "GSSAPI is not supported here"),
    ],
)
def test_a_way_in_that_is_wrong_is_one_clear_line_without_secrets(
    change: dict[str, str], message: str, secure_broker: SecureBroker, stores: Stores, spark: SparkSession
) -> None:
    listener, options = security("plain", stores)
    options |= {"kafka.bootstrap.servers": secure_broker.addresses[listener], **change}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("headwater").options(subscribe=secure_broker.topic, **options).load().count()
    line = user_message(caught.value)
    assert line is not None
    assert re.search(message, line)
    assert "secret" not in str(caught.value)
