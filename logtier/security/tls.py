"""TLS contexts from configs: keys and certificates in PEM or PKCS#12, versions, suites, client authentication.

All functions may read files: at the start, and on a thread for a reload.
"""

import os
import ssl
from typing import Final

from headwater.logtier.config import ConfigError
from headwater.logtier.config.listener_config import ListenerConfig
from headwater.logtier.config.security import TLS_PROTOCOLS
from headwater.logtier.security.key_files import as_file, cause, pkcs12_certificates, pkcs12_key

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_NEVER: Final = ("!aNULL", "!eNULL", "!LOW", "!EXPORT", "!RC4", "!3DES", "!MD5", "!PSK")
"""Insecure suites, in OpenSSL's syntax."""

TLS_1_3_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""Python cannot select among the suites of TLS 1.3."""


class ListenerTls:
    """The TLS of one listener. `context` returns the context of new connections, replaced when its files change."""

    def __init__(self, config: ListenerConfig) -> None:
        self._config = config
        self._files = [
            path for path in (config.value("ssl.keystore.location"), config.value("ssl.truststore.location")) if path
        ]
        self._seen = self._signature()
        self._context = make_context(config)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection."""
        return self._context

    def reload_if_changed(self) -> bool:
        """Read keys and certificates again if a file has changed; after a ConfigError the previous ones stay."""
        signature = self._signature()
        if signature == self._seen:
            return False
        self._seen = signature
        self._context = make_context(self._config)
        return True

    def _signature(self) -> list[tuple[int, int, int]]:
        """Return values that differ after any change of a file."""
        found = []
        for path in self._files:
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found


def make_context(config: ListenerConfig) -> ssl.SSLContext:
    """Create the TLS context of a listener; ConfigError with one line, without secrets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions_and_ciphers(context, config)
    _load_key(context, config)
    context.verify_mode = _CLIENT_AUTH[config.value("ssl.client.auth")]
    if config.listener.uses_sasl:
        # Kafka's rule: with SASL no client certificate is requested, except by a listener's config (KIP-684).
        own = config.own_value("ssl.client.auth")
        context.verify_mode = ssl.CERT_NONE if own is None else _CLIENT_AUTH[own]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trusted(context, config)
    return context


def _set_versions_and_ciphers(context: ssl.SSLContext, config: ListenerConfig) -> None:
    enabled = [version for version in TLS_PROTOCOLS if version in config.value("ssl.enabled.protocols")]
    if config.value("ssl.protocol") == "TLSv1.2" and "TLSv1.3" in enabled:
        enabled.remove("TLSv1.3")
    suites = config.value("ssl.cipher.suites")
    if suites:
        newer = {suite for suite in suites if suite in TLS_1_3_SUITES}
        older = [suite for suite in suites if suite not in TLS_1_3_SUITES]
        if not newer and "TLSv1.3" in enabled:
            enabled.remove("TLSv1.3")
        if "TLSv1.3" in enabled and newer != TLS_1_3_SUITES:
            raise _problem(
                config, f"ssl.cipher.suites: list all suites of TLS 1.3 or none: {', '.join(sorted(TLS_1_3_SUITES))}"
            )
        if older:
            _set_ciphers(context, config, older)
        elif "TLSv1.2" in enabled:
            enabled.remove("TLSv1.2")
    if not enabled:
        raise _problem(config, "ssl.cipher.suites and ssl.enabled.protocols permit no version of TLS")
    context.minimum_version = _VERSIONS[enabled[0]]
    context.maximum_version = _VERSIONS[enabled[-1]]


def _set_ciphers(context: ssl.SSLContext, config: ListenerConfig, suites: list[str]) -> None:
    names = [openssl_name(suite) for suite in suites]
    try:
        context.set_ciphers(":".join([*names, *_NEVER]))
    except ssl.SSLError:
        raise _problem(config, f"ssl.cipher.suites: none of {', '.join(suites)} is known") from None
    known = {cipher["name"] for cipher in context.get_ciphers()}
    for suite, name in zip(suites, names, strict=True):
        if name not in known:
            raise _problem(config, f"ssl.cipher.suites: {suite} is not known, or not secure enough")


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite with a standard (IANA) name; other names unchanged.

    >>> openssl_name("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")
    'ECDHE-RSA-AES256-GCM-SHA384'
    >>> openssl_name("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256")
    'ECDHE-ECDSA-CHACHA20-POLY1305'
    """
    keys, separator, rest = suite.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return suite
    rest = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    if rest.startswith("CHACHA20"):
        rest = "CHACHA20_POLY1305"
    return (rest if keys == "RSA" else f"{keys}_{rest}").replace("_", "-")


def _load_key(context: ssl.SSLContext, config: ListenerConfig) -> None:
    location, password = config.value("ssl.keystore.location"), config.value("ssl.key.password")

    def key_password() -> str:
        # Without a password OpenSSL would prompt on the terminal.
        return password or ""

    try:
        if location is None:
            key = str(config.value("ssl.keystore.key")).encode()
            chain = str(config.value("ssl.keystore.certificate.chain")).encode()
            with as_file(key + b"\n" + chain) as path:
                context.load_cert_chain(path, password=key_password)
        elif config.value("ssl.keystore.type") == "PKCS12":
            stored = pkcs12_key(location, config.value("ssl.keystore.password"))
            with as_file(stored.key + stored.chain) as path:
                context.load_cert_chain(path)
        else:
            context.load_cert_chain(location, password=key_password)
    except (OSError, ValueError) as error:
        where = location or "ssl.keystore.key"
        raise _problem(
            config, f"no private key with its certificates can be read from {where}: {cause(error)}"
        ) from None


def _load_trusted(context: ssl.SSLContext, config: ListenerConfig) -> None:
    location = config.value("ssl.truststore.location")
    try:
        if location is None:
            certificates = config.value("ssl.truststore.certificates")
            if certificates is None:
                raise ValueError("neither ssl.truststore.location nor ssl.truststore.certificates is set")
            context.load_verify_locations(cadata=str(certificates))
        elif config.value("ssl.truststore.type") == "PKCS12":
            context.load_verify_locations(
                cadata=pkcs12_certificates(location, config.value("ssl.truststore.password")).decode()
            )
        else:
            context.load_verify_locations(location)
    except (OSError, ValueError) as error:
        where = location or "ssl.truststore.certificates"
        raise _problem(config, f"no certificates to trust can be read from {where}: {cause(error)}") from None


def _problem(config: ListenerConfig, what: str) -> ConfigError:
    return ConfigError(f"listener {config.listener.name}: {what}")
