"""Configs of a cluster of several brokers, a part of the broker's table (see `broker`).

Those of ZooKeeper have the names, types and defaults of Kafka 3.9, the last release with ZooKeeper.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from headwater.logtier.config.definition import (
    ConfigError,
    ConfigType,
    Unsupported,
    Validator,
    at_least,
    config,
    one_of,
)
from headwater.logtier.config.jaas import login_options
from headwater.logtier.config.listeners import Endpoint
from headwater.logtier.config.transactions import TransactionConfig

ZOOKEEPER_JAAS: Final = "zookeeper.sasl.jaas.config"

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_PEM: Final = Unsupported(lambda value: value in (None, "PEM"), "keys and certificates for ZooKeeper are PEM files")


def _is_login(text: str) -> bool:
    try:
        zookeeper_login(text)
    except ConfigError:
        return False
    return True


def zookeeper_login(text: str) -> tuple[str, str]:
    """Return user name and password of a JAAS text for ZooKeeper; the message of a ConfigError holds neither.

    >>> zookeeper_login('a.b.DigestLoginModule required username="kafka" password="secret";')
    ('kafka', 'secret')
    """
    module, options = login_options(ZOOKEEPER_JAAS, text)
    username, password = options.get("username"), options.get("password")
    if not module.endswith("DigestLoginModule") or not username or not password:
        raise ConfigError(f'{ZOOKEEPER_JAAS}: write DigestLoginModule required username="..." password="...";')
    return username, password


@dataclass(frozen=True, slots=True, eq=False)
class ClusterConfig(TransactionConfig):
    """Configs of ZooKeeper, of requests to other brokers, and of replicas on them; without effect on a single node."""

    # ZooKeeper
    zookeeper_connect: str | None = config(
        ConfigType.STRING,
        None,
        "ZooKeeper of the cluster: host1:2181,host2:2181/chroot. Unset, the broker is a cluster of one, with its "
        "metadata in the first of log.dirs.",
        Validator("host:port,..., with an optional chroot at the end", lambda value: bool(value.strip())),
    )
    zookeeper_session_timeout_ms: int = config(
        ConfigType.INT,
        18_000,
        "Time without contact after which ZooKeeper ends the broker's session, and the controller elects other "
        "leaders. ZooKeeper confines the value to 2 to 20 of its ticks.",
        at_least(1),
    )
    zookeeper_connection_timeout_ms: int | None = config(
        ConfigType.INT,
        None,
        "Maximum time for which the start of the broker waits for ZooKeeper; by default zookeeper.session.timeout.ms.",
        at_least(1),
    )
    zookeeper_set_acl: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether nodes that the broker creates admit only its own login.",
    )
    zookeeper_sasl_jaas_config: str | None = config(
        ConfigType.PASSWORD,
        None,
        "Login of the broker at ZooKeeper (DIGEST-MD5), the section Client of Kafka's JAAS file: "
        'org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="..."; is its text.',
        Validator("one DigestLoginModule with username and password", _is_login),
    )
    zookeeper_ssl_client_enable: bool = config(ConfigType.BOOLEAN, False, "Whether connections to ZooKeeper use TLS.")
    zookeeper_ssl_keystore_location: str | None = config(
        ConfigType.STRING, None, "PEM file with the private key and the certificate that the broker shows ZooKeeper."
    )
    zookeeper_ssl_keystore_password: str | None = config(
        ConfigType.PASSWORD, None, "Password of the private key in zookeeper.ssl.keystore.location."
    )
    zookeeper_ssl_keystore_type: str | None = config(
        ConfigType.STRING, None, "Format of the keystore: PEM.", unsupported=_PEM
    )
    zookeeper_ssl_truststore_location: str | None = config(
        ConfigType.STRING,
        None,
        "PEM file with the certificates that verify ZooKeeper's; by default those of the system.",
    )
    zookeeper_ssl_truststore_type: str | None = config(
        ConfigType.STRING, None, "Format of the truststore: PEM.", unsupported=_PEM
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = config(
        ConfigType.STRING,
        "HTTPS",
        "Whether ZooKeeper's certificate must be valid for its host name: HTTPS, or empty for no check.",
        Validator("HTTPS or empty", lambda value: value.upper() in ("HTTPS", "")),
    )

    # Requests to other brokers
    request_timeout_ms: int = config(
        ConfigType.INT, 30_000, "Maximum time for the response of another broker.", at_least(1)
    )
    controller_socket_timeout_ms: int = config(
        ConfigType.INT, 30_000, "Maximum time for the response of the controller to one request.", at_least(1)
    )
    socket_connection_setup_timeout_ms: int = config(
        ConfigType.LONG,
        10_000,
        "Maximum time for a connection to another broker: TCP, TLS handshake and login together.",
        at_least(1),
    )
    sasl_mechanism_inter_broker_protocol: str = config(
        ConfigType.STRING,
        "SCRAM-SHA-256",  # Kafka's default is GSSAPI: Kerberos
        "SASL mechanism by which brokers log in to each other; the login is that of "
        "listener.name.<listener>.<mechanism>.sasl.jaas.config.",
        one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    )

    # Leaders
    auto_leader_rebalance_enable: bool = config(
        ConfigType.BOOLEAN,
        True,
        "Whether the controller gives leaderships back to the first replica of each partition once it is in sync.",
    )
    leader_imbalance_check_interval_seconds: int = config(
        ConfigType.LONG, 300, "Interval between elections of preferred leaders.", at_least(1)
    )

    # Replicas on other brokers
    replica_fetch_backoff_ms: int = config(
        ConfigType.INT, 1000, "Pause of a follower after a failed fetch of a partition.", at_least(0)
    )
    replica_fetch_max_bytes: int = config(
        ConfigType.INT,
        1_048_576,
        "Maximum size of the records of one partition in a follower's fetch; a larger batch is fetched alone.",
        at_least(0),
    )
    replica_fetch_min_bytes: int = config(
        ConfigType.INT, 1, "Size of records for which the response to a follower's fetch waits.", at_least(1)
    )
    replica_fetch_response_max_bytes: int = config(
        ConfigType.INT, 10_485_760, "Maximum size of the records in the response to a follower's fetch.", at_least(0)
    )
    replica_fetch_wait_max_ms: int = config(
        ConfigType.INT, 500, "Maximum time for which the response to a follower's fetch waits for records."
    )
    replica_lag_time_max_ms: int = config(
        ConfigType.LONG,
        30_000,
        "Time without reaching the end of the leader's log after which a follower leaves the in-sync replicas.",
        at_least(1),
    )
    replica_selector_class: str | None = config(
        ConfigType.STRING,
        None,
        f"{RACK_AWARE_SELECTOR}: leaders send consumers with a client.rack to an in-sync replica whose broker.rack is "
        "the same. Unset, consumers fetch from leaders.",
        unsupported=Unsupported(
            lambda value: value in (None, RACK_AWARE_SELECTOR), f"the only selector is {RACK_AWARE_SELECTOR}"
        ),
    )
    replica_socket_receive_buffer_bytes: int = config(
        ConfigType.INT,
        65_536,
        "SO_RCVBUF of connections to other brokers; -1 selects the system's default.",
        at_least(-1),
    )
    replica_socket_timeout_ms: int = config(
        ConfigType.INT, 30_000, "Maximum time for the response to a request of a follower to the leader.", at_least(1)
    )
    unclean_leader_election_enable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether a replica outside the in-sync set can become leader, at the risk of data loss.",
        dynamic=True,
    )


class _Broker(Protocol):
    """The part of the broker's configs that this module reads."""

    @property
    def explicit(self) -> frozenset[str]: ...

    @property
    def bind_endpoints(self) -> tuple[Endpoint, ...]: ...

    @property
    def inter_broker_listener_name(self) -> str | None: ...

    @property
    def security_inter_broker_protocol(self) -> str: ...

    def value(self, name: str) -> Any: ...


def check_cluster_configs(broker: _Broker) -> None:
    """Check that the limits of followers' fetches are consistent; ConfigError."""
    wait_ms = broker.value("replica.fetch.wait.max.ms")
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        limit_ms = broker.value(name)
        if wait_ms > limit_ms:
            raise ConfigError(f"replica.fetch.wait.max.ms ({wait_ms}) is above {name} ({limit_ms})")


def inter_broker_listener(broker: _Broker) -> Endpoint:
    """Return the listener for other brokers and for the processes of this node, as it is in `listeners`."""
    listeners = broker.bind_endpoints
    name = broker.inter_broker_listener_name
    for listener in listeners:
        if name is not None and listener.name == name.upper():
            return listener
    if name is None and "security.inter.broker.protocol" in broker.explicit:
        for listener in listeners:
            if listener.protocol == broker.security_inter_broker_protocol:
                return listener
    return listeners[0]
