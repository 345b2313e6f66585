"""Reads the replicas of a partition from their brokers, followers included (KIP-392)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, Protocol

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import (
    AUTHORIZATION_FAILURES,
    BrokerConnectionError,
    ClientError,
    RequestTimeoutError,
    UnknownTopicError,
    broker_error,
)
from headwater.logtier.client.fetch_codec import CompletedFetch, FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey, kio_request

FETCH_BYTES_MAX: Final = 1 << 20
"""Records of one replica in memory; a batch that is larger is returned whole (KIP-74)."""

FETCH_WAIT_MS: Final = 500

THROTTLED_S: Final = 60.0
"""How long a quota may hold up a fetch; one window of quotas has ten seconds by default."""

THROTTLED_RETRY_S: Final = 0.1


class PartitionReplicas(NamedTuple):
    """Where the replicas of a partition are, from Metadata. `leader` is -1 if there is none."""

    topic_id: object
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class ReplicaSource(Protocol):
    """What the verification of a partition asks of the cluster, and of time."""

    def partitions(self, topic: str) -> Mapping[int, PartitionReplicas]:
        """Return the replicas of a topic's partitions now; empty if there is no such topic."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the leader's log start offset and high watermark."""
        ...

    def fetch(
        self, topic: str, partition: int, offsets: Mapping[int, int], bytes_max: int
    ) -> dict[int, CompletedFetch | ClientError]:
        """Read from several replicas at once, each at an offset; what fails is an error of that broker alone."""
        ...

    def now_s(self) -> float:
        """Return a monotonic time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class ClusterReplicas:
    """The replicas of a cluster, over one connection to each broker."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def topics(self, names: Collection[str]) -> list[str]:
        """Return the named topics, all without names, in order; UnknownTopicError."""
        present = self._cluster.topics(with_internal=True)
        unknown = sorted(set(names) - set(present))
        if unknown:
            raise UnknownTopicError(f"there is no topic {unknown[0]!r}; `headwater topic list` shows those that exist")
        return sorted(names or present)

    def partitions(self, topic: str) -> Mapping[int, PartitionReplicas]:
        """Return the replicas of a topic's partitions as some broker knows them; ClientError."""
        return self._cluster.retry(f"the replicas of topic {topic!r}", lambda: self._ask_partitions(topic))

    def _ask_partitions(self, topic: str) -> dict[int, PartitionReplicas]:
        try:
            self._cluster.partitions(topic)
        except UnknownTopicError:
            return {}
        connection = self._cluster.any_connection()
        asked = {"topics": ({"name": topic, "topic_id": None},), "allow_auto_topic_creation": False}
        rest = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
        version = connection.version(ApiKey.METADATA)
        response: Any = connection.call(kio_request(ApiKey.METADATA, version, asked | rest))
        [answer] = response.topics
        if answer.error_code:
            raise broker_error(int(answer.error_code), f"the replicas of topic {topic!r}")
        topic_id = getattr(answer, "topic_id", None)
        return {
            int(each.partition_index): PartitionReplicas(
                topic_id,
                int(each.leader_id),
                tuple(map(int, each.replica_nodes)),
                tuple(map(int, each.isr_nodes)),
                tuple(map(int, getattr(each, "offline_replicas", ()))),
            )
            for each in answer.partitions
        }

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the leader's log start offset and high watermark; ClientError."""
        key = (topic, partition)
        return self._cluster.list_offsets({key: EARLIEST})[key], self._cluster.list_offsets({key: LATEST})[key]

    def fetch(
        self, topic: str, partition: int, offsets: Mapping[int, int], bytes_max: int
    ) -> dict[int, CompletedFetch | ClientError]:
        """Read from several replicas at once: all requests are sent before the first answer is awaited.

        Raises:
            BrokerError: This client may not read the topic.
        """
        found: dict[int, CompletedFetch | ClientError] = {}
        sent: dict[int, tuple[BlockingConnection, Request[Any]]] = {}
        for broker, offset in offsets.items():
            try:
                connection = self._cluster.connection(broker)
                request = fetch_request(
                    connection.version(ApiKey.FETCH),
                    [FetchPosition(topic, partition, offset, bytes_max)],
                    wait_ms=FETCH_WAIT_MS,
                    bytes_min=1,
                    bytes_max=bytes_max,
                )
                connection.send(request)
                sent[broker] = connection, request
            except (BrokerConnectionError, RequestTimeoutError) as error:
                found[broker] = error
        for broker, (connection, request) in sent.items():
            try:
                found[broker] = answer_of(connection, request, topic, partition)
            except (BrokerConnectionError, RequestTimeoutError) as error:
                found[broker] = error
        for answer in found.values():
            if isinstance(answer, CompletedFetch) and answer.error_code in AUTHORIZATION_FAILURES:
                raise broker_error(answer.error_code, f"reading topic {topic!r}")
        return found

    def now_s(self) -> float:
        """Return a monotonic time."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def answer_of(connection: BlockingConnection, request: Request[Any], topic: str, partition: int) -> CompletedFetch:
    """Return the answer to a fetch that was sent.

    A broker whose quota this client has used up answers without partitions, and reads the next request when it may
    (KIP-219): the same one is sent again.

    Raises:
        RequestTimeoutError: The quota lets nothing through, such as one below a tenth of a batch a second.
    """
    deadline_s = time.monotonic() + THROTTLED_S
    while not (answers := connection.receive().value):
        if time.monotonic() >= deadline_s:
            connection.close()
            raise RequestTimeoutError(f"{connection.address}: its quota holds up the fetches of this client")
        time.sleep(THROTTLED_RETRY_S)
        connection.send(request)
    assert isinstance(answers, list)
    for answer in answers:
        if isinstance(answer, CompletedFetch) and (answer.topic, answer.partition) == (topic, partition):
            return answer
    connection.close()
    raise BrokerConnectionError(f"{connection.address} answered a fetch without {topic}-{partition}")
