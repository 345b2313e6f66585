"""Security settings of the raw client's connections, from the properties of
`headwater.logtier.config.client_properties`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.config import ConfigError

__all__ = ["MECHANISMS", "PLAINTEXT", "ClientSecurity"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# Properties that a file shared by several programs may hold, and that the raw client receives otherwise.
_OTHERS: Final = frozenset({"bootstrap.servers", "client.id", "client.rack", "broker.address.family"})
_SASL: Final = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_TEXTS: Final = {
    "ssl.ca.location": "ca_location",
    "ssl.ca.pem": "ca_pem",
    "ssl.certificate.location": "certificate_location",
    "ssl.certificate.pem": "certificate_pem",
    "ssl.key.location": "key_location",
    "ssl.key.pem": "key_pem",
    "ssl.key.password": "key_password",
    "ssl.keystore.location": "keystore_location",
    "ssl.keystore.password": "keystore_password",
    "ssl.cipher.suites": "cipher_suites",
}
_TRUE_OR_FALSE: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Protocol, TLS and SASL settings of a client's connections. Picklable, for Spark tasks.

    Invariant: with SASL, the mechanism is one of MECHANISMS and a user is set. Neither the repr nor an error holds a
    password or a key.

    Attributes:
        ca_location: PEM file or folder of trusted authorities; without it, `ca_pem` and `truststore_location`, the
            system's.
        keystore_location: PKCS#12 file with the client's key and certificates, instead of PEM files.
        truststore_location: PKCS#12 file with the trusted authorities; of brokers only.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    cipher_suites: str | None = None
    verifies_certificate: bool = True
    verifies_host: bool = True

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.protocol.startswith("SASL_")

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> ClientSecurity:
        """Builds the settings from librdkafka's properties (see `client_properties`); raises ConfigError.

        As in Kafka's clients, properties of SASL or TLS have no effect under a protocol without them.

        >>> ClientSecurity.from_properties({"security.protocol": "ssl", "ssl.ca.location": "ca.pem"}).ca_location
        'ca.pem'
        """
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(f"security.protocol: {protocol[:40]!r} is none of {', '.join(PROTOCOLS)}")
        fields: dict[str, str | bool] = {"protocol": protocol}
        if protocol.startswith("SASL_"):
            fields |= _sasl(properties)
        if protocol.endswith("SSL"):
            fields |= _tls(properties)
        for name in properties:
            _check_known(name, protocol)
        return ClientSecurity(**fields)  # type: ignore[arg-type]


PLAINTEXT: Final = ClientSecurity()


def _sasl(properties: Mapping[str, str]) -> dict[str, str | bool]:
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism: {mechanism[:40]} is not supported here; PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 are"
        )
    username, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    if not username or not password:
        raise ConfigError(
            f"sasl.mechanism: {mechanism} needs a user and a password: set sasl.jaas.config, or sasl.username and "
            "sasl.password"
        )
    return {"mechanism": mechanism, "username": username, "password": password}


def _tls(properties: Mapping[str, str]) -> dict[str, str | bool]:
    fields: dict[str, str | bool] = {
        _TEXTS[name]: value for name, value in properties.items() if name in _TEXTS and value
    }
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigError("ssl.endpoint.identification.algorithm: only https, and nothing, are known")
    fields["verifies_host"] = algorithm == "https"
    verification = properties.get("enable.ssl.certificate.verification", "true").lower()
    if verification not in _TRUE_OR_FALSE:
        raise ConfigError("enable.ssl.certificate.verification: must be true or false")
    fields["verifies_certificate"] = _TRUE_OR_FALSE[verification]
    return fields


def _check_known(name: str, protocol: str) -> None:
    """Rejects unsupported properties: an ignored one could make a connection less secure than configured."""
    if name in _OTHERS or name in _SASL or name in _TEXTS:
        return
    if name in ("security.protocol", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"):
        return
    if (name.startswith("sasl.") and not protocol.startswith("SASL_")) or (
        name.startswith("ssl.") and not protocol.endswith("SSL")
    ):
        return
    if name.startswith(("sasl.oauthbearer.", "sasl.kerberos.", "enable.sasl.oauthbearer.", "https.")):
        return  # properties of mechanisms that are not in use
    raise ConfigError(f"{name[:100]}: is not supported here")
