"""Decisions of the controller on topics: (image, command) to store operations or an error. Pure.

Each function takes the present image and returns a `Plan`: the results, and the operations that implement them. The
operations are not executed yet; a result without error is valid after their execution.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from headwater.logtier.config import BrokerConfig, ConfigError, check_topic_overrides
from headwater.logtier.controller.commands import DeleteResult, NewPartitions, NewTopic, TopicResult
from headwater.logtier.controller.partition_draft import Candidates
from headwater.logtier.controller.placement import assign_replicas
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.store import Create, Delete, Operation, operation_bytes
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS, collision_key, topic_name_problem
from headwater.logtier.metadata.topic_nodes import (
    PartitionImage,
    change_topic,
    create_topic,
    delete_topic,
    first_partition_state,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""New partitions per request: Kafka's limit; their folders are created before the response."""

MAX_PARTITIONS_PER_CLUSTER: Final = 100_000
"""Partitions in total: each costs every broker memory and its replicas open files."""

Result = TypeVar("Result")

CountMutations = Callable[[int], None]
"""Counts partitions to be created or deleted; raises KafkaError if the client's quota rejects them."""


def unlimited(partitions: int) -> None:
    """A count without a quota."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """Results in the order of the command, and the operations of those without error.

    Attributes:
        ends: The number of operations up to the end of each result; empty if the results are not divided.
    """

    results: list[Result] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, result: Result, operations: Iterable[Operation] = ()) -> None:
        """Add a result and the operations that implement it, which are executed together."""
        self.operations.extend(operations)
        self.results.append(result)
        self.ends.append(len(self.operations))

    def parts(self, bytes_max: int) -> Iterator[tuple[int, list[Operation]]]:
        """Divide the operations between results, into parts of at most `bytes_max`; a larger result is its own part.

        Yields:
            The number of the first result that the part does not include, and the operations of the part.
        """
        sizes = [operation_bytes(operation) for operation in self.operations]
        if not self.ends or sum(sizes) <= bytes_max:
            yield len(self.results), self.operations
            return
        first = last = size = 0
        # What follows the last result, if anything, is divided like a result.
        for done, end in enumerate([*self.ends, len(self.operations)]):
            added = sum(sizes[last:end])
            if first < last and size + added > bytes_max:
                yield min(done, len(self.results)), self.operations[first:last]
                first, size = last, 0
            last, size = end, size + added
        yield len(self.results), self.operations[first:last]


def fresh_topic_id(image: MetadataImage, draw: Callable[[], UUID]) -> UUID:
    """Return an id that no topic has, nor had one that was deleted some days ago."""
    while (topic_id := draw()) in image.topic_names or image.is_deleted(topic_id):
        pass
    return topic_id


def plan_create_topics(
    image: MetadataImage,
    candidates: Candidates,
    config: BrokerConfig,
    topics: Sequence[NewTopic],
    draw_topic_id: Callable[[], UUID],
    draw_start: Callable[[int], int],
    count_mutations: CountMutations = unlimited,
) -> Plan[TopicResult]:
    """Create topics, each accepted or rejected separately; a name listed twice is rejected once.

    Args:
        candidates: The brokers that can lead; the others that are registered get replicas if these are too few.
        config: Source of the default numbers of partitions and replicas.
        draw_topic_id: Returns an unused topic id.
        draw_start: Returns a number below its argument: the start of the placement of a topic.
        count_mutations: Applies the client's quota.
    """
    plan: Plan[TopicResult] = Plan()
    asked = Counter(topic.name for topic in topics)
    budget = _PartitionBudget(image)
    collisions = dict(image.collision_names)
    for name, topic in {topic.name: topic for topic in topics}.items():
        try:
            if asked[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Topic '{name[:64]}' is listed twice in the request.")
            _check_new_name(image, collisions, name)
            replicas = _new_assignment(image, candidates, config, topic, draw_start)
            configs = _new_configs(config, topic)
            budget.take(len(replicas))
            count_mutations(len(replicas))
        except KafkaError as error:
            plan.add(TopicResult(name, error))
            continue
        collisions[collision_key(name)] = name
        topic_id = draw_topic_id()
        partitions = tuple(_first_state(candidates, brokers) for brokers in replicas)
        operations = create_topic(name, topic_id, partitions)
        if configs:
            operations.append(Create(paths.topic_config_path(name), paths.encode_config(configs)))
        plan.add(TopicResult(name, topic=TopicImage(name, topic_id, partitions, configs)), operations)
    return plan


TOMBSTONE_MS: Final = 7 * 24 * 3600 * 1000
"""Time for which a deleted topic is known as deleted. A broker that is away for longer keeps its logs, set aside."""

TOMBSTONES_REMOVED_MAX: Final = 100
"""Tombstones removed with one deletion, which is one change of the metadata."""


def plan_delete_topics(
    image: MetadataImage,
    config: BrokerConfig,
    topics: Sequence[str | UUID],
    now_ms: int,
    count_mutations: CountMutations = unlimited,
) -> Plan[DeleteResult]:
    """Delete topics by name or id; a topic listed twice is rejected once.

    Each leaves a tombstone, by which brokers that are away delete its logs when they return; old ones are removed.
    """
    plan: Plan[DeleteResult] = Plan()
    found = [image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic) for topic in topics]
    names = Counter(topic.name for topic in found if topic is not None)
    answered: set[str | UUID] = set()
    for asked, topic in zip(topics, found, strict=True):
        key = asked if topic is None else topic.name
        if key in answered:
            continue
        answered.add(key)
        name, topic_id = (asked, None) if isinstance(asked, str) else (None, asked)
        if topic is not None:
            name, topic_id = topic.name, topic.topic_id
        try:
            if not config.delete_topic_enable:
                raise KafkaError(
                    ErrorCode.topic_deletion_disabled, "Topics are not deleted: delete.topic.enable is false."
                )
            if topic is None:
                raise _unknown_topic(asked)
            if names[topic.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Topic '{topic.name}' is listed twice in the request.")
            _check_not_internal(topic.name, "deleted")
            count_mutations(len(topic.partitions))
        except KafkaError as error:
            plan.add(DeleteResult(name, topic_id, error))
            continue
        operations = delete_topic(topic.name, len(topic.partitions))
        operations.append(Create(paths.deleted_topic_path(topic.topic_id), paths.encode_deleted_topic(now_ms)))
        if topic.configs:
            operations.append(Delete(paths.topic_config_path(topic.name)))
        plan.add(DeleteResult(name, topic_id), operations)
    if plan.operations:
        plan.operations.extend(_expired_tombstones(image, now_ms))
    return plan


def _expired_tombstones(image: MetadataImage, now_ms: int) -> list[Delete]:
    expired = [each for each, deleted_ms in image.deleted_topics.items() if now_ms - deleted_ms >= TOMBSTONE_MS]
    return [Delete(f"{paths.DELETED_TOPICS}/{each}") for each in expired[:TOMBSTONES_REMOVED_MAX]]


def plan_create_partitions(
    image: MetadataImage,
    candidates: Candidates,
    requests: Sequence[NewPartitions],
    draw_start: Callable[[int], int],
    count_mutations: CountMutations = unlimited,
) -> Plan[TopicResult]:
    """Add partitions to topics, each accepted or rejected separately; existing partitions are unchanged."""
    plan: Plan[TopicResult] = Plan()
    asked = Counter(request.name for request in requests)
    budget = _PartitionBudget(image)
    for name, request in {request.name: request for request in requests}.items():
        try:
            if asked[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Topic '{name[:64]}' is listed twice in the request.")
            topic = image.topic(name)
            if topic is None:
                raise _unknown_topic(name)
            _check_not_internal(name, "given further partitions")
            added = _added_assignment(image, candidates, topic, request, draw_start)
            budget.take(len(added))
            count_mutations(len(added))
        except KafkaError as error:
            plan.add(TopicResult(name, error))
            continue
        partitions = topic.partitions + tuple(_first_state(candidates, brokers) for brokers in added)
        plan.add(
            TopicResult(name, topic=TopicImage(name, topic.topic_id, partitions, topic.configs)),
            change_topic(name, topic.topic_id, topic.partitions, partitions),
        )
    return plan


class _PartitionBudget:
    """The number of partitions that one request may still add."""

    def __init__(self, image: MetadataImage) -> None:
        self._in_cluster = sum(len(topic.partitions) for topic in image.topics.values())
        self._in_request = 0

    def take(self, count: int) -> None:
        """Count new partitions; KafkaError(policy_violation) above a limit."""
        if self._in_request + count > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"One request may add {MAX_PARTITIONS_PER_REQUEST} partitions at most; split it.",
            )
        if self._in_cluster + self._in_request + count > MAX_PARTITIONS_PER_CLUSTER:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"The cluster has {self._in_cluster} partitions and may have {MAX_PARTITIONS_PER_CLUSTER} at most.",
            )
        self._in_request += count


def _check_new_name(image: MetadataImage, collisions: Mapping[str, str], name: str) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, problem)
    if name in image.topics:
        raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    other = collisions.get(collision_key(name))
    if other is not None:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{name}' collides with topic '{other}': metrics do not distinguish names that differ only in "
            "'.' and '_'.",
        )


def _new_assignment(
    image: MetadataImage,
    candidates: Candidates,
    config: BrokerConfig,
    topic: NewTopic,
    draw_start: Callable[[int], int],
) -> list[tuple[int, ...]]:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise KafkaError(
                ErrorCode.invalid_request,
                "A manual assignment replaces the numbers of partitions and replicas: both must be -1.",
            )
        count = len(topic.assignments)
        if set(topic.assignments) != set(range(count)):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"The partitions of a manual assignment must be 0 to {count - 1}, each once.",
            )
        replicas = [tuple(topic.assignments[partition]) for partition in range(count)]
        _check_assignment(image, candidates, replicas, first_partition=0, replication_factor=len(replicas[0]))
        return replicas
    partitions = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.invalid_partitions, f"The number of partitions must be 1 or more (or -1), not {partitions}."
        )
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"One request may add {MAX_PARTITIONS_PER_REQUEST} partitions at most, not {partitions}.",
        )
    replication_factor = (
        config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor must be 1 or more (or -1), not {replication_factor}.",
        )
    return _place(image, candidates, replication_factor, range(partitions), draw_start)


def _added_assignment(
    image: MetadataImage,
    candidates: Candidates,
    topic: TopicImage,
    request: NewPartitions,
    draw_start: Callable[[int], int],
) -> list[tuple[int, ...]]:
    current = len(topic.partitions)
    if request.count == current:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic '{topic.name}' has {current} partition(s) already.")
    if request.count < current:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"Topic '{topic.name}' has {current} partition(s); {request.count} would not be an increase.",
        )
    added = request.count - current
    if added > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"One request may add {MAX_PARTITIONS_PER_REQUEST} partitions at most, not {added}.",
        )
    if request.assignments is None:
        return _place(image, candidates, topic.replication_factor, range(current, request.count), draw_start)
    if len(request.assignments) != added:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{added} partition(s) are added, but the manual assignment has {len(request.assignments)}.",
        )
    replicas = [tuple(brokers) for brokers in request.assignments]
    _check_assignment(image, candidates, replicas, first_partition=current, replication_factor=topic.replication_factor)
    return replicas


def _place(
    image: MetadataImage,
    candidates: Candidates,
    replication_factor: int,
    partitions: range,
    draw_start: Callable[[int], int],
) -> list[tuple[int, ...]]:
    brokers = {broker_id: image.registrations[broker_id].rack for broker_id in sorted(image.registrations)}
    away = {broker_id for broker_id in brokers if not _can_lead(candidates, broker_id)}
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor {replication_factor} cannot be reached: only {len(brokers)} broker(s) are "
            f"registered, of which {len(image.brokers)} are alive.",
        )
    if len(away) == len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"No broker can lead a new partition: all {len(brokers)} that are registered are away or shut down.",
        )
    return assign_replicas(brokers, replication_factor, partitions, draw_start(len(brokers) - len(away)), away)


def _can_lead(candidates: Candidates, broker_id: int) -> bool:
    return candidates.is_candidate(broker_id, "")


def _first_state(candidates: Candidates, brokers: tuple[int, ...]) -> PartitionImage:
    """Return the initial state of a partition; brokers that are away or shut down join its ISR when they are back."""
    state = first_partition_state(brokers)
    live = tuple(broker for broker in brokers if _can_lead(candidates, broker))
    return state if live == brokers else replace(state, leader=live[0], isr=live)


def _check_assignment(
    image: MetadataImage,
    candidates: Candidates,
    replicas: Sequence[tuple[int, ...]],
    *,
    first_partition: int,
    replication_factor: int,
) -> None:
    def refused(partition: int, why: str) -> KafkaError:
        return KafkaError(ErrorCode.invalid_replica_assignment, f"The assignment of partition {partition} {why}.")

    for partition, brokers in enumerate(replicas, first_partition):
        if not brokers:
            raise refused(partition, "names no broker")
        if len(set(brokers)) != len(brokers):
            raise refused(partition, "names a broker twice")
        unknown = [broker for broker in brokers if broker not in image.registrations]
        if unknown:
            raise refused(partition, f"names broker {unknown[0]}, which is not registered")
        if not any(_can_lead(candidates, broker) for broker in brokers):
            raise refused(partition, "names only brokers that are away or shut down")
        if len(brokers) != replication_factor:
            raise refused(partition, f"has {len(brokers)} replica(s); the others have {replication_factor}")


def _new_configs(config: BrokerConfig, topic: NewTopic) -> dict[str, str]:
    configs = {}
    for name, value in topic.configs.items():
        if value is None:
            raise KafkaError(ErrorCode.invalid_config, f"Topic config {name[:200]!r} has no value.")
        configs[name] = value
    try:
        check_topic_overrides(configs, config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
    return configs


def _check_not_internal(name: str, done: str) -> None:
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.invalid_request, f"Topic '{name}' holds the state of the brokers and cannot be {done}."
        )


def _unknown_topic(topic: Any) -> KafkaError:
    if isinstance(topic, UUID):
        return KafkaError(ErrorCode.unknown_topic_id, "This server does not host a topic of this id.")
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{str(topic)[:249]}' does not exist.")
