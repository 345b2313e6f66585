"""The security of one listener's connections, from its configs: TLS, SASL mechanisms, principals of certificates."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config import ConfigError
from headwater.logtier.config.listener_config import ListenerConfig
from headwater.logtier.config.principal_mapping import map_name, parse_mapping_rules
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.security.distinguished_name import subject_of
from headwater.logtier.security.jwks import JwksKeys, RefreshPolicy
from headwater.logtier.security.oauthbearer import OAuthBearerServer, TokenRules, TokenValidator
from headwater.logtier.security.sasl import PlainServer, SaslServer
from headwater.logtier.security.sasl_session import ANONYMOUS, SaslListener
from headwater.logtier.security.scram import ScramServer, ScramUsers
from headwater.logtier.security.tls import ListenerTls

logger = logging.getLogger(__name__)

CERTIFICATES_CHECK_S: Final = 10
"""Interval of the check for changed key and certificate files."""


class UnnamedCertificateError(Exception):
    """No rule of `ssl.principal.mapping.rules` maps the subject of a certificate to a principal."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security of a listener, as its connections use it.

    Attributes:
        name: The listener's name; clients get the addresses of the listener through which they connected.
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        tls: Returns the context of a new connection; None for plain text.
        sasl: SASL settings; None without SASL.
        name_of: Returns the principal for a client's certificate, or None without one; UnnamedCertificateError.
        handshake_ms: Time limit of TLS and SASL together.
    """

    name: str = "PLAINTEXT"
    protocol: str = "PLAINTEXT"
    tls: Callable[[], ssl.SSLContext] | None = None
    sasl: SaslListener | None = None
    name_of: Callable[[bytes | None], str] = lambda _: ANONYMOUS
    handshake_ms: int = 30_000


PLAINTEXT_LISTENER: Final = ListenerSecurity()
"""A listener without TLS and SASL."""


class ListenerGuard:
    """The security of one listener with its background work: refreshed keys and certificates."""

    def __init__(self, config: ListenerConfig, clock: Clock, users: ScramUsers) -> None:
        """Create it from validated configs.

        Raises:
            ConfigError: Keys or certificates cannot be read.
        """
        endpoint = config.listener
        self._name = endpoint.name
        self._tls = ListenerTls(config) if endpoint.uses_tls else None
        self._keys: JwksKeys | None = None
        self._watching: asyncio.Task[None] | None = None
        rules = parse_mapping_rules(config.value("ssl.principal.mapping.rules"))

        def name_of(certificate: bytes | None) -> str:
            if certificate is None:
                return ANONYMOUS
            try:
                subject = subject_of(certificate)
            except ValueError as error:
                raise UnnamedCertificateError(f"the client's certificate cannot be read: {error}") from None
            name = map_name(subject, rules)
            if name is None:
                raise UnnamedCertificateError(f"no rule of ssl.principal.mapping.rules matches {subject[:200]!r}")
            return f"User:{name}"

        self.security = ListenerSecurity(
            endpoint.name,
            endpoint.protocol,
            None if self._tls is None else self._tls.context,
            self._sasl(config, clock, users) if endpoint.uses_sasl else None,
            name_of,
            config.value("connection.handshake.timeout.ms"),
        )

    def start(self) -> None:
        """Begin to fetch the keys of tokens and to watch the certificate files."""
        if self._keys is not None:
            self._keys.start()
        if self._tls is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._tls))

    def stop(self) -> None:
        """End the background work."""
        if self._keys is not None:
            self._keys.stop()
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, tls: ListenerTls) -> None:
        while True:
            await asyncio.sleep(CERTIFICATES_CHECK_S)
            try:
                if await asyncio.to_thread(tls.reload_if_changed):
                    logger.info("listener %s: keys and certificates were read again", self._name)
            except ConfigError as error:
                logger.error("%s; the previous keys and certificates stay in use", error)

    def _sasl(self, config: ListenerConfig, clock: Clock, users: ScramUsers) -> SaslListener:
        makers = {mechanism: self._mechanism(mechanism, config, clock, users) for mechanism in config.mechanisms}
        return SaslListener(
            makers,
            {mechanism: config.value("connections.max.reauth.ms", mechanism) for mechanism in makers},
            config.value("connection.failed.authentication.delay.ms"),
            config.value("sasl.server.max.receive.size"),
        )

    def _mechanism(
        self, mechanism: str, config: ListenerConfig, clock: Clock, users: ScramUsers
    ) -> Callable[[], SaslServer]:
        if mechanism == "PLAIN":
            plain_users = config.plain_users
            return lambda: PlainServer(plain_users)
        if mechanism == "OAUTHBEARER":
            validator = self._validator(config, clock)
            return lambda: OAuthBearerServer(validator)
        return lambda: ScramServer(mechanism, users)

    def _validator(self, config: ListenerConfig, clock: Clock) -> TokenValidator:
        def value(name: str) -> object:
            return config.value(f"sasl.oauthbearer.{name}", "OAUTHBEARER")

        policy = RefreshPolicy(
            int(str(value("jwks.endpoint.refresh.ms"))),
            int(str(value("jwks.endpoint.retry.backoff.ms"))),
            int(str(value("jwks.endpoint.retry.backoff.max.ms"))),
        )
        self._keys = JwksKeys(str(value("jwks.endpoint.url")), clock, policy)
        issuer = value("expected.issuer")
        audience = value("expected.audience")
        return TokenValidator(
            self._keys,
            TokenRules(
                audience if isinstance(audience, tuple) else (),
                None if issuer is None else str(issuer),
                int(str(value("clock.skew.seconds"))),
                str(value("scope.claim.name")),
                str(value("sub.claim.name")),
            ),
        )
