"""Metadata: brokers, and topics with their partitions and leaders; creates missing topics if that is permitted.

- Topics by name: the listed ones, all for null (version 1 on) or for an empty list (version 0).
- Topics by id (version 12 on; before, INVALID_REQUEST for every topic): UNKNOWN_TOPIC_ID for an unknown id, which is
  never created.
- A missing topic is created if the request allows it (a field from version 4 on, implied before) and
  `auto.create.topics.enable` is set; the response then contains it. While the controller does not answer, the error is
  LEADER_NOT_AVAILABLE: after REQUEST_TIMED_OUT librdkafka would fail all records of the topic. Clients of versions 0
  and 1 expect UNKNOWN_TOPIC_OR_PARTITION from the request that creates a topic, as in Kafka, and retry.

A response without errors depends on the image alone, and is cached until the image changes: encoding 1,000 partitions
takes milliseconds. With an authorizer it is cached per principal and host.

A client without DESCRIBE on a topic cannot find out whether it exists: by name the error is TOPIC_AUTHORIZATION_FAILED
in both cases, and a list of all topics omits it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.quotas.mutation_quota import NEVER_STRICT, Mutations
from headwater.logtier.handlers.security.authorized_operations import (
    NOT_ASKED,
    authorized_operations,
    cluster_authorized_operations,
)
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS, topic_name_problem
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.network import Part
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 3
VERSIONS = (0, 13)

_NULL_IS_ALL_FROM = 1
#: From this version on topics may be requested by id, and are returned without a name; requests have the field from
#: version 10 on.
_IDS_FROM = 12
#: From this version on a response begins with the throttle time.
_THROTTLE_TIME_FROM = 3
#: From this version on the response contains a topic created by its request.
_TELLS_CREATED_FROM = 2
_THROTTLE_TIME = struct.Struct(">i")

_DENIED = KafkaError(ErrorCode.topic_authorization_failed)
#: What becomes of a topic is not decided yet.
_UNDECIDED = (ErrorCode.request_timed_out, ErrorCode.not_controller)
_NO_LEADER_YET = KafkaError(ErrorCode.leader_not_available)

#: Largest request with a cached response: producers and consumers of a few topics repeat their requests.
_KEPT_TOPICS_MAX = 32


@dataclass(frozen=True, slots=True)
class _Question:
    """The input of a response besides the image. `topics` are names and ids, each once; None is all."""

    version: int
    topics: tuple[str | UUID, ...] | None
    topic_operations: bool
    cluster_operations: bool


async def handle(request: Any, context: RequestContext) -> list[Part] | dict[str, Any]:
    """Answer from the image, after creating missing topics if allowed."""
    metadata = context.services.metadata
    question = _question(request, context.api_version)
    refused: dict[str | UUID, KafkaError] = {}
    if question.topics is not None:
        refused = _denied(question.topics, context)
        missing = [
            name
            for name in question.topics
            if isinstance(name, str) and name not in metadata.image.topics and name not in refused
        ]
        if missing:
            refused |= await _create(missing, request, context)
    image = metadata.image
    if context.is_slice:
        return _tree(image, question, refused, context)

    def encode() -> bytes:
        return messages.encode_response(API_KEY, question.version, _tree(image, question, refused, context))

    who = None if context.services.authorizer is None else (context.principal, context.client_host)
    # Offline replicas are not part of the image.
    is_kept = not refused and not context.services.replica_manager.has_offline and _is_kept(image, question)
    body = metadata.derived((API_KEY, question, who, context.listener.name), encode) if is_kept else encode()
    throttle_ms = context.finish_throttling()
    if throttle_ms and question.version >= _THROTTLE_TIME_FROM:
        body = _THROTTLE_TIME.pack(throttle_ms) + body[_THROTTLE_TIME.size :]
    return [messages.response_prefix(API_KEY, question.version, context.correlation_id, len(body)), body]


def _question(request: Any, version: int) -> _Question:
    topics = request.topics
    wanted: tuple[str | UUID, ...] | None = None
    if topics or (topics is not None and version >= _NULL_IS_ALL_FROM):
        wanted = tuple(dict.fromkeys(_name_or_id(topic, version) for topic in topics))
    return _Question(
        version,
        wanted,
        getattr(request, "include_topic_authorized_operations", False),
        getattr(request, "include_cluster_authorized_operations", False),
    )


def _name_or_id(topic: Any, version: int) -> str | UUID:
    topic_id: UUID | None = getattr(topic, "topic_id", None)
    if topic_id:
        if version < _IDS_FROM:
            raise KafkaError(ErrorCode.invalid_request, f"topic ids are supported from version {_IDS_FROM} on")
        return topic_id
    name: str | None = topic.name
    if name is None:
        raise KafkaError(ErrorCode.invalid_request, "a topic has neither a name nor an id")
    return name


def _is_kept(image: MetadataImage, question: _Question) -> bool:
    """Whether the response is cached: all topics, or a few that all exist (unknown names are unlimited in number)."""
    topics = question.topics
    if topics is None:
        return True
    return 0 < len(topics) <= _KEPT_TOPICS_MAX and all(_find(image, topic) is not None for topic in topics)


def _denied(topics: Sequence[str | UUID], context: RequestContext) -> dict[str | UUID, KafkaError]:
    """Return the topics that the client may not describe, without checking whether topics exist."""
    if context.services.authorizer is None:
        return {}
    names = context.services.metadata.image.topic_names
    denied: dict[str | UUID, KafkaError] = {}
    for topic in topics:
        name = topic if isinstance(topic, str) else names.get(topic)
        if name is not None and not context.is_authorized(AclOperation.describe, ResourceType.topic, name):
            denied[topic] = _DENIED
    return denied


def _may_create(name: str, context: RequestContext) -> bool:
    return context.is_authorized(AclOperation.create, ResourceType.cluster, log_denied=False) or context.is_authorized(
        AclOperation.create, ResourceType.topic, name
    )


async def _create(names: Sequence[str], request: Any, context: RequestContext) -> dict[str | UUID, KafkaError]:
    """Create missing topics if allowed; return the error of each topic that does not exist afterwards."""
    unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
    refused: dict[str | UUID, KafkaError] = {}
    creatable = []
    config = context.services.metadata.config
    allowed = getattr(request, "allow_auto_topic_creation", True) and config.auto_create_topics_enable
    for name in names:
        problem = topic_name_problem(name)
        if allowed and not _may_create(name, context):
            refused[name] = _DENIED
        elif problem is not None:
            refused[name] = KafkaError(ErrorCode.invalid_topic_exception, problem)
        elif allowed and name not in INTERNAL_TOPICS:
            creatable.append(NewTopic(name))
        else:
            # The brokers create internal topics themselves, with specific settings.
            refused[name] = unknown
    if creatable:
        mutations = Mutations(context, NEVER_STRICT)
        results = await context.services.changes.create_topics(creatable, count_mutations=mutations.count)
        mutations.throttle()
        for result in results:
            # Created by another request meanwhile, which is fine.
            if result.error is not None and result.error.code != ErrorCode.topic_already_exists:
                is_undecided = result.error.code in _UNDECIDED
                refused[result.name] = _NO_LEADER_YET if is_undecided else result.error
            elif context.api_version < _TELLS_CREATED_FROM:
                refused[result.name] = unknown
    return refused


def _find(image: MetadataImage, topic: str | UUID) -> TopicImage | None:
    return image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)


def _tree(
    image: MetadataImage, question: _Question, refused: dict[str | UUID, KafkaError], context: RequestContext
) -> dict[str, Any]:
    asked_topics: Sequence[str | UUID]
    if question.topics is None:
        asked_topics = [
            name
            for name in sorted(image.topics)
            if context.is_authorized(AclOperation.describe, ResourceType.topic, name, log_denied=False)
        ]
    else:
        asked_topics = question.topics
    topics = []
    for asked in asked_topics:
        topic = None if asked in refused else _find(image, asked)
        if topic is None:
            missing = _missing(asked, refused)
            if question.topic_operations and missing["error_code"] is ErrorCode.unknown_topic_or_partition:
                missing["topic_authorized_operations"] = authorized_operations(context, ResourceType.topic, str(asked))
            topics.append(missing)
        else:
            topics.append(_topic(topic, question.topic_operations, context))
    return {
        "brokers": [
            {"node_id": broker.id, "host": host, "port": port, "rack": broker.rack}
            for broker in image.brokers.values()
            for host, port in (broker.reached_by(context.listener.name),)
        ],
        "cluster_id": image.cluster_id,
        "controller_id": _takes_changes(context),
        "topics": topics,
        "cluster_authorized_operations": cluster_authorized_operations(context)
        if question.cluster_operations
        else NOT_ASKED,
    }


def _takes_changes(context: RequestContext) -> int:
    """The broker that takes administrative requests: between two controllers this one, which forwards to the next.

    Told of none, librdkafka asks once more, and then waits for a broker to come or go until its request has timed out.
    Kafka always names any broker (KIP-590). DescribeCluster and DescribeQuorum tell that there is no controller.
    """
    image = context.services.metadata.image
    if image.controller_id in image.brokers:
        return image.controller_id
    own_id = context.services.metadata.config.node_id
    return own_id if own_id in image.brokers else next(iter(image.brokers), image.controller_id)


def _missing(asked: str | UUID, refused: dict[str | UUID, KafkaError]) -> dict[str, Any]:
    error = refused.get(asked)
    if isinstance(asked, UUID):
        code = ErrorCode.unknown_topic_id if error is None else error.code
        return {"error_code": code, "name": None, "topic_id": asked, "partitions": []}
    code = ErrorCode.unknown_topic_or_partition if error is None else error.code
    return {"error_code": code, "name": asked, "topic_id": None, "partitions": []}


def _topic(topic: TopicImage, operations: bool, context: RequestContext) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            partition_answer(index, partition, context.services.replica_manager.offline_replicas(topic.name, index))
            for index, partition in enumerate(topic.partitions)
        ],
        "topic_authorized_operations": authorized_operations(context, ResourceType.topic, topic.name)
        if operations
        else NOT_ASKED,
    }


def partition_answer(index: int, partition: PartitionImage, offline_replicas: tuple[int, ...]) -> dict[str, Any]:
    """Return one partition: leader, replicas, in-sync and offline replicas.

    A replica in an offline folder is not reported as leader: producers choose other partitions, and tools list it.
    """
    leader = NO_BROKER if partition.leader in offline_replicas else partition.leader
    return {
        "error_code": ErrorCode.none if leader != NO_BROKER else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": offline_replicas,
    }
