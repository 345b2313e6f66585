"""A client's view of the cluster: brokers, leaders, offsets. Blocking."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.errors import (
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerConnectionError,
    BrokerError,
    ClientError,
    RequestTimeoutError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedVersionError,
    broker_error,
    error_name,
)
from headwater.logtier.client.fetch_codec import READ_COMMITTED, READ_UNCOMMITTED
from headwater.logtier.client.leaders.closest_replica import PreferredReplicas
from headwater.logtier.client.leaders.divergence import EpochEndOffset
from headwater.logtier.client.leaders.metadata import NO_EPOCH, ClientMetadata, KnownLeader, KnownTopic
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.security import PLAINTEXT, ClientSecurity

__all__ = ["EARLIEST", "LATEST", "ClientConfig", "ClusterClient", "OffsetInEpoch", "parse_bootstrap_servers"]

# Timestamps with a special meaning in ListOffsets.
LATEST = -1
EARLIEST = -2

CLIENT_ID_BYTES_MAX = 32767
RETRY_BACKOFF_MS = 50
RETRY_BACKOFF_MS_MAX = 1000
# The first version with the leader's epoch (KIP-320).
LIST_OFFSETS_WITH_EPOCH = 4
TopicPartition = tuple[str, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client, with Kafka's meaning. Picklable, for Spark tasks."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "headwater"
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 30_000
    # Retry limit of an operation while brokers are unreachable or leaders unknown.
    api_timeout_ms: int = 60_000
    # Retry limit of the first connection: short, so that a wrong address is reported soon.
    bootstrap_timeout_ms: int = 5_000
    receive_buffer_bytes: int = 4 << 20
    security: ClientSecurity = PLAINTEXT
    # Whether to omit records of open and aborted transactions (isolation.level=read_committed).
    read_committed: bool = False
    # The client's rack (client.rack): brokers may name a replica in it to read from (KIP-392).
    rack: str = ""
    # How long records are read from the replica that the leader has named.
    metadata_max_age_ms: int = 300_000

    @property
    def isolation_level(self) -> int:
        """The isolation level's number in the protocol (KIP-98)."""
        return READ_COMMITTED if self.read_committed else READ_UNCOMMITTED


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parses `bootstrap.servers` into (host, port) pairs.

    >>> parse_bootstrap_servers("one:9092, [::1]:9093")
    (('one', 9092), ('::1', 9093))
    >>> parse_bootstrap_servers("one")
    Traceback (most recent call last):
    ValueError: 'one' is not an address: write host:port, several with commas between
    """
    servers: list[tuple[str, int]] = []
    for part in (part.strip() for part in text.split(",")):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not an address: write host:port, several with commas between")
        servers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(servers)


class OffsetInEpoch(NamedTuple):
    """An offset in the answer to ListOffsets, and the leader epoch in which the leader gave it."""

    offset: int
    leader_epoch: int


class _Asked(NamedTuple):
    """The question about one partition, and the leader epoch with which it is asked."""

    value: int
    leader_epoch: int


class ClusterClient:
    """Finds leaders, sends them requests, keeps their connections. Not thread-safe; pickling keeps the config only."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._connections: dict[int, BlockingConnection] = {}
        self._idle: dict[int, BlockingConnection] = {}
        self._any: BlockingConnection | None = None
        self._any_address: tuple[str, int] | None = None
        self._metadata = ClientMetadata()
        self._is_metadata_doubted = False
        self.preferred_replicas = PreferredReplicas(config.metadata_max_age_ms)

    # -- connections -------------------------------------------------------------------------------------------------

    def open_connection(self, host: str, port: int) -> BlockingConnection:
        """Opens a connection that the caller owns."""
        return BlockingConnection(
            host,
            port,
            client_id=self.config.client_id,
            connect_timeout_ms=self.config.connect_timeout_ms,
            request_timeout_ms=self.config.request_timeout_ms,
            receive_buffer_bytes=self.config.receive_buffer_bytes,
            security=self.config.security,
        )

    def connection(self, node_id: int) -> BlockingConnection:
        """Returns the shared connection to a broker for calls, opened if necessary."""
        known = self._connections.get(node_id)
        if known is not None and not known.closed:
            return known
        opened = self.open_node_connection(node_id)
        self._connections[node_id] = opened
        return opened

    def open_node_connection(self, node_id: int) -> BlockingConnection:
        """Opens a connection to a broker that the caller owns, for pipelined requests."""
        address = self._metadata.brokers.get(node_id)
        if address is None:
            raise BrokerConnectionError(f"broker {node_id} is not in the cluster's metadata any more")
        return self.open_connection(*address)

    def open_leader_connection(self, topic: str, partition: int) -> BlockingConnection:
        """Opens a connection to a partition's leader that the caller owns."""
        return self.open_node_connection(self.leader(topic, partition))

    def take_connection(self, node_id: int) -> BlockingConnection:
        """Returns a connection to a broker that the caller owns: the last one given back, or a new one."""
        idle = self._idle.pop(node_id, None)
        return self.open_node_connection(node_id) if idle is None or idle.closed else idle

    def give_back(self, node_id: int, connection: BlockingConnection) -> None:
        """Keeps a connection for the next `take_connection`, or closes it if requests are in flight."""
        if connection.in_flight or node_id in self._idle:
            connection.close()
        elif not connection.closed:
            self._idle[node_id] = connection

    def any_connection(self) -> BlockingConnection:
        """Returns a connection to any broker, for calls: the last one used, or the first broker that responds."""
        if self._any is not None and not self._any.closed:
            return self._any
        deadline = time.monotonic() + self.config.bootstrap_timeout_ms / 1000
        backoff_ms = RETRY_BACKOFF_MS
        while True:
            failure: ClientError | None = None
            for host, port in self._addresses():
                try:
                    self._any = self.open_connection(host, port)
                except (BrokerConnectionError, RequestTimeoutError) as error:
                    failure = error
                else:
                    self._any_address = (host, port)
                    return self._any
            if time.monotonic() + backoff_ms / 1000 > deadline:
                servers = ", ".join(f"{host}:{port}" for host, port in self.config.bootstrap_servers)
                raise BrokerConnectionError(
                    f"no broker answers at {servers} ({failure}); check kafka.bootstrap.servers and that it is running"
                )
            time.sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, RETRY_BACKOFF_MS_MAX)

    def _addresses(self) -> list[tuple[str, int]]:
        """Returns the brokers' addresses, from the one after the last used: that one failed, or its metadata is old."""
        found = list(dict.fromkeys((*self.config.bootstrap_servers, *self._metadata.brokers.values())))
        following = found.index(self._any_address) + 1 if self._any_address in found else 0
        return found[following:] + found[:following]

    def _ask_another_broker(self) -> None:
        """Leaves the broker of the last metadata: a broker that is behind must not be asked for ever."""
        self._is_metadata_doubted = False
        if self._any is not None and len(self._metadata.brokers) > 1:
            self._any.close()

    def close(self) -> None:
        """Closes every connection."""
        for connection in (*self._connections.values(), *self._idle.values(), *([self._any] if self._any else [])):
            connection.close()
        self._connections.clear()
        self._idle.clear()
        self._any = None

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- metadata ----------------------------------------------------------------------------------------------------

    def refresh_metadata(self, topics: Iterable[str] | None, *, allow_auto_create: bool = False) -> None:
        """Requests the brokers and the leaders of topics (None: all topics)."""
        if self._is_metadata_doubted:
            self._ask_another_broker()
        connection = self.any_connection()
        wanted = None if topics is None else tuple({"name": name, "topic_id": None} for name in dict.fromkeys(topics))
        response = connection.call(
            kio_request(
                ApiKey.METADATA,
                connection.version(ApiKey.METADATA),
                {
                    "topics": wanted,
                    "allow_auto_topic_creation": allow_auto_create,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                },
            )
        )
        if self._metadata.update(response, is_complete=topics is None):
            self._is_metadata_doubted = True

    def nodes(self) -> list[int]:
        """Returns the brokers of the last metadata."""
        return sorted(self._metadata.brokers)

    def topics(self, *, with_internal: bool = False) -> dict[str, list[int]]:
        """Returns every topic with its partitions; internal topics only on request."""
        self.retry("listing the topics", lambda: self.refresh_metadata(None))
        return {
            name: sorted(topic.leaders)
            for name, topic in self._metadata.topics.items()
            if (with_internal or not topic.internal) and not topic.error_code
        }

    def partitions(self, topic: str, *, allow_auto_create: bool = False) -> list[int]:
        """Requests a topic's partition numbers; raises UnknownTopicError if the topic does not exist."""

        def ask() -> list[int]:
            self.refresh_metadata([topic], allow_auto_create=allow_auto_create)
            return sorted(self._known_topic(topic, allow_auto_create).leaders)

        return self.retry(f"the metadata of topic {topic!r}", ask)

    def _known_topic(self, topic: str, allow_auto_create: bool = False) -> KnownTopic:
        known = self._metadata.topics[topic]
        code = known.error_code
        if code == UNKNOWN_TOPIC_OR_PARTITION and not allow_auto_create and self._metadata.is_gone(topic):
            raise UnknownTopicError(f"there is no topic {topic!r}; create it or correct the name")
        if code == LEADER_NOT_AVAILABLE and known.leaders:
            return known  # the partitions are known, their leaders are not yet
        if code:
            raise broker_error(code, f"the metadata of topic {topic!r}")
        if not known.leaders:  # a topic under creation: without a retry, a read would silently return nothing
            raise broker_error(LEADER_NOT_AVAILABLE, f"the partitions of topic {topic!r}")
        return known

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Returns a topic's id in the last metadata (KIP-516). A changed id means that the topic was recreated.

        None if the topic is unknown, or the broker does not support topic ids.
        """
        known = self._metadata.topics.get(topic)
        return None if known is None else known.topic_id

    @property
    def cluster_id(self) -> str | None:
        """Returns the cluster's id in the last metadata; None if unknown."""
        return self._metadata.cluster_id

    def leader(self, topic: str, partition: int) -> int:
        """Returns the node that leads a partition, from the last metadata or, if missing there, from a new request."""
        known = self._metadata.leader(topic, partition)
        if known is not None:
            return known.node_id

        def ask() -> int:
            self.refresh_metadata([topic])
            found = self._known_topic(topic)
            if partition not in found.leaders:
                raise UnknownPartitionError(
                    f"topic {topic!r} has no partition {partition}: it has {len(found.leaders)} partitions"
                )
            leader = self._metadata.leader(topic, partition)
            if leader is None:
                self._is_metadata_doubted = True
                raise broker_error(LEADER_NOT_AVAILABLE, f"the leader of {topic}-{partition}")
            return leader.node_id

        return self.retry(f"the leader of {topic}-{partition}", ask)

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition, by the last metadata; asks nobody."""
        found = self._metadata.leader(topic, partition)
        return None if found is None else found.node_id

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Returns the newest known leader epoch of a partition, NO_EPOCH if unknown. It never decreases (KIP-320)."""
        return self._metadata.leader_epoch(topic, partition)

    def learn_leader(self, topic: str, partition: int, node_id: int, leader_epoch: int) -> None:
        """Takes over a newer leader, or with NO_NODE a newer epoch, from another source than the metadata."""
        self._metadata.learn(topic, partition, KnownLeader(node_id, leader_epoch))

    def has_broker(self, node_id: int) -> bool:
        """Whether a broker is in the last metadata."""
        return node_id in self._metadata.brokers

    def forget_leader(self, topic: str) -> None:
        """Drops a topic's metadata after a response that shows it to be stale; another broker is asked next."""
        if self._metadata.forget(topic):
            self._is_metadata_doubted = True

    # -- offsets -----------------------------------------------------------------------------------------------------

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns an offset for each partition: EARLIEST, LATEST, or the first with a timestamp >= the given one (ms).

        -1 if no record has such a timestamp. LATEST of a read_committed client is the last stable offset: the start of
        the first open transaction.
        """
        return {key: listed.offset for key, listed in self.listed_offsets(wanted).items()}

    def listed_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInEpoch]:
        """Returns the same with the leader epochs, NO_EPOCH where brokers do not check them."""
        return self._ask_leaders("listing offsets", wanted, self._list_offsets_at)

    def _list_offsets_at(
        self, node_id: int, asked: Mapping[TopicPartition, _Asked], found: dict[TopicPartition, OffsetInEpoch]
    ) -> BrokerError | None:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), (timestamp, leader_epoch) in asked.items():
            by_topic.setdefault(topic, []).append(
                {"partition_index": partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
            )
        connection = self.connection(node_id)
        version = connection.version(ApiKey.LIST_OFFSETS)
        response: Any = connection.call(
            kio_request(
                ApiKey.LIST_OFFSETS,
                version,
                {
                    "replica_id": -1,
                    "isolation_level": self.config.isolation_level,
                    "topics": tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items()),
                },
            )
        )
        failure: BrokerError | None = None
        for topic in response.topics:
            for part in topic.partitions:
                key = (str(topic.name), int(part.partition_index))
                if part.error_code:
                    failure = self._failed(key, int(part.error_code), "the offsets of")
                else:
                    epoch = asked[key].leader_epoch if version >= LIST_OFFSETS_WITH_EPOCH else NO_EPOCH
                    found[key] = OffsetInEpoch(int(part.offset), epoch)
        return failure

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEndOffset]:
        """Returns the end of a leader epoch in the log of each partition's present leader.

        Empty if a broker has no such API for clients: positions cannot be validated then.
        """
        try:
            return self._ask_leaders("the ends of leader epochs", epochs, self._epoch_ends_at)
        except UnsupportedVersionError:
            return {}

    def _epoch_ends_at(
        self, node_id: int, asked: Mapping[TopicPartition, _Asked], found: dict[TopicPartition, EpochEndOffset]
    ) -> BrokerError | None:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), (leader_epoch, current) in asked.items():
            by_topic.setdefault(topic, []).append(
                {"partition": partition, "current_leader_epoch": current, "leader_epoch": leader_epoch}
            )
        topics = tuple({"topic": name, "partitions": tuple(parts)} for name, parts in by_topic.items())
        connection = self.connection(node_id)
        version = connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        values = {"replica_id": -1, "topics": topics}
        response: Any = connection.call(kio_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, values))
        failure: BrokerError | None = None
        for topic in response.topics:
            for part in topic.partitions:
                key = (str(topic.topic), int(part.partition))
                if part.error_code:
                    failure = self._failed(key, int(part.error_code), "the end of a leader epoch of")
                else:
                    found[key] = EpochEndOffset(int(part.leader_epoch), int(part.end_offset))
        return failure

    def _ask_leaders(
        self,
        what: str,
        wanted: Mapping[TopicPartition, int],
        ask_at: Callable[[int, Mapping[TopicPartition, _Asked], dict[TopicPartition, _T]], BrokerError | None],
    ) -> dict[TopicPartition, _T]:
        """Asks each partition's leader a question, with the leader's epoch, until all have answered.

        Args:
            ask_at: Asks one node, adds its answers to the mapping, and returns a retriable failure of a partition.
        """
        found: dict[TopicPartition, _T] = {}

        def ask() -> None:
            by_leader: dict[int, dict[TopicPartition, _Asked]] = {}
            for key, value in wanted.items():
                if key not in found:
                    node_id = self.leader(*key)
                    by_leader.setdefault(node_id, {})[key] = _Asked(value, self.leader_epoch(*key))
            failure: BrokerError | None = None
            for node_id, asked in by_leader.items():
                failure = ask_at(node_id, asked, found) or failure
            if failure is not None:
                raise failure

        self.retry(what, ask)
        return found

    def _failed(self, key: TopicPartition, code: int, what: str) -> BrokerError:
        """Returns the error of a partition if it is retriable, else raises it; its leader is looked up again."""
        self.forget_leader(key[0])
        failure = broker_error(code, f"{what} {key[0]}-{key[1]}")
        if not failure.retriable:
            raise failure
        return failure

    # -- retries -----------------------------------------------------------------------------------------------------

    def retry(self, what: str, attempt: Callable[[], _T], *, topics: Collection[str] = ()) -> _T:
        """Repeats an attempt with growing pauses while its failures are transient, at most for `api_timeout_ms`."""
        deadline = time.monotonic() + self.config.api_timeout_ms / 1000
        backoff_ms = RETRY_BACKOFF_MS
        bootstrapped = bool(self._metadata.brokers)
        while True:
            try:
                return attempt()
            except BrokerError as error:
                if not error.retriable:
                    raise
                failure: ClientError = error
                reason = error_name(error.code)
            except (BrokerConnectionError, RequestTimeoutError) as error:
                if not bootstrapped and not self._metadata.brokers:
                    raise  # any_connection has exhausted its retries
                failure, reason = error, str(error)
            # The broker that named the leader or coordinator may be behind: another one is asked next.
            self._is_metadata_doubted = True
            for topic in topics:
                self.forget_leader(topic)
            if time.monotonic() + backoff_ms / 1000 > deadline:
                raise RequestTimeoutError(
                    f"{what}: no success within {self.config.api_timeout_ms} ms; the last failure: {reason}"
                ) from failure
            time.sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, RETRY_BACKOFF_MS_MAX)
            if isinstance(failure, BrokerConnectionError | RequestTimeoutError):
                # A restarted broker may have another address, and its partitions other leaders.
                self._metadata.forget_all()
