"""What to do about a refused connection is told by the kind of refusal, not by its text alone."""

from __future__ import annotations

import ssl

import pytest

from headwater.logtier.client.errors import AuthenticationError, UnsupportedMechanismError
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import ConfigError
from headwater.logtier.peers.remedies import remedy
from headwater.logtier.runtime.tls_stream import TlsError

SECURITY = ClientSecurity(
    "SASL_SSL",
    mechanism="SCRAM-SHA-256",
    username="broker",
    password="secret",
    ca_location="ca.pem",
    certificate_location="broker.pem",
)


def untrusted(verify_code: int) -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = verify_code
    return error


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        (untrusted(10), "renew the certificate of that broker"),
        (untrusted(9), "compare the clocks of the two machines"),
        (untrusted(62), "the certificate of that broker must name the host of its advertised.listeners"),
        (untrusted(64), "the certificate of that broker must name the host of its advertised.listeners"),
        (untrusted(19), "ca.pem must hold the authority of that broker's certificate"),
        (ssl.SSLError(1, "sslv3 alert certificate expired"), "renew the certificate in broker.pem"),
        (
            ssl.SSLError(1, "tlsv13 alert certificate required"),
            "the certificate in broker.pem must be signed by an authority that the other broker trusts",
        ),
        (
            ssl.SSLError(1, "wrong version number"),
            "both brokers need the same security protocol, and a version of TLS and a cipher suite in common",
        ),
    ],
)
def test_of_a_tls_failure(cause: ssl.SSLError, advice: str) -> None:
    broken = TlsError("TLS failed")
    broken.__cause__ = cause
    failure = AuthenticationError("refused")
    failure.__cause__ = broken
    assert remedy(failure, SECURITY) == advice


def test_of_a_login() -> None:
    assert remedy(AuthenticationError("refused"), SECURITY) == (
        "correct the password in this broker's sasl.jaas.config, or set it: headwater user add broker -m SCRAM-SHA-256"
    )
    assert "add SCRAM-SHA-256 to the sasl.enabled.mechanisms" in remedy(UnsupportedMechanismError("no"), SECURITY)


def test_of_a_file_that_cannot_be_read() -> None:
    failure = AuthenticationError("no key")
    failure.__cause__ = ConfigError("no key")
    assert remedy(failure, SECURITY) == "correct the file or the config"
