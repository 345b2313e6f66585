"""AlterPartitionReassignments: moves partitions to other brokers, or cancels a move (KIP-455; version 1: KIP-860)."""

from collections.abc import Iterator
from typing import Any

from headwater.logtier.controller.reassignments import ReassignmentResult, WantedReplicas
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation

API_KEY = 45
VERSIONS = (0, 1)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Begin, replace or cancel (null replicas) the reassignment of each partition separately."""
    context.require_cluster(AclOperation.alter)
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    asked = [
        WantedReplicas(
            TopicPartition(topic.name, partition.partition_index),
            None if partition.replicas is None else tuple(int(each) for each in partition.replicas),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = iter(await context.services.controller.alter_reassignments(asked, may_change_factor=may_change_factor))
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": [
            {"name": topic.name, "partitions": [_partition(results) for _ in topic.partitions]}
            for topic in request.topics
        ],
    }


def _partition(results: Iterator[ReassignmentResult]) -> dict[str, Any]:
    result = next(results)
    error = result.error
    return {
        "partition_index": result.topic_partition.partition,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message or None,
    }
