"""What the raw client makes of the properties of a connection."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import ConfigError

SECRETS = {
    "sasl.password": "secret-1",
    "ssl.key.password": "secret-2",
    "ssl.key.pem": "secret-3",
    "ssl.keystore.password": "secret-4",
}
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice"}


def test_without_properties_a_connection_is_plain_text() -> None:
    security = ClientSecurity.from_properties({"bootstrap.servers": "here:1", "client.id": "me"})
    assert security == ClientSecurity()
    assert not security.uses_tls
    assert not security.uses_sasl


def test_tls_and_sasl_come_together() -> None:
    security = ClientSecurity.from_properties(
        {**SCRAM, **SECRETS, "ssl.ca.location": "ca.pem", "ssl.endpoint.identification.algorithm": "none"}
    )
    assert security.uses_tls
    assert security.uses_sasl
    assert (security.mechanism, security.username, security.password) == ("SCRAM-SHA-512", "alice", "secret-1")
    assert (security.ca_location, security.verifies_host, security.verifies_certificate) == ("ca.pem", False, True)
    assert pickle.loads(pickle.dumps(security)) == security


def test_no_secret_is_in_its_representation() -> None:
    shown = repr(ClientSecurity.from_properties(SCRAM | SECRETS))
    assert "secret" not in shown
    assert "alice" in shown


def test_what_the_protocol_does_not_use_is_not_asked() -> None:
    properties = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka", "ssl.crl.location": "x"}
    assert ClientSecurity.from_properties(properties) == ClientSecurity()
    assert ClientSecurity.from_properties(properties | {"security.protocol": "plaintext"}) == ClientSecurity()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol: 'TLS' is none of"),
        ({"security.protocol": "SASL_SSL"}, "GSSAPI is not supported here; PLAIN"),
        (SCRAM | {"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER is not supported here; PLAIN"),
        (SCRAM, "needs a user and a password"),
        (SCRAM | SECRETS | {"sasl.username": ""}, "needs a user and a password"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "only https"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "maybe"}, "must be true or false"),
        ({"security.protocol": "SSL", "ssl.crl.location": "revoked.pem"}, "ssl.crl.location: is not supported"),
        (SCRAM | SECRETS | {"sasl.passwort": "secret-5"}, "sasl.passwort: is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name_and_without_secrets(
    properties: Mapping[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ClientSecurity.from_properties(properties)
    assert "secret" not in str(caught.value)
