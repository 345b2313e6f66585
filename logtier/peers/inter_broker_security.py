"""How this broker connects to the listeners of other brokers: the configs of its own listener, seen as a client.

As in Kafka, the brokers of a cluster have the same listeners: the key of the listener for brokers is also the
certificate that a broker shows to others, and its truststore verifies them.
"""

from __future__ import annotations

from typing import Any, Final

from headwater.logtier.client.security import MECHANISMS, ClientSecurity
from headwater.logtier.config import ConfigError
from headwater.logtier.config.jaas import login_options
from headwater.logtier.config.listener_config import LISTENER_PREFIX, ListenerConfig
from headwater.logtier.security.tls import TLS_1_3_SUITES, openssl_name

__all__ = ["inter_broker_security"]

_LOGIN_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}


def inter_broker_security(
    config: ListenerConfig, mechanism: str | None = None, *, verifies_host: bool = True
) -> ClientSecurity:
    """Return the settings of connections to the same listener of other brokers; ConfigError for a missing credential.

    Args:
        config: Configs of the listener for brokers (`inter.broker.listener.name`).
        mechanism: SASL mechanism (`sasl.mechanism.inter.broker.protocol`).
        verifies_host: Whether the certificate must be valid for the host name
            (`ssl.endpoint.identification.algorithm`).
    """
    listener = config.listener
    fields: dict[str, Any] = {"protocol": listener.protocol, "verifies_host": verifies_host}
    if listener.uses_tls:
        fields |= _key(config) | _trusted(config)
        suites = [openssl_name(suite) for suite in config.value("ssl.cipher.suites") if suite not in TLS_1_3_SUITES]
        fields["cipher_suites"] = ":".join(suites) or None
    if listener.uses_sasl:
        fields |= _login(config, mechanism)
    return ClientSecurity(**fields)


def _key(config: ListenerConfig) -> dict[str, Any]:
    location, password = config.value("ssl.keystore.location"), config.value("ssl.key.password")
    if location is None:
        return {
            "key_pem": config.value("ssl.keystore.key"),
            "certificate_pem": config.value("ssl.keystore.certificate.chain"),
            "key_password": password,
        }
    if config.value("ssl.keystore.type") == "PKCS12":
        return {"keystore_location": location, "keystore_password": config.value("ssl.keystore.password")}
    return {"certificate_location": location, "key_password": password}


def _trusted(config: ListenerConfig) -> dict[str, Any]:
    location = config.value("ssl.truststore.location")
    if location is None:
        return {"ca_pem": config.value("ssl.truststore.certificates")}
    if config.value("ssl.truststore.type") == "PKCS12":
        return {"truststore_location": location, "truststore_password": config.value("ssl.truststore.password")}
    return {"ca_location": location}


def _login(config: ListenerConfig, mechanism: str | None) -> dict[str, Any]:
    where = f"listener {config.listener.name}"
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"{where}: sasl.mechanism.inter.broker.protocol is {mechanism}; brokers log in by {', '.join(MECHANISMS)}"
        )
    if mechanism not in config.mechanisms:
        raise ConfigError(
            f"{where}: sasl.mechanism.inter.broker.protocol is {mechanism}, which sasl.enabled.mechanisms leaves out"
        )
    name = f"{LISTENER_PREFIX}{config.listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    module = _LOGIN_MODULES[mechanism]
    wanted = f'{name} to org.apache.kafka.common.security.{mechanism[:5].lower()}.{module} required username="..." '
    text = config.value("sasl.jaas.config", mechanism)
    found, options = login_options(name, text) if text is not None else ("", {})
    username, password = options.get("username"), options.get("password")
    if not found.endswith(module) or not username or not password:
        raise ConfigError(f'{where}: the broker has no login for other brokers; set {wanted}password="...";')
    return {"mechanism": mechanism, "username": username, "password": password}
