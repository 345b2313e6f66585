"""Configs of listeners, TLS, authentication and authorization, a part of the broker's table (see `broker`)."""

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
from headwater.logtier.config.principals import are_principals

SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""Supported SASL mechanisms."""

STORE_TYPES: Final = ("PEM", "PKCS12")
"""Supported formats of keys and certificates."""

TLS_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")

OAUTHBEARER_CALLBACK_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's class names, of releases 4 and 3, for the validation of tokens with a JWKS."""

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's class name of the authorizer that checks access control lists; the broker implements it."""


def _parsed_by(parse: Callable[[str], object], expects: str) -> Validator:
    def accepts(value: Any) -> bool:
        try:
            parse(value)
        except ConfigError:
            return False
        return True

    return Validator(expects, accepts)


def parse_ip_overrides(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides` into connection limits by address; ConfigError.

    0 excludes an address. The loopback address cannot be excluded: administrators and the processes of this node
    connect from it, so the change could not be undone.

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
    """Raise ConfigError if no address can connect."""
    if connections_max == 0 and not any(parse_ip_overrides(overrides).values()):
        raise ConfigError(
            "max.connections.per.ip is 0 and max.connections.per.ip.overrides names no address: nobody could connect"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name or address alone.

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
    "only PEM and PKCS12 can be read; turn a JKS into PKCS12 with `keytool -importkeystore -deststoretype PKCS12`",
)


@dataclass(frozen=True, slots=True, eq=False)
class SecurityConfig:
    """Security configs. Most of those of listeners can be set for a single one (`listener.name.<name>.`)."""

    # Listeners by name
    listener_security_protocol_map: str = config(
        ConfigType.STRING,
        DEFAULT_PROTOCOL_MAP,
        "Security protocol of each listener name: INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL.",
        _parsed_by(parse_protocol_map, f"NAME:PROTOCOL,..., with protocols of {', '.join(SECURITY_PROTOCOLS)}"),
    )
    inter_broker_listener_name: str | None = config(
        ConfigType.STRING,
        None,
        "Listener for other brokers and for the processes of this node; by default the first listener.",
    )
    security_inter_broker_protocol: str = config(
        ConfigType.STRING,
        "PLAINTEXT",
        "Security protocol of the listener for brokers; inter.broker.listener.name takes precedence.",
        one_of(*SECURITY_PROTOCOLS),
    )

    # TLS
    ssl_protocol: str = config(
        ConfigType.STRING, "TLSv1.3", "Newest TLS version that the broker negotiates.", one_of("TLS", *TLS_PROTOCOLS)
    )
    ssl_enabled_protocols: tuple[str, ...] = config(
        ConfigType.LIST,
        TLS_PROTOCOLS,
        "TLS versions that the broker negotiates.",
        non_empty(),
        unsupported=Unsupported(lambda value: set(value) <= set(TLS_PROTOCOLS), "only TLSv1.2 and TLSv1.3 are secure"),
    )
    ssl_cipher_suites: tuple[str, ...] = config(
        ConfigType.LIST, (), "Enabled cipher suites, by standard (IANA) name; empty selects the suites of OpenSSL."
    )
    ssl_client_auth: str = config(
        ConfigType.STRING,
        "none",
        "Client certificates: required, requested (optional) or none.",
        one_of("required", "requested", "none"),
    )
    ssl_principal_mapping_rules: str = config(
        ConfigType.STRING,
        "DEFAULT",
        "Rules that map the distinguished name of a client certificate to a principal: "
        "RULE:pattern/replacement/[LU],...,DEFAULT.",
        _parsed_by(parse_mapping_rules, "rules such as RULE:^CN=(.*?),.*$/$1/L,DEFAULT"),
    )
    ssl_keystore_type: str = config(
        ConfigType.STRING,
        "PEM",  # Kafka's default is JKS, which only Java reads
        "Format of the keystore: PEM or PKCS12.",
        unsupported=_KEYS_AND_CERTIFICATES,
    )
    ssl_keystore_location: str | None = config(
        ConfigType.STRING, None, "File with the private key and the certificate chain."
    )
    ssl_keystore_password: str | None = config(ConfigType.PASSWORD, None, "Password of a PKCS12 keystore.")
    ssl_keystore_key: str | None = config(ConfigType.PASSWORD, None, "Private key in PEM (PKCS#8), given inline.")
    ssl_keystore_certificate_chain: str | None = config(
        ConfigType.PASSWORD, None, "Certificate chain in PEM, given inline, with the broker's certificate first."
    )
    ssl_key_password: str | None = config(ConfigType.PASSWORD, None, "Password of an encrypted private key.")
    ssl_truststore_type: str = config(
        ConfigType.STRING,
        "PEM",  # as ssl.keystore.type
        "Format of the truststore: PEM or PKCS12.",
        unsupported=_KEYS_AND_CERTIFICATES,
    )
    ssl_truststore_location: str | None = config(
        ConfigType.STRING, None, "File with the trusted certificates, which verify client certificates."
    )
    ssl_truststore_password: str | None = config(ConfigType.PASSWORD, None, "Password of a PKCS12 truststore.")
    ssl_truststore_certificates: str | None = config(
        ConfigType.PASSWORD, None, "Trusted certificates in PEM, given inline."
    )
    ssl_endpoint_identification_algorithm: str = config(
        ConfigType.STRING,
        "https",
        "Whether the certificates of other brokers must be valid for their host names: https, or empty for no check.",
        Validator("https or empty", lambda value: value.lower() in ("https", "")),
    )

    # SASL
    sasl_enabled_mechanisms: tuple[str, ...] = config(
        ConfigType.LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),  # Kafka's default is GSSAPI: Kerberos
        "SASL mechanisms enabled for clients.",
        unsupported=Unsupported(
            lambda value: set(value) <= set(SASL_MECHANISMS),
            f"the supported mechanisms are {', '.join(SASL_MECHANISMS)}",
        ),
    )
    sasl_jaas_config: str | None = config(
        ConfigType.PASSWORD,
        None,
        "Users of PLAIN in Kafka's syntax: org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="secret"; valid only with the prefix listener.name.<listener>.plain.',
    )
    sasl_server_callback_handler_class: str | None = config(
        ConfigType.CLASS,
        None,
        "Kafka's class for the validation of OAUTHBEARER tokens; the config has no effect.",
        unsupported=Unsupported(
            lambda value: value is None or value in OAUTHBEARER_CALLBACK_HANDLERS,
            f"no Java classes are loaded; {OAUTHBEARER_CALLBACK_HANDLERS[0]} describes OAUTHBEARER here",
        ),
    )
    sasl_server_max_receive_size: int = config(
        ConfigType.INT, 524_288, "Maximum size of a request before authentication.", at_least(1)
    )
    connections_max_reauth_ms: int = config(
        ConfigType.LONG, 0, "Maximum lifetime of a session before the client must authenticate again; 0 sets no limit."
    )
    connection_failed_authentication_delay_ms: int = config(
        ConfigType.INT, 100, "Delay of the response to a failed authentication.", at_least(0)
    )
    connection_handshake_timeout_ms: int = config(
        ConfigType.INT,
        30_000,  # Kafka has only connections.max.idle.ms: ten minutes for a silent client
        "Time limit for the TLS handshake and the authentication of a connection; not a config of Kafka.",
        at_least(1),
    )

    # OAUTHBEARER
    sasl_oauthbearer_jwks_endpoint_url: str | None = config(
        ConfigType.STRING, None, "URL of the token issuer's public keys (JWKS): http, https or file."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = config(
        ConfigType.LONG, 3_600_000, "Interval between refreshes of the public keys.", at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = config(
        ConfigType.LONG,
        100,
        "Pause after the first failed refresh of the public keys; each further pause is twice as long.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = config(
        ConfigType.LONG, 10_000, "Maximum pause after a failed refresh of the public keys."
    )
    sasl_oauthbearer_clock_skew_seconds: int = config(
        ConfigType.INT,
        30,
        "Maximum difference between the clocks of the token issuer and the broker.",
        between(0, 86_400),
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None = config(
        ConfigType.LIST, None, "Audiences (aud) of which a token must name at least one; unset accepts any audience."
    )
    sasl_oauthbearer_expected_issuer: str | None = config(
        ConfigType.STRING, None, "Issuer (iss) that a token must name; unset accepts any issuer whose key is known."
    )
    sasl_oauthbearer_scope_claim_name: str = config(ConfigType.STRING, "scope", "Token claim with the scopes.")
    sasl_oauthbearer_sub_claim_name: str = config(
        ConfigType.STRING, "sub", "Token claim with the name of the principal."
    )

    # Authorization
    authorizer_class_name: str = config(
        ConfigType.STRING,
        "",
        f"Authorizer: {STANDARD_AUTHORIZER} checks access control lists; empty permits every operation.",
        Validator(f"{STANDARD_AUTHORIZER} or empty", lambda value: value in ("", STANDARD_AUTHORIZER)),
    )
    super_users: str = config(
        ConfigType.STRING,
        "",
        "Principals with permission for every operation, separated by semicolons: User:admin;User:CN=broker.",
        Validator("principals such as User:admin, separated by semicolons", are_principals),
    )
    allow_everyone_if_no_acl_found: bool = config(
        ConfigType.BOOLEAN, False, "Whether every principal has access to resources without an access control list."
    )

    # Limits
    max_connections_per_ip_overrides: str = config(
        ConfigType.STRING,
        "",
        "Maximum number of open connections for specific addresses: 10.0.0.1:200,127.0.0.1:1000.",
        _parsed_by(parse_ip_overrides, "address:count,..., with at least 1 for this machine"),
        dynamic=True,
    )
    max_connection_creation_rate: int = config(
        ConfigType.INT,
        INT_MAX,
        "Maximum number of connections accepted per second; further connections wait in the backlog. Those to "
        "inter.broker.listener.name do not count, if clients have other listeners.",
        at_least(1),
        dynamic=True,
    )
