"""The configs of a listener, as a broker uses them to connect to the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.client.tls import client_context
from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.peers.inter_broker_security import inter_broker_security

if TYPE_CHECKING:
    from tests.conftest import Certificates

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="b-secret" user_b="x";'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="b-secret";'


def security(protocol: str, mechanism: str | None = None, jaas: str | None = None, **properties: str) -> ClientSecurity:
    """What a broker with one listener of a protocol makes of its configs; `jaas` is that of the enabled mechanism."""
    given = {"listeners": f"{protocol}://localhost:9092"}
    given |= {name.replace("_", "."): value for name, value in properties.items()}
    if jaas is not None:
        enabled = properties["sasl_enabled_mechanisms"].lower()
        given[f"listener.name.{protocol.lower()}.{enabled}.sasl.jaas.config"] = jaas
    config = BrokerConfig.from_properties(given)
    return inter_broker_security(config.listener_config(config.bind_endpoints[0]), mechanism)


def test_plain_text_needs_nothing() -> None:
    assert security("PLAINTEXT") == ClientSecurity()


def test_a_broker_shows_the_key_of_its_listener_and_trusts_its_truststore(certificates: Certificates) -> None:
    server, authority = str(certificates.server), str(certificates.ca)
    given = security("SSL", ssl_keystore_location=server, ssl_truststore_location=authority, ssl_key_password="k")
    assert given == ClientSecurity(protocol="SSL", certificate_location=server, ca_location=authority, key_password="k")
    inline = security(
        "SSL", ssl_keystore_key="key", ssl_keystore_certificate_chain="chain", ssl_truststore_certificates="trusted"
    )
    assert inline == ClientSecurity(protocol="SSL", key_pem="key", certificate_pem="chain", ca_pem="trusted")


def test_pkcs12_stores_are_read_for_both(certificates: Certificates, tmp_path: Path) -> None:
    pem = certificates.server.read_bytes()
    [certificate] = load_pem_x509_certificates(pem)
    [authority] = load_pem_x509_certificates(certificates.ca.read_bytes())
    encryption = BestAvailableEncryption(b"store-secret")
    key = load_pem_private_key(pem, None)
    keystore, truststore = tmp_path / "key.p12", tmp_path / "trust.p12"
    keystore.write_bytes(
        pkcs12.serialize_key_and_certificates(b"me", key, certificate, None, encryption)  # type: ignore[arg-type]
    )
    truststore.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [authority], encryption))
    given = security(
        "SSL",
        ssl_keystore_type="PKCS12",
        ssl_keystore_location=str(keystore),
        ssl_keystore_password="store-secret",
        ssl_truststore_type="PKCS12",
        ssl_truststore_location=str(truststore),
        ssl_truststore_password="store-secret",
    )
    assert "store-secret" not in repr(given)
    context = client_context(given)
    [trusted] = context.get_ca_certs(binary_form=True)
    assert trusted == authority.public_bytes(Encoding.DER)
    wrong = security(
        "SSL",
        ssl_keystore_location=str(certificates.server),
        ssl_truststore_type="PKCS12",
        ssl_truststore_location=str(truststore),
        ssl_truststore_password="wrong-secret",
    )
    with pytest.raises(ConfigError, match=r"no certificates to trust can be read from .*trust\.p12") as caught:
        client_context(wrong)
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize(("mechanism", "jaas"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)])
def test_a_broker_logs_in_as_the_user_of_its_jaas_config(mechanism: str, jaas: str) -> None:
    given = security("SASL_PLAINTEXT", mechanism, jaas, sasl_enabled_mechanisms=mechanism)
    assert given == ClientSecurity(protocol="SASL_PLAINTEXT", mechanism=mechanism, username="b", password="b-secret")
    assert "b-secret" not in repr(given)


@pytest.mark.parametrize(
    ("mechanism", "jaas", "reason"),
    [
        ("GSSAPI", SCRAM, "sasl.mechanism.inter.broker.protocol is GSSAPI; brokers log in by PLAIN, SCRAM"),
        (None, SCRAM, "sasl.mechanism.inter.broker.protocol is None"),
        ("SCRAM-SHA-512", SCRAM, "is SCRAM-SHA-512, which sasl.enabled.mechanisms leaves out"),
        ("SCRAM-SHA-256", None, r"set listener\.name\.sasl_plaintext\.scram-sha-256\.sasl\.jaas\.config to"),
        ("SCRAM-SHA-256", PLAIN, r"has no login for other brokers; set .*\.scram\.ScramLoginModule"),
        ("SCRAM-SHA-256", 'a.ScramLoginModule required username="b";', "has no login for other brokers"),
    ],
)
def test_a_missing_login_is_named_without_secrets(mechanism: str | None, jaas: str | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        security("SASL_PLAINTEXT", mechanism, jaas, sasl_enabled_mechanisms="SCRAM-SHA-256")
    assert "b-secret" not in str(caught.value)


def test_suites_of_tls_1_2_are_offered_by_their_openssl_names(certificates: Certificates) -> None:
    given = security(
        "SSL",
        ssl_keystore_location=str(certificates.server),
        ssl_truststore_location=str(certificates.ca),
        ssl_enabled_protocols="TLSv1.2",
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    )
    assert given.cipher_suites == "ECDHE-ECDSA-AES256-GCM-SHA384"
    offered = [each["name"] for each in client_context(given).get_ciphers() if not each["name"].startswith("TLS_")]
    assert offered == ["ECDHE-ECDSA-AES256-GCM-SHA384"]
