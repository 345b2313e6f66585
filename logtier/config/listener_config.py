"""Configs of a single listener: the prefix `listener.name.<name>.` sets a config for that listener only.

A config of a SASL mechanism has the mechanism after the prefix: `listener.name.outside.plain.sasl.jaas.config`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from headwater.logtier.config.definition import (
    INT_MAX,
    ConfigDef,
    ConfigError,
    ConfigType,
    Value,
    at_least,
    config_defs,
    unknown_name,
)
from headwater.logtier.config.jaas import plain_users
from headwater.logtier.config.listeners import Endpoint
from headwater.logtier.config.security import SASL_MECHANISMS, SecurityConfig

LISTENER_PREFIX: Final = "listener.name."

_LIMITS: Final = ("max.connections", "max.connection.creation.rate")

_ALL: Final = config_defs(SecurityConfig) | {
    "max.connections": ConfigDef(
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "Maximum number of open connections of the listener.",
        at_least(1),
    )
}

_BY_LISTENER: Final = {
    name: definition
    for name, definition in _ALL.items()
    if name.startswith(("ssl.", "sasl.")) or name in (*_LIMITS, "connections.max.reauth.ms")
}

_BY_MECHANISM: Final = tuple(
    name for name in _BY_LISTENER if name.startswith("sasl.") or name == "connections.max.reauth.ms"
)


class _Broker(Protocol):
    """The part of the broker's configs that this module reads."""

    @property
    def listener_overrides(self) -> Mapping[str, Value]: ...

    @property
    def bind_endpoints(self) -> tuple[Endpoint, ...]: ...

    @property
    def ssl_cipher_suites(self) -> tuple[str, ...]: ...

    def value(self, name: str) -> Any: ...


def listener_config_def(name: str) -> ConfigDef:
    """Return the definition of a config with the prefix `listener.name.`; ConfigError for an unknown name.

    >>> listener_config_def("listener.name.outside.plain.sasl.jaas.config").sensitive
    True
    """
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    base = rest
    mechanism, dot, behind = rest.partition(".")
    if dot and mechanism.upper() in SASL_MECHANISMS and behind in _BY_MECHANISM:
        base = behind
    definition = _BY_LISTENER.get(base)
    if not listener or definition is None:
        raise unknown_name(
            f"config of a listener {(LISTENER_PREFIX + listener + '.')[:100]!r}...", base or name, _BY_LISTENER
        )
    # The broker reads the configs of listeners only at the start.
    return dataclasses.replace(definition, name=name, dynamic=False)


class ListenerConfig:
    """Effective configs of one listener. Order of precedence: the mechanism's, the listener's, the broker's."""

    def __init__(self, broker: _Broker, listener: Endpoint) -> None:
        self._broker = broker
        self._prefix = f"{LISTENER_PREFIX}{listener.name.lower()}."
        self.listener = listener

    def value(self, name: str, mechanism: str | None = None) -> Any:
        """Return the effective value of a config, by Kafka's name."""
        overrides = self._broker.listener_overrides
        if mechanism is not None:
            full = f"{self._prefix}{mechanism.lower()}.{name}"
            if full in overrides:
                return overrides[full]
        full = self._prefix + name
        if full in overrides:
            return overrides[full]
        return None if name == "max.connections" else self._broker.value(name)

    def own_value(self, name: str) -> Any:
        """Return the value set for this listener only, or None."""
        return self._broker.listener_overrides.get(self._prefix + name)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms enabled on the listener."""
        return tuple(self.value("sasl.enabled.mechanisms"))

    @property
    def plain_users(self) -> dict[str, str]:
        """Passwords of PLAIN, by user."""
        jaas = self._broker.listener_overrides.get(f"{self._prefix}plain.sasl.jaas.config")
        return plain_users(f"{self._prefix}plain.sasl.jaas.config", str(jaas)) if jaas is not None else {}


def check_listener_configs(broker: _Broker) -> None:
    """Check that the listeners exist and have the configs that they require; ConfigError."""
    bound = broker.bind_endpoints
    known = {listener.name.lower() for listener in bound}
    for name in broker.listener_overrides:
        listener = name.removeprefix(LISTENER_PREFIX).partition(".")[0]
        if listener not in known:
            raise ConfigError(f"{name}: there is no listener {listener!r}; there are {_shown(known)}")
    if broker.value("sasl.jaas.config") is not None:
        raise ConfigError(
            "sasl.jaas.config belongs to a listener and a mechanism: write listener.name.<listener>.plain."
            "sasl.jaas.config"
        )
    inside = broker.value("inter.broker.listener.name")
    if inside is not None and inside.lower() not in known:
        raise ConfigError(f"inter.broker.listener.name: there is no listener {inside!r}; there are {_shown(known)}")
    for endpoint in bound:
        listener_config = ListenerConfig(broker, endpoint)
        if endpoint.uses_tls:
            _check_tls(listener_config)
        if endpoint.uses_sasl:
            _check_sasl(listener_config)


def _check_tls(listener: ListenerConfig) -> None:
    where = f"listener {listener.listener.name}"
    value = listener.value
    location, key, chain = (value(f"ssl.keystore.{part}") for part in ("location", "key", "certificate.chain"))
    kind = value("ssl.keystore.type")
    if location is None and (key is None or chain is None):
        raise ConfigError(
            f"{where}: TLS needs a private key and its certificates: set ssl.keystore.location to a PEM file with "
            "both, or ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    if location is not None and (key is not None or chain is not None):
        raise ConfigError(f"{where}: set ssl.keystore.location or ssl.keystore.key, not both")
    if key is not None and kind != "PEM":
        raise ConfigError(f"{where}: ssl.keystore.key is PEM, but ssl.keystore.type is {kind}")
    if kind == "PEM" and value("ssl.keystore.password") is not None:
        raise ConfigError(f"{where}: a PEM file has no ssl.keystore.password; a key's own is ssl.key.password")
    trusted, certificates = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    if trusted is not None and certificates is not None:
        raise ConfigError(f"{where}: set ssl.truststore.location or ssl.truststore.certificates, not both")
    if value("ssl.client.auth") != "none" and not listener.listener.uses_sasl and trusted is None and not certificates:
        raise ConfigError(
            f"{where}: ssl.client.auth={value('ssl.client.auth')} needs ssl.truststore.location: the certificates that "
            "those of clients are checked against"
        )
    enabled = set(value("ssl.enabled.protocols"))
    if value("ssl.protocol") == "TLSv1.2" and enabled == {"TLSv1.3"}:
        raise ConfigError(f"{where}: ssl.protocol is TLSv1.2, and ssl.enabled.protocols leaves it out")


def _check_sasl(listener: ListenerConfig) -> None:
    where = f"listener {listener.listener.name}"
    mechanisms = listener.mechanisms
    if not mechanisms:
        raise ConfigError(f"{where}: sasl.enabled.mechanisms is empty; name {', '.join(SASL_MECHANISMS)}")
    for mechanism in mechanisms:
        if mechanism not in SASL_MECHANISMS:
            raise ConfigError(
                f"{where}: the mechanism {mechanism} is not supported; set sasl.enabled.mechanisms to one or more of "
                f"{', '.join(SASL_MECHANISMS)}"
            )
    if "PLAIN" in mechanisms and not listener.plain_users:
        name = f"{LISTENER_PREFIX}{listener.listener.name.lower()}.plain.sasl.jaas.config"
        raise ConfigError(
            f"{where}: PLAIN has no users; set {name} to org.apache.kafka.common.security.plain.PlainLoginModule "
            'required user_alice="...";'
        )
    if "OAUTHBEARER" in mechanisms:
        url = listener.value("sasl.oauthbearer.jwks.endpoint.url", "OAUTHBEARER")
        if not url:
            raise ConfigError(
                f"{where}: OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, where the keys of tokens are; "
                "unsigned tokens are never taken"
            )
        if not str(url).startswith(("http://", "https://", "file:/")):
            raise ConfigError(f"{where}: sasl.oauthbearer.jwks.endpoint.url must be an http, https or file URL")


def _shown(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
