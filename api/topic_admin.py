"""Topic administration over the Kafka protocol, shared by the REST API and the command line.

`TopicAdmin` wraps confluent-kafka's `AdminClient`. Checks that need no broker run first (see
`headwater.api.topic_model`), so both callers report a mistake in the same words. Every failure becomes a
`TopicAdminError` with a stable code. All calls block; the REST API runs them in its thread pool.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.api.connection import (
    BootstrapServersError,
    BrokerUnreachableError,
    Outage,
    client_properties,
    require_reachable,
)
from headwater.api.topic_model import (
    BrokerInfo,
    ClusterInfo,
    ConfigChange,
    ConfigSynonym,
    ConfigValue,
    ErrorCode,
    PartitionInfo,
    PartitionOffsets,
    TopicAdminError,
    TopicInfo,
    TopicRequest,
    validate_changes,
    validate_partitions_count,
    validate_request,
    validate_topic_name,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = [
    "BrokerInfo",
    "ClusterInfo",
    "ConfigChange",
    "ConfigSynonym",
    "ConfigValue",
    "ErrorCode",
    "PartitionInfo",
    "PartitionOffsets",
    "TopicAdmin",
    "TopicAdminError",
    "TopicInfo",
    "TopicRequest",
    "validate_topic_name",
]

TOPICS_PER_REQUEST_MAX = 1_000
"""Names in one delete or describe request, so that one call cannot hold a connection for long."""

VISIBLE_WAIT_MS = 5_000
"""How long to wait until metadata shows an accepted change; brokers apply changes asynchronously."""

_LEADER_RETRIES_MAX = 10
_LEADER_RETRY_MS = 100

T = TypeVar("T")

_CODES: dict[str, ErrorCode] = {
    "TOPIC_EXCEPTION": ErrorCode.INVALID_TOPIC,
    "TOPIC_ALREADY_EXISTS": ErrorCode.TOPIC_ALREADY_EXISTS,
    "UNKNOWN_TOPIC_OR_PART": ErrorCode.UNKNOWN_TOPIC,
    "_UNKNOWN_TOPIC": ErrorCode.UNKNOWN_TOPIC,
    "_UNKNOWN_PARTITION": ErrorCode.UNKNOWN_PARTITION,
    "INVALID_PARTITIONS": ErrorCode.INVALID_PARTITIONS,
    "INVALID_REPLICATION_FACTOR": ErrorCode.INVALID_REPLICATION_FACTOR,
    "INVALID_REPLICA_ASSIGNMENT": ErrorCode.INVALID_REPLICATION_FACTOR,
    "INVALID_CONFIG": ErrorCode.INVALID_CONFIG,
    "POLICY_VIOLATION": ErrorCode.INVALID_CONFIG,
    "INVALID_REQUEST": ErrorCode.INVALID_REQUEST,
    "_INVALID_ARG": ErrorCode.INVALID_REQUEST,
    "TOPIC_AUTHORIZATION_FAILED": ErrorCode.NOT_AUTHORIZED,
    "CLUSTER_AUTHORIZATION_FAILED": ErrorCode.NOT_AUTHORIZED,
    "_AUTHENTICATION": ErrorCode.NOT_AUTHORIZED,
    "UNSUPPORTED_VERSION": ErrorCode.NOT_SUPPORTED,
    "_UNSUPPORTED_FEATURE": ErrorCode.NOT_SUPPORTED,
    "_TIMED_OUT": ErrorCode.TIMED_OUT,
    "REQUEST_TIMED_OUT": ErrorCode.TIMED_OUT,
    "_TRANSPORT": ErrorCode.UNAVAILABLE,
    "_ALL_BROKERS_DOWN": ErrorCode.UNAVAILABLE,
    "_RESOLVE": ErrorCode.UNAVAILABLE,
    "BROKER_NOT_AVAILABLE": ErrorCode.UNAVAILABLE,
    "LEADER_NOT_AVAILABLE": ErrorCode.UNAVAILABLE,
    "NOT_LEADER_FOR_PARTITION": ErrorCode.UNAVAILABLE,
}


def translate(error: KafkaError, doing: str) -> TopicAdminError:
    """Translate a librdkafka error; `doing` opens the message, as in "create topic 'x'"."""
    code = _CODES.get(error.name(), ErrorCode.BROKER_ERROR)
    reason = " ".join(error.str().split())
    for needless in ("Broker: ", "Local: "):
        reason = reason.removeprefix(needless)
    if code is ErrorCode.UNKNOWN_TOPIC:
        reason = "there is no such topic"
    elif code is ErrorCode.TIMED_OUT:
        reason = "no answer from the broker in time"
    return TopicAdminError(code, f"{doing}: {reason or error.name()}")


class TopicAdmin:
    """Administers the topics of one cluster. Thread-safe, as `AdminClient` is.

    Construction opens no connection; each call fails with `UNAVAILABLE` when no bootstrap server answers.
    """

    def __init__(
        self, bootstrap_servers: str, request_timeout_ms: int = 10_000, security: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a client; for `security` see `headwater.logtier.config.client_properties`."""
        self.bootstrap_servers = bootstrap_servers
        self._request_timeout_s = request_timeout_ms / 1000
        self._outage = Outage()
        self._properties = client_properties(bootstrap_servers, request_timeout_ms, security) | {
            "error_cb": self._outage
        }
        self._client: Any = None

    def cluster(self) -> ClusterInfo:
        """Describe the cluster: id, controller, brokers by id."""
        future = self._admin().describe_cluster(request_timeout=self._request_timeout_s)
        described = self._result(future, "describe the cluster")
        brokers = sorted(
            (BrokerInfo(node.id, node.host, node.port, node.rack) for node in described.nodes),
            key=lambda broker: broker.broker_id,
        )
        controller_id = described.controller.id if described.controller is not None else None
        return ClusterInfo(described.cluster_id, controller_id, tuple(brokers))

    def list_topics(self) -> list[TopicInfo]:
        """Return all topics, internal topics included, sorted by name."""
        names = self.topic_names()
        topics: list[TopicInfo] = []
        for start in range(0, len(names), TOPICS_PER_REQUEST_MAX):
            for answer in self._describe(names[start : start + TOPICS_PER_REQUEST_MAX]).values():
                if isinstance(answer, TopicInfo):
                    topics.append(answer)
                elif answer.code is not ErrorCode.UNKNOWN_TOPIC:  # deleted since the list was taken: not an error
                    raise answer
        return topics

    def topic_names(self) -> list[str]:
        """Return the names of all topics, internal topics included, sorted: one request, whatever their number."""
        admin = self._admin()
        return sorted(self._guard(lambda: admin.list_topics(timeout=self._request_timeout_s), "list topics").topics)

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of all topics, internal topics included: one request."""
        admin = self._admin()
        found = self._guard(lambda: admin.list_topics(timeout=self._request_timeout_s), "list topics").topics
        return {name: len(topic.partitions) for name, topic in sorted(found.items())}

    def describe_topic(self, name: str) -> TopicInfo:
        """Describe one topic; raises UNKNOWN_TOPIC if no topic has that name."""
        validate_topic_name(name)
        answer = self._describe([name])[name]
        if isinstance(answer, TopicAdminError):
            raise answer
        return answer

    def create_topic(self, request: TopicRequest, *, validate_only: bool = False) -> TopicInfo | None:
        """Create a topic and return it once metadata shows it; `validate_only` only validates and returns None."""
        validate_request(request)
        arguments: dict[str, Any] = {"config": dict(request.configs or {})}
        if request.replica_assignment is not None:
            arguments["num_partitions"] = len(request.replica_assignment)
            arguments["replica_assignment"] = [list(replicas) for replicas in request.replica_assignment]
        else:
            arguments["num_partitions"] = -1 if request.partitions_count is None else request.partitions_count
            arguments["replication_factor"] = -1 if request.replication_factor is None else request.replication_factor
        futures = self._admin().create_topics(
            [_kafka().NewTopic(request.name, **arguments)],
            operation_timeout=self._request_timeout_s,
            request_timeout=self._request_timeout_s,
            validate_only=validate_only,
        )
        self._result(futures[request.name], f"create topic {request.name!r}")
        if validate_only:
            return None
        return self._once_visible(request.name, lambda topic: topic.partitions_count > 0)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics with their data; returns once metadata no longer shows them."""
        _check_count(names)
        for name in names:
            validate_topic_name(name)
        futures = self._admin().delete_topics(
            list(names), operation_timeout=self._request_timeout_s, request_timeout=self._request_timeout_s
        )
        failures = []
        for name in names:
            try:
                self._result(futures[name], f"delete topic {name!r}")
            except TopicAdminError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        deadline = time.monotonic() + VISIBLE_WAIT_MS / 1000
        while time.monotonic() < deadline:
            answers = self._describe(list(names)).values()
            if all(isinstance(answer, TopicAdminError) for answer in answers):
                return
            time.sleep(0.02)

    def create_partitions(self, name: str, partitions_count: int, *, validate_only: bool = False) -> TopicInfo:
        """Raise a topic's partition count to `partitions_count`; keys written later may map to other partitions."""
        validate_topic_name(name)
        validate_partitions_count(partitions_count)
        present = self.describe_topic(name)
        if partitions_count <= present.partitions_count:
            raise TopicAdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"alter topic {name!r}: it has {present.partitions_count} partitions already; "
                f"a count can only grow, not become {partitions_count}",
            )
        futures = self._admin().create_partitions(
            [_kafka().NewPartitions(name, partitions_count)],
            operation_timeout=self._request_timeout_s,
            request_timeout=self._request_timeout_s,
            validate_only=validate_only,
        )
        self._result(futures[name], f"alter topic {name!r}")
        if validate_only:
            return present
        return self._once_visible(name, lambda topic: topic.partitions_count >= partitions_count)

    def configs(self, name: str) -> list[ConfigValue]:
        """Return every config of a topic, sorted by name."""
        return self.configs_of([name])[name]

    def configs_of(self, names: Sequence[str]) -> dict[str, list[ConfigValue]]:
        """Return every config of several topics; raises for the first unknown one."""
        if not names:
            return {}
        _check_count(names)
        for name in names:
            validate_topic_name(name)
        resources = [_kafka().ConfigResource(_kafka().ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._admin().describe_configs(resources, request_timeout=self._request_timeout_s)
        answers = {}
        for resource, future in futures.items():
            entries = self._result(future, f"describe the configs of topic {resource.name!r}")
            answers[resource.name] = sorted(
                (_config(entry) for entry in entries.values()), key=lambda value: value.name
            )
        return answers

    def config(self, name: str, config_name: str) -> ConfigValue:
        """Return one config of a topic; raises UNKNOWN_CONFIG if topics have no config of that name."""
        for value in self.configs(name):
            if value.name == config_name:
                return value
        raise TopicAdminError(
            ErrorCode.UNKNOWN_CONFIG,
            f"topic {name!r} has no config {_shortened(config_name)!r}",
        )

    def alter_configs(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> None:
        """Change some configs of a topic; the other configs remain (IncrementalAlterConfigs)."""
        validate_topic_name(name)
        validate_changes(changes)
        self.describe_topic(name)  # a broker may store configs for a topic that is not there
        entries = [
            _kafka().ConfigEntry(
                change.name,
                change.value,
                incremental_operation=_kafka().AlterConfigOpType.DELETE
                if change.value is None
                else _kafka().AlterConfigOpType.SET,
            )
            for change in changes
        ]
        resource = _kafka().ConfigResource(_kafka().ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        futures = self._admin().incremental_alter_configs(
            [resource], validate_only=validate_only, request_timeout=self._request_timeout_s
        )
        self._result(futures[resource], f"alter topic {name!r}")

    def offsets(self, name: str) -> list[PartitionOffsets]:
        """Return the first offset and the next offset of each partition."""
        from confluent_kafka import TopicPartition

        partitions = [TopicPartition(name, info.partition) for info in self.describe_topic(name).partitions]
        spec = _kafka().OffsetSpec
        earliest = self._list_offsets(name, dict.fromkeys(partitions, spec.earliest()))
        latest = self._list_offsets(name, dict.fromkeys(partitions, spec.latest()))
        return [PartitionOffsets(p, earliest[p], latest[p]) for p in sorted(earliest)]

    def _list_offsets(self, name: str, wanted: dict[Any, Any]) -> dict[int, int]:
        """List offsets, with retries while a new partition's leader is not yet available."""
        attempts = 0
        while True:
            attempts += 1
            futures = self._admin().list_offsets(wanted, request_timeout=self._request_timeout_s)
            doing = f"list the offsets of topic {name!r}"
            try:
                return {partition.partition: self._result(f, doing).offset for partition, f in futures.items()}
            except TopicAdminError as error:
                if error.code is not ErrorCode.UNAVAILABLE or attempts >= _LEADER_RETRIES_MAX:
                    raise
            time.sleep(_LEADER_RETRY_MS / 1000)

    def _admin(self) -> Any:
        """Return the client, created at the first call; an unreachable address is reported at once, with its reason."""
        if self._client is None:
            try:
                require_reachable(self.bootstrap_servers)
            except BootstrapServersError as error:
                raise TopicAdminError(ErrorCode.INVALID_REQUEST, str(error)) from None
            except BrokerUnreachableError as error:
                raise TopicAdminError(ErrorCode.UNAVAILABLE, f"no broker answers at {error}") from None
            try:
                self._client = _kafka().AdminClient(self._properties)
            except Exception as error:  # noqa: BLE001 (librdkafka raises its own kind, of a module not imported here)
                reason = getattr(error.args[0], "str", lambda: "")() if error.args else ""
                raise TopicAdminError(ErrorCode.INVALID_REQUEST, reason or "the client cannot be made") from None
        return self._client

    def _describe(self, names: list[str]) -> dict[str, TopicInfo | TopicAdminError]:
        """Describe topics by name. Unlike a producer's Metadata request, this call never creates a topic."""
        from confluent_kafka import TopicCollection

        if not names:
            return {}
        admin = self._admin()
        futures = self._guard(
            lambda: admin.describe_topics(TopicCollection(names), request_timeout=self._request_timeout_s),
            "describe topics",
        )
        answers: dict[str, TopicInfo | TopicAdminError] = {}
        for name in names:
            try:
                answers[name] = _topic(self._result(futures[name], f"describe topic {name!r}"))
            except TopicAdminError as error:
                answers[name] = error
        return answers

    def _once_visible(self, name: str, shows: Callable[[TopicInfo], bool]) -> TopicInfo:
        deadline = time.monotonic() + VISIBLE_WAIT_MS / 1000
        while True:
            answer = self._describe([name])[name]
            if isinstance(answer, TopicInfo) and shows(answer):
                return answer
            if time.monotonic() > deadline:
                raise TopicAdminError(
                    ErrorCode.TIMED_OUT,
                    f"topic {name!r}: the change was accepted but does not show after {VISIBLE_WAIT_MS} ms",
                )
            time.sleep(0.02)

    def _result(self, future: Future[Any], doing: str) -> Any:
        # The client answers every future by its own request timeout; the second limit guards against a lost one.
        return self._guard(lambda: future.result(timeout=2 * self._request_timeout_s + 5), doing)

    def _guard(self, call: Callable[[], T], doing: str) -> T:
        from confluent_kafka import KafkaException

        try:
            return call()
        except KafkaException as error:
            translated = translate(error.args[0], doing)
        except TimeoutError:
            translated = TopicAdminError(ErrorCode.TIMED_OUT, f"{doing}: no answer from the broker in time")
        except (TypeError, ValueError) as error:
            translated = TopicAdminError(ErrorCode.INVALID_REQUEST, f"{doing}: {error}")
        if translated.code in {ErrorCode.TIMED_OUT, ErrorCode.UNAVAILABLE}:
            translated = self._unreachable_instead(translated)
        raise translated

    def _unreachable_instead(self, error: TopicAdminError) -> TopicAdminError:
        """Distinguish an unreachable broker from a slow one."""
        try:
            require_reachable(self.bootstrap_servers, timeout_ms=1_000)
        except BrokerUnreachableError as unreachable:
            return TopicAdminError(ErrorCode.UNAVAILABLE, f"no broker answers at {unreachable}")
        self._client.poll(0)  # its callbacks are called in here
        refusal = self._outage.refusal
        if refusal is not None:
            return TopicAdminError(ErrorCode.UNAVAILABLE, f"the broker refuses the connection: {refusal}")
        return error


def _kafka() -> Any:
    """Import confluent-kafka on first use: the module loads a shared library of 10 MB, and declares no types."""
    return importlib.import_module("confluent_kafka.admin")


def _check_count(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= TOPICS_PER_REQUEST_MAX:
        raise TopicAdminError(
            ErrorCode.INVALID_REQUEST, f"{len(names)} topics: give 1 to {TOPICS_PER_REQUEST_MAX} at once"
        )


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _topic(described: Any) -> TopicInfo:
    partitions = sorted(
        (
            PartitionInfo(
                partition=part.id,
                leader=part.leader.id if part.leader is not None and part.leader.id >= 0 else None,
                replicas=tuple(node.id for node in part.replicas),
                isr=tuple(node.id for node in part.isr),
            )
            for part in described.partitions
        ),
        key=lambda part: part.partition,
    )
    return TopicInfo(described.name, str(described.topic_id), bool(described.is_internal), tuple(partitions))


def _config(entry: Any) -> ConfigValue:
    return ConfigValue(
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        source=_source(entry.source),
        is_default=bool(entry.is_default),
        is_read_only=bool(entry.is_read_only),
        is_sensitive=bool(entry.is_sensitive),
        synonyms=tuple(
            ConfigSynonym(synonym.name, synonym.value, _source(synonym.source)) for synonym in entry.synonyms.values()
        ),
    )


def _source(source: Any) -> str:
    """Return the protocol's name of a config's source, also where the client has only its number."""
    try:
        return str(_kafka().ConfigSource(source).name)
    except ValueError:
        return "UNKNOWN_CONFIG"
