"""How to reach ZooKeeper: the values of Kafka's `zookeeper.*` configs, checked and parsed."""

import ssl
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.config.cluster import zookeeper_login
from headwater.logtier.metadata.store import check_path

DEFAULT_PORT: Final = 2181

SESSION_TIMEOUT_MS: Final = 18_000
"""Default of zookeeper.session.timeout.ms (KIP-537)."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where ZooKeeper is and how a broker logs in. Keys and certificates are PEM files.

    Attributes:
        connect: zookeeper.connect: `host1:2181,host2:2181/chroot`.
        session_timeout_ms: zookeeper.session.timeout.ms; the server confines it to 2 to 20 of its ticks.
        connection_timeout_ms: zookeeper.connection.timeout.ms: for the start; None: the session timeout.
        set_acl: zookeeper.set.acl: nodes that a broker creates admit only its own login.
        tls: zookeeper.ssl.client.enable.
        truststore: zookeeper.ssl.truststore.location: the authorities; None: those of the system.
        keystore: zookeeper.ssl.keystore.location: the broker's key and certificate; None: no client certificate.
        keystore_password: zookeeper.ssl.keystore.password.
        checks_hostname: zookeeper.ssl.endpoint.identification.algorithm is HTTPS, and not empty.
        username: The login of SASL (DIGEST-MD5): `username` of the section `Client` in Kafka's JAAS file.
        password: `password` of the same section.
        creates_chroot: Whether a chroot that does not exist is created, as for a new cluster.

    Raises:
        ConfigError: With one line for the administrator.

    >>> settings = ZooKeeperSettings("zk1:2181,zk2/kafka/a")
    >>> settings.hosts, settings.chroot
    ((('zk1', 2181), ('zk2', 2181)), '/kafka/a')
    """

    connect: str
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    connection_timeout_ms: int | None = None
    set_acl: bool = False
    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    username: str | None = None
    password: str = field(default="", repr=False)
    creates_chroot: bool = True
    hosts: tuple[tuple[str, int], ...] = field(init=False)
    chroot: str = field(init=False)

    def __post_init__(self) -> None:
        addresses, slash, chroot = self.connect.partition("/")
        object.__setattr__(self, "hosts", tuple(_address(text) for text in addresses.split(",")))
        object.__setattr__(self, "chroot", _chroot(slash + chroot))
        if self.session_timeout_ms <= 0:
            raise ConfigError("zookeeper.session.timeout.ms must be positive")
        if self.set_acl and self.username is None and not (self.tls and self.keystore):
            raise ConfigError(
                "zookeeper.set.acl=true needs a login of the broker: of SASL or, with TLS, a client certificate"
            )

    @staticmethod
    def from_config(config: BrokerConfig, *, creates_chroot: bool = True) -> "ZooKeeperSettings":
        """Return the settings of a broker with `zookeeper.connect`; ConfigError."""
        assert config.zookeeper_connect is not None
        jaas = config.zookeeper_sasl_jaas_config
        username, password = (None, "") if jaas is None else zookeeper_login(jaas)
        return ZooKeeperSettings(
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms,
            set_acl=config.zookeeper_set_acl,
            tls=config.zookeeper_ssl_client_enable,
            truststore=config.zookeeper_ssl_truststore_location,
            keystore=config.zookeeper_ssl_keystore_location,
            keystore_password=config.zookeeper_ssl_keystore_password,
            checks_hostname=config.zookeeper_ssl_endpoint_identification_algorithm != "",
            username=username,
            password=password,
            creates_chroot=creates_chroot,
        )

    def start_timeout_s(self) -> float:
        """Return how long a start may wait for ZooKeeper."""
        return (self.connection_timeout_ms or self.session_timeout_ms) / 1000

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of connections, None without TLS; reads files. ConfigError."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.truststore)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"zookeeper.ssl.truststore.location: {self.truststore}: {_reason(error)}") from None
        context.check_hostname = self.checks_hostname
        if self.keystore is not None:
            try:
                # A password that is needed and absent is an error: OpenSSL would ask for it at the terminal.
                context.load_cert_chain(self.keystore, password=self.keystore_password or "")
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"zookeeper.ssl.keystore.location: {self.keystore}: {_reason(error)}") from None
        return context


def _address(text: str) -> tuple[str, int]:
    """Return host and port.

    >>> _address("[::1]:2182"), _address(" zk1 ")
    (('::1', 2182), ('zk1', 2181))
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"zookeeper.connect: {text!r} is not host:port")
    return host, int(port)


def _chroot(text: str) -> str:
    """Return the prefix of all paths.

    >>> _chroot(""), _chroot("/"), _chroot("/kafka")
    ('', '', '/kafka')
    """
    if text in ("", "/"):
        return ""
    try:
        check_path(text)
    except ValueError:
        is_path = False
    else:
        is_path = "," not in text
    if not is_path:
        raise ConfigError(
            f"zookeeper.connect: {text!r} is not a path: the chroot comes once, after the last host, as in "
            "host1:2181,host2:2181/kafka"
        )
    return text


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
