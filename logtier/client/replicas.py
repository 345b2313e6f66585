"""An administrator's view of replicas: where they are, how large, and requests that move them. Blocking.

Reassignments are KIP-455's, sizes KIP-113's and KIP-827's, elections KIP-460's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headwater.logtier.client.administration import ask_controller, partitions_by_topic
from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import (
    AUTHORIZATION_FAILURES,
    REPLICA_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerConnectionError,
    RequestTimeoutError,
    broker_error,
)
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)

__all__ = [
    "AssignedPartition",
    "RegisteredBroker",
    "ReplicaAdmin",
    "ReplicaLogDir",
    "ReplicaRefusal",
    "ReplicaSize",
]

#: Resource types of configs.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

#: Sources of configs that are set for the resource itself.
_OWN_SOURCE: Final = {TOPIC_RESOURCE: 1, BROKER_RESOURCE: 2}
#: Resources in one request: its answer holds up a broker's loop for milliseconds, not longer.
RESOURCES_MAX: Final = 1_000

_SET: Final = 0
_DELETE: Final = 1
_PREFERRED: Final = 0
_NO_NODE: Final = -1
_ELECTION_NOT_NEEDED: Final = 84


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker in the metadata: it is present."""

    broker_id: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition's assignment. While a reassignment runs, `replicas` are the old and the new ones."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica on disk; `is_future`: a copy that is to replace it in another folder."""

    topic: str
    partition: int
    size_bytes: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """An online log folder; the bytes of its file system are None if the broker does not know them."""

    path: str
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[ReplicaSize, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRefusal:
    """The refusal of a change of one partition."""

    message: str
    is_transient: bool


class ReplicaAdmin:
    """Requests about replicas. Raises ClientError where the whole request fails, after retries."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    # -- reading -----------------------------------------------------------------------------------------------------

    def assignments(
        self, topics: Iterable[str] | None = None
    ) -> tuple[dict[int, RegisteredBroker], list[AssignedPartition]]:
        """Returns the present brokers, and the partitions of topics (None: all); unknown topics are left out."""
        names = None if topics is None else tuple({"name": each, "topic_id": None} for each in topics)
        values = {
            "topics": names,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }

        def ask() -> tuple[dict[int, RegisteredBroker], list[AssignedPartition]]:
            self._cluster.refresh_metadata(())
            response = _call(self._cluster.any_connection(), ApiKey.METADATA, values)
            brokers = {int(each.node_id): RegisteredBroker(int(each.node_id), each.rack) for each in response.brokers}
            found = []
            for topic in response.topics:
                code = int(topic.error_code)
                if code in AUTHORIZATION_FAILURES:
                    raise broker_error(code, f"the metadata of topic {topic.name!r}")
                found += [_assigned(str(topic.name), each) for each in topic.partitions]
            return brokers, found

        return self._cluster.retry("the assignments of partitions", ask)

    def log_dirs(
        self, broker_id: int, topics: Mapping[str, Sequence[int]] | None = None
    ) -> tuple[ReplicaLogDir, ...] | None:
        """Returns a broker's online folders with its replicas of some partitions; None without an answer."""
        asked = (
            None
            if topics is None
            else tuple({"topic": name, "partitions": tuple(numbers)} for name, numbers in topics.items())
        )
        try:
            response = _call(self._cluster.connection(broker_id), ApiKey.DESCRIBE_LOG_DIRS, {"topics": asked})
        except (BrokerConnectionError, RequestTimeoutError):
            return None
        code = int(getattr(response, "error_code", 0))
        if code:
            raise broker_error(code, f"the log folders of broker {broker_id}")
        return tuple(_log_dir(each) for each in response.results if not each.error_code)

    def reassignments(self) -> dict[TopicPartition, OngoingReassignment]:
        """Returns all running reassignments."""
        return list_partition_reassignments(self._cluster)

    def dynamic_configs(
        self, resource_type: int, names: Sequence[str], configs: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Returns the values of some configs by resource, of those that are set for the resource itself."""
        found: dict[str, dict[str, str]] = {}
        for node, some in self._askable(resource_type, names):
            resources = tuple(
                {"resource_type": resource_type, "resource_name": name, "configuration_keys": tuple(configs)}
                for name in some
            )
            ask = functools.partial(self._own_values, node, resources, _OWN_SOURCE[resource_type])
            found |= self._cluster.retry("reading configs", ask)
        return found

    def _own_values(
        self, node: int | None, resources: tuple[dict[str, Any], ...], source: int
    ) -> dict[str, dict[str, str]]:
        response = _call(self._connection(node), ApiKey.DESCRIBE_CONFIGS, {"resources": resources})
        found: dict[str, dict[str, str]] = {}
        for result in response.results:
            code = int(result.error_code)
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if code:
                raise broker_error(code, f"the configs of {result.resource_name!r}", result.error_message)
            values = {str(each.name): str(each.value) for each in result.configs if int(each.config_source) == source}
            if values:
                found[str(result.resource_name)] = values
        return found

    def _askable(self, resource_type: int, names: Sequence[str]) -> Iterable[tuple[int | None, Sequence[str]]]:
        """Yields nodes, None for any, and the resources to name to each: a broker's configs are its own matter."""
        if resource_type == BROKER_RESOURCE:
            yield from ((int(name), (name,)) for name in names)
        else:
            yield from ((None, names[at : at + RESOURCES_MAX]) for at in range(0, len(names), RESOURCES_MAX))

    def _connection(self, node: int | None) -> BlockingConnection:
        return self._cluster.any_connection() if node is None else self._cluster.connection(node)

    # -- changing ----------------------------------------------------------------------------------------------------

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int]], *, changes_factor: bool = False
    ) -> dict[TopicPartition, ReplicaRefusal]:
        """Starts reassignments; returns those that the controller refuses. A repeated request has no further effect.

        Without `changes_factor` the controller refuses another number of replicas, as after a change by another client.
        """
        results = alter_partition_reassignments(self._cluster, targets, allow_replication_factor_change=changes_factor)
        return {key: ReplicaRefusal(str(error), error.retriable) for key, error in results.items() if error is not None}

    def place(self, broker_id: int, paths: Mapping[TopicPartition, str]) -> dict[TopicPartition, ReplicaRefusal]:
        """Moves replicas to folders of their broker, or names the folder of replicas that are not yet there."""
        by_path: dict[str, list[TopicPartition]] = {}
        for key, path in paths.items():
            by_path.setdefault(path, []).append(key)
        dirs = tuple(
            {
                "path": path,
                "topics": tuple(
                    {"name": name, "partitions": tuple(some)} for name, some in partitions_by_topic(keys).items()
                ),
            }
            for path, keys in by_path.items()
        )

        def ask() -> dict[TopicPartition, ReplicaRefusal]:
            response = _call(self._cluster.connection(broker_id), ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": dirs})
            return _refusals(
                (str(topic.topic_name), int(each.partition_index), int(each.error_code), None)
                for topic in response.results
                for each in topic.partitions
                # The answer for a replica that is not there yet: the broker remembers the folder.
                if int(each.error_code) not in (REPLICA_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION)
            )

        return self._cluster.retry(f"naming log folders of broker {broker_id}", ask)

    def elect_preferred(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ReplicaRefusal]:
        """Elects preferred leaders; returns the partitions for which none was elected, without those led already."""
        topics = tuple(
            {"topic": name, "partitions": tuple(some)} for name, some in partitions_by_topic(partitions).items()
        )
        values = {"election_type": _PREFERRED, "topic_partitions": topics}

        def ask() -> dict[TopicPartition, ReplicaRefusal]:
            response = ask_controller(self._cluster, ApiKey.ELECT_LEADERS, values, "electing preferred leaders")
            return _refusals(
                (str(topic.topic), int(each.partition_id), int(each.error_code), each.error_message)
                for topic in response.replica_election_results
                for each in topic.partition_result
                if int(each.error_code) != _ELECTION_NOT_NEEDED
            )

        return self._cluster.retry("electing preferred leaders", ask)

    def alter_configs(self, resource_type: int, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Sets configs by resource, or deletes them (None); a topic that is gone is no error."""
        for node, names in self._askable(resource_type, list(changes)):
            resources = tuple(
                {
                    "resource_type": resource_type,
                    "resource_name": name,
                    "configs": tuple(
                        {"name": config, "config_operation": _DELETE if value is None else _SET, "value": value}
                        for config, value in changes[name].items()
                    ),
                }
                for name in names
            )
            self._cluster.retry("changing configs", functools.partial(self._alter, node, resources))

    def _alter(self, node: int | None, resources: tuple[dict[str, Any], ...]) -> None:
        values = {"resources": resources, "validate_only": False}
        response = _call(self._connection(node), ApiKey.INCREMENTAL_ALTER_CONFIGS, values)
        for each in response.responses:
            if each.error_code and int(each.error_code) != UNKNOWN_TOPIC_OR_PARTITION:
                what = f"changing the configs of {each.resource_name!r}"
                raise broker_error(int(each.error_code), what, each.error_message)

    def unregister(self, broker_id: int) -> None:
        """Removes the registration of a broker that is away. Raises BrokerError if it runs, or is unknown."""
        what, values = f"unregistering broker {broker_id}", {"broker_id": broker_id}
        self._cluster.retry(what, lambda: ask_controller(self._cluster, ApiKey.UNREGISTER_BROKER, values, what))


def _call(connection: BlockingConnection, api_key: int, values: Mapping[str, Any]) -> Any:
    return connection.call(kio_request(api_key, connection.version(api_key), values))


def _assigned(topic: str, partition: Any) -> AssignedPartition:
    leader = int(partition.leader_id)
    return AssignedPartition(
        topic,
        int(partition.partition_index),
        None if leader == _NO_NODE else leader,
        tuple(map(int, partition.replica_nodes)),
        tuple(map(int, partition.isr_nodes)),
    )


def _log_dir(result: Any) -> ReplicaLogDir:
    return ReplicaLogDir(
        str(result.log_dir),
        _known(getattr(result, "total_bytes", -1)),
        _known(getattr(result, "usable_bytes", -1)),
        tuple(
            ReplicaSize(str(topic.name), int(each.partition_index), int(each.partition_size), bool(each.is_future_key))
            for topic in result.topics
            for each in topic.partitions
        ),
    )


def _known(value: int) -> int | None:
    return None if value < 0 else int(value)


def _refusals(results: Iterable[tuple[str, int, int, str | None]]) -> dict[TopicPartition, ReplicaRefusal]:
    found = {}
    for topic, partition, code, message in results:
        if code:
            error = broker_error(code, f"{topic}-{partition}", message)
            found[topic, partition] = ReplicaRefusal(message or error.name, error.retriable)
    return found
