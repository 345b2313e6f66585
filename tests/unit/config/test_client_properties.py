"""Files that say how clients connect (`--command-config`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.logtier.config.client_properties import ClientConfigError, read_client_config


def read(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return read_client_config(str(path))


def test_a_file_for_the_java_tools_serves_ours(tmp_path: Path) -> None:
    assert read(
        tmp_path,
        "# how we connect\n"
        "bootstrap.servers=broker:9093\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism = SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="alice" password="a=b;c";\n'
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.location=ca.pem\n"
        "ssl.keystore.location=alice.pem\n"
        "ssl.endpoint.identification.algorithm=\n",
    ) == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "a=b;c",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "alice.pem",
        "ssl.key.location": "alice.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_librdkafkas_own_names_stay_as_they_are(tmp_path: Path) -> None:
    assert read(tmp_path, "sasl.username=alice\nssl.ca.location=ca.pem\n") == {
        "sasl.username": "alice",
        "ssl.ca.location": "ca.pem",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice-secret", "line 1 is not of the form name=value"),
        ("acks=all", "'acks' does not say how to connect"),
        ("ssl.truststore.type=JKS\nssl.truststore.location=x", "only PEM can be read"),
        ("ssl.truststore.password=trust-secret\nssl.truststore.location=x", "only PEM can be read, which has none"),
        ("ssl.enabled.protocols=TLSv1.3", "only Java's clients can do that"),
        ("ssl.keystore.type=JKS\nssl.keystore.location=x", "only PEM and PKCS12 can be read"),
        ('sasl.jaas.config=Module required password="alice-secret"', "it must end with a semicolon"),
    ],
)
def test_a_mistake_is_one_line_without_secrets(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ClientConfigError, match=message) as caught:
        read(tmp_path, text)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match="cannot be read: No such file"):
        read_client_config(str(tmp_path / "nothing"))
