"""AlterPartitionReassignments: moves partitions to other brokers, or cancels a move (KIP-455).

A single-node cluster has no other brokers: an assignment equals the present one, or lists an unknown broker.
"""

from collections.abc import Sequence
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 45
VERSIONS = (0, 1)
#: The controller answers.
IS_FORWARDED = True


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Decide on each partition separately."""
    context.require_cluster(AclOperation.alter)
    image = context.services.metadata.image
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _partition(image, topic.name, partition, may_change_factor) for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _partition(image: MetadataImage, name: str, wanted: Any, may_change_factor: bool) -> dict[str, Any]:
    error: KafkaError | None = None
    try:
        _reassign(image, name, wanted.partition_index, wanted.replicas, may_change_factor)
    except KafkaError as refusal:
        error = refusal
    return {
        "partition_index": wanted.partition_index,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message or None,
    }


def _reassign(
    image: MetadataImage, name: str, index: int, replicas: Sequence[int] | None, may_change_factor: bool
) -> None:
    topic = image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    if not replicas:
        raise _invalid("an empty replica list.")
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise _invalid(f"broker {broker}, but no such broker is registered.")
        if replicas.count(broker) > 1:
            raise _invalid(f"the broker {broker} more than once.")
    current = topic.partitions[index].replicas
    if len(replicas) != len(current) and not may_change_factor:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(current)} to {len(replicas)}.",
        )
    if tuple(replicas) != tuple(current):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, "Partitions cannot be moved between brokers by this release."
        )


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {what}")
