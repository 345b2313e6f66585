"""Metadata: brokers, and topics with their partitions and leaders; creates missing topics where both sides want that.

- Topics by name: those named, all for null (version 1 on) or for an empty list (version 0).
- Topics by id (version 10 on): UNKNOWN_TOPIC_ID where there is none; an id is never created.
- A missing topic is created when the request allows it (version 4 on says so, before it is implied) and
  `auto.create.topics.enable` is set; the answer then holds it.

An answer without errors depends on the image alone, so it is encoded once and sent to everybody who asks the same until
the image changes: encoding 1,000 partitions takes milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from logtier.controller.commands import NewTopic
from logtier.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from logtier.handlers.context import RequestContext
from logtier.metadata.image import MetadataImage, PartitionImage, TopicImage
from logtier.metadata.topic_names import INTERNAL_TOPICS, topic_name_problem
from logtier.protocol import messages
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.runtime.network import Part

API_KEY = 3
VERSIONS = (0, 13)

_NULL_IS_ALL_FROM = 1
_NULL_NAMES_FROM = 12

#: Longest request whose answer is kept: what producers and consumers of a few topics ask again and again.
_KEPT_TOPICS_MAX = 32


@dataclass(frozen=True, slots=True)
class _Question:
    """What an answer depends on beside the image. `topics` are names and ids, each once; None is all."""

    version: int
    topics: tuple[str | UUID, ...] | None
    topic_operations: bool
    cluster_operations: bool


async def handle(request: Any, context: RequestContext) -> list[Part]:
    """Answer from the image, after creating what is missing and wanted."""
    metadata = context.services.metadata
    question = _question(request, context.api_version)
    refused: dict[str, KafkaError] = {}
    if question.topics is not None:
        missing = [name for name in question.topics if isinstance(name, str) and name not in metadata.image.topics]
        if missing:
            refused = await _create(missing, request, context)
    image = metadata.image

    def encode() -> bytes:
        return messages.encode_response(API_KEY, question.version, _tree(image, question, refused))

    body = metadata.derived((API_KEY, question), encode) if _is_kept(image, question) else encode()
    return [messages.response_prefix(API_KEY, question.version, context.correlation_id, len(body)), body]


def _question(request: Any, version: int) -> _Question:
    topics = request.topics
    wanted: tuple[str | UUID, ...] | None = None
    if topics or (topics is not None and version >= _NULL_IS_ALL_FROM):
        wanted = tuple(dict.fromkeys(_name_or_id(topic) for topic in topics))
    return _Question(
        version,
        wanted,
        getattr(request, "include_topic_authorized_operations", False),
        getattr(request, "include_cluster_authorized_operations", False),
    )


def _name_or_id(topic: Any) -> str | UUID:
    topic_id: UUID | None = getattr(topic, "topic_id", None)
    if topic_id:
        return topic_id
    name: str | None = topic.name
    if name is None:
        raise KafkaError(ErrorCode.invalid_request, "a topic is asked for without a name and without an id")
    return name


def _is_kept(image: MetadataImage, question: _Question) -> bool:
    """Whether the answer is worth keeping: everything, or a few topics that all exist (others are without number)."""
    topics = question.topics
    if topics is None:
        return True
    return 0 < len(topics) <= _KEPT_TOPICS_MAX and all(_find(image, topic) is not None for topic in topics)


async def _create(names: Sequence[str], request: Any, context: RequestContext) -> dict[str, KafkaError]:
    """Create missing topics if that is wanted; why each that is not there after it is not."""
    unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
    refused = {}
    creatable = []
    allowed = getattr(request, "allow_auto_topic_creation", True) and context.services.config.auto_create_topics_enable
    for name in names:
        problem = topic_name_problem(name)
        if problem is not None:
            refused[name] = KafkaError(ErrorCode.invalid_topic_exception, problem)
        elif allowed and name not in INTERNAL_TOPICS:
            creatable.append(NewTopic(name))
        else:
            # The brokers make internal topics themselves, with settings of their own.
            refused[name] = unknown
    if creatable:
        for result in await context.services.controller.create_topics(creatable):
            # Somebody else was first: as good as our own.
            if result.error is not None and result.error.code != ErrorCode.topic_already_exists:
                refused[result.name] = result.error
    return refused


def _find(image: MetadataImage, topic: str | UUID) -> TopicImage | None:
    return image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)


def _tree(image: MetadataImage, question: _Question, refused: dict[str, KafkaError]) -> dict[str, Any]:
    asked_topics = sorted(image.topics) if question.topics is None else question.topics
    topics = []
    for asked in asked_topics:
        topic = _find(image, asked)
        topics.append(
            _missing(asked, refused, question.version) if topic is None else _topic(topic, question.topic_operations)
        )
    return {
        "brokers": [
            {"node_id": broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for broker in image.brokers.values()
        ],
        "cluster_id": image.cluster_id,
        "controller_id": image.controller_id,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if question.cluster_operations else NOT_ASKED,
    }


def _missing(asked: str | UUID, refused: dict[str, KafkaError], version: int) -> dict[str, Any]:
    if isinstance(asked, UUID):
        name = None if version >= _NULL_NAMES_FROM else ""
        return {"error_code": ErrorCode.unknown_topic_id, "name": name, "topic_id": asked, "partitions": []}
    error = refused.get(asked)
    code = ErrorCode.unknown_topic_or_partition if error is None else error.code
    return {"error_code": code, "name": asked, "topic_id": None, "partitions": []}


def _topic(topic: TopicImage, operations: bool) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(index, partition) for index, partition in enumerate(topic.partitions)],
        "topic_authorized_operations": TOPIC_OPERATIONS if operations else NOT_ASKED,
    }


def _partition(index: int, partition: PartitionImage) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none if partition.leader >= 0 else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": (),
    }
