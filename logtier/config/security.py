"""The configs of listeners, TLS and authentication: a part of the broker's table (see `broker`)."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headwater.logtier.config.definition import (
    INT_MAX,
    ConfigError,
    ConfigType,
    Unsupported,
    Validator,
    at_least,
    between,
    config,
    non_empty,
    one_of,
)
from headwater.logtier.config.listeners import DEFAULT_PROTOCOL_MAP, SECURITY_PROTOCOLS, parse_protocol_map
from headwater.logtier.config.principal_mapping import parse_mapping_rules

SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""What clients may authenticate with."""

STORE_TYPES: Final = ("PEM", "PKCS12")
"""Formats of keys and certificates that can be read."""

TLS_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")

OAUTHBEARER_CALLBACK_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's names, of release 4 and of release 3, for what checks tokens against a JWKS here."""


def _parsed_by(parse: Callable[[str], object], expects: str) -> Validator:
    def accepts(value: Any) -> bool:
        try:
            parse(value)
        except ConfigError:
            return False
        return True

    return Validator(expects, accepts)


def parse_ip_overrides(text: str) -> dict[str, int]:
    """Connections by address, of the text of `max.connections.per.ip.overrides`; ConfigError.

    0 shuts an address out. Not this machine: administrators and this node's own processes connect from it, so who shut
    it out could never take that back.

    >>> parse_ip_overrides("10.0.0.1:0, 127.0.0.1:200")
    {'10.0.0.1': 0, '127.0.0.1': 200}
    """
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = entry.rpartition(":")
        host = host.strip().removeprefix("[").removesuffix("]")
        if not host or not (count.isascii() and count.isdigit()) or int(count[:11]) > INT_MAX:
            raise ConfigError(f"max.connections.per.ip.overrides: {entry[:200]!r} is not of the form address:count")
        try:
            host.encode("idna")
        except UnicodeError:
            raise ConfigError(f"max.connections.per.ip.overrides: {host[:200]!r} is no name of a host") from None
        if int(count) == 0 and is_loopback(host):
            raise ConfigError(
                f"max.connections.per.ip.overrides: {entry[:200]!r} would shut this machine out, its own tools and "
                "processes too; allow at least 1"
            )
        overrides[host] = int(count)
    return overrides


def check_connections_per_ip(connections_max: int, overrides: str) -> None:
    """ConfigError if every address is shut out."""
    if connections_max == 0 and not any(parse_ip_overrides(overrides).values()):
        raise ConfigError(
            "max.connections.per.ip is 0 and max.connections.per.ip.overrides names no address: nobody could connect"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name or address alone tells.

    >>> [is_loopback(host) for host in ("127.0.0.2", "::1", "::ffff:127.0.0.1", "Localhost", "10.0.0.1", "db")]
    [True, True, True, True, False, False]
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


_KEYS_AND_CERTIFICATES: Final = Unsupported(
    lambda value: value in STORE_TYPES,
    "PEM and PKCS12 can be read; turn a JKS into PKCS12 by `keytool -importkeystore -deststoretype PKCS12`",
)


@dataclass(frozen=True, slots=True, eq=False)
class SecurityConfig:
    """What listeners ask of those who connect. Most of it can be set for one listener (`listener.name.<name>.`)."""

    # Listeners by name
    listener_security_protocol_map: str = config(
        ConfigType.STRING,
        DEFAULT_PROTOCOL_MAP,
        "The security protocol of each listener's name: INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL.",
        _parsed_by(parse_protocol_map, f"NAME:PROTOCOL,..., with protocols of {', '.join(SECURITY_PROTOCOLS)}"),
    )
    inter_broker_listener_name: str | None = config(
        ConfigType.STRING,
        None,
        "The listener for brokers among themselves and for the processes of this node; by default the first one.",
    )
    security_inter_broker_protocol: str = config(
        ConfigType.STRING,
        "PLAINTEXT",
        "The protocol of the listener for brokers, where inter.broker.listener.name does not name it.",
        one_of(*SECURITY_PROTOCOLS),
    )

    # TLS
    ssl_protocol: str = config(
        ConfigType.STRING, "TLSv1.3", "The newest version of TLS that is spoken.", one_of("TLS", *TLS_PROTOCOLS)
    )
    ssl_enabled_protocols: tuple[str, ...] = config(
        ConfigType.LIST,
        TLS_PROTOCOLS,
        "Versions of TLS that are spoken.",
        non_empty(),
        unsupported=Unsupported(lambda value: set(value) <= set(TLS_PROTOCOLS), "only TLSv1.2 and TLSv1.3 are secure"),
    )
    ssl_cipher_suites: tuple[str, ...] = config(
        ConfigType.LIST, (), "Cipher suites that are taken, by their standard (IANA) names; empty: OpenSSL's choice."
    )
    ssl_client_auth: str = config(
        ConfigType.STRING,
        "none",
        "Whether clients must show a certificate (required), may (requested), or are not asked for one (none).",
        one_of("required", "requested", "none"),
    )
    ssl_principal_mapping_rules: str = config(
        ConfigType.STRING,
        "DEFAULT",
        "How the name in a client's certificate becomes a principal: RULE:pattern/replacement/[LU],...,DEFAULT.",
        _parsed_by(parse_mapping_rules, "rules such as RULE:^CN=(.*?),.*$/$1/L,DEFAULT"),
    )
    ssl_keystore_type: str = config(
        ConfigType.STRING,
        "PEM",  # Kafka's default is JKS, which only Java reads
        "Format of the private key and its certificates: PEM or PKCS12.",
        unsupported=_KEYS_AND_CERTIFICATES,
    )
    ssl_keystore_location: str | None = config(
        ConfigType.STRING, None, "File with the private key and the chain of certificates."
    )
    ssl_keystore_password: str | None = config(ConfigType.PASSWORD, None, "Password of a PKCS12 file.")
    ssl_keystore_key: str | None = config(ConfigType.PASSWORD, None, "The private key itself, in PEM (PKCS#8).")
    ssl_keystore_certificate_chain: str | None = config(
        ConfigType.PASSWORD, None, "The chain of certificates itself, in PEM, the broker's own first."
    )
    ssl_key_password: str | None = config(ConfigType.PASSWORD, None, "Password of an encrypted private key.")
    ssl_truststore_type: str = config(
        ConfigType.STRING,
        "PEM",  # as ssl.keystore.type
        "Format of the certificates that clients' certificates are checked against: PEM or PKCS12.",
        unsupported=_KEYS_AND_CERTIFICATES,
    )
    ssl_truststore_location: str | None = config(
        ConfigType.STRING, None, "File with the certificates that clients' certificates are checked against."
    )
    ssl_truststore_password: str | None = config(ConfigType.PASSWORD, None, "Password of a PKCS12 truststore.")
    ssl_truststore_certificates: str | None = config(
        ConfigType.PASSWORD, None, "The certificates that clients' certificates are checked against, in PEM."
    )

    # SASL
    sasl_enabled_mechanisms: tuple[str, ...] = config(
        ConfigType.LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),  # Kafka's default is GSSAPI: Kerberos
        f"Mechanisms that clients may authenticate with: {', '.join(SASL_MECHANISMS)}.",
        unsupported=Unsupported(
            lambda value: set(value) <= set(SASL_MECHANISMS), f"there are {', '.join(SASL_MECHANISMS)}"
        ),
    )
    sasl_jaas_config: str | None = config(
        ConfigType.PASSWORD,
        None,
        "Users of PLAIN, as Kafka writes them: org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="secret"; stands behind listener.name.<listener>.plain.',
    )
    sasl_server_callback_handler_class: str | None = config(
        ConfigType.CLASS,
        None,
        "Kafka's class that checks OAUTHBEARER tokens; what it does is done without it, too.",
        unsupported=Unsupported(
            lambda value: value is None or value in OAUTHBEARER_CALLBACK_HANDLERS,
            f"no Java classes are loaded; {OAUTHBEARER_CALLBACK_HANDLERS[0]} is what OAUTHBEARER does here",
        ),
    )
    sasl_server_max_receive_size: int = config(
        ConfigType.INT, 524_288, "Largest request of a client that has not authenticated yet.", at_least(1)
    )
    connections_max_reauth_ms: int = config(
        ConfigType.LONG, 0, "How long a session lasts before its client must authenticate again; 0 is for ever."
    )
    connection_failed_authentication_delay_ms: int = config(
        ConfigType.INT, 100, "How long a client waits for the news that its authentication failed.", at_least(0)
    )
    connection_handshake_timeout_ms: int = config(
        ConfigType.INT,
        30_000,  # Kafka has connections.max.idle.ms alone, ten minutes for whoever says nothing
        "How long a client may take for the TLS handshake and to authenticate; not a config of Kafka.",
        at_least(1),
    )

    # OAUTHBEARER
    sasl_oauthbearer_jwks_endpoint_url: str | None = config(
        ConfigType.STRING, None, "Where the public keys of tokens are found (JWKS): an http, https or file URL."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = config(
        ConfigType.LONG, 3_600_000, "How often the keys are fetched again.", at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = config(
        ConfigType.LONG, 100, "Pause after the first failure to fetch the keys; each further one is twice as long."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = config(
        ConfigType.LONG, 10_000, "Longest pause after a failure to fetch the keys."
    )
    sasl_oauthbearer_clock_skew_seconds: int = config(
        ConfigType.INT, 30, "How far the clock of who issues tokens may differ from ours.", between(0, 86_400)
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None = config(
        ConfigType.LIST, None, "A token must be for one of these audiences (aud); unset: for anybody."
    )
    sasl_oauthbearer_expected_issuer: str | None = config(
        ConfigType.STRING, None, "A token must be of this issuer (iss); unset: of any that has a key."
    )
    sasl_oauthbearer_scope_claim_name: str = config(
        ConfigType.STRING, "scope", "The claim that holds a token's scopes."
    )
    sasl_oauthbearer_sub_claim_name: str = config(
        ConfigType.STRING, "sub", "The claim that holds the name of the principal."
    )

    # Limits
    max_connections_per_ip_overrides: str = config(
        ConfigType.STRING,
        "",
        "Most connections at a time from certain addresses: 10.0.0.1:200,127.0.0.1:1000.",
        _parsed_by(parse_ip_overrides, "address:count,..., for this machine 1 at least"),
        dynamic=True,
    )
    max_connection_creation_rate: int = config(
        ConfigType.INT,
        INT_MAX,
        "Connections that are accepted in a second; more wait in the backlog.",
        at_least(1),
        dynamic=True,
    )
