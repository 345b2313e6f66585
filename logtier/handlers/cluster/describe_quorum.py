"""DescribeQuorum: the metadata quorum and its progress (KIP-595, KIP-836, KIP-853).

The controller is a quorum of one: leader and only voter, without observers. Its log is the journal of the metadata
store. A change is committed once it is durable, so that log end offset and high watermark are equal.
"""

from collections.abc import Iterable
from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 55
VERSIONS = (0, 2)
#: The controller answers.
IS_FORWARDED = True

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0

_MESSAGES: Final = {
    ErrorCode.unknown_topic_or_partition: "This server does not host this topic-partition.",
    ErrorCode.not_leader_or_follower: "This broker is not the controller, or not registered yet.",
}


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe the metadata partition; a request with any other partition gets an error for each of its partitions.

    Endpoints are the listeners of the controller's broker, since the controller has none of its own.
    """
    context.require_cluster(AclOperation.describe)
    if not _is_of_metadata(request.topics):
        return _answer([_refused(topic, ErrorCode.unknown_topic_or_partition) for topic in request.topics])
    services = context.services
    image = services.metadata.image
    own = image.brokers.get(image.controller_id)
    # A broker may be elected before its registration is known, at its start and in a new session.
    if own is None or own.id != services.metadata.config.node_id:
        return _answer([_refused(topic, ErrorCode.not_leader_or_follower) for topic in request.topics])
    now_ms = services.clock.now_ms()
    end_offset = services.controller.metadata_end_offset
    voter = {
        "replica_id": image.controller_id,
        "replica_directory_id": uuids.from_text(services.replica_manager.log_dirs.metadata_directory_id),
        "log_end_offset": end_offset,
        # A leader has always fetched its whole log.
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": METADATA_PARTITION,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": image.controller_id,
        "leader_epoch": services.controller.epoch,
        "high_watermark": end_offset,
        "current_voters": [voter],
        "observers": [],
    }
    node = {
        "node_id": image.controller_id,
        "listeners": [
            {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port} for endpoint in own.endpoints
        ],
    }
    return _answer([{"topic_name": METADATA_TOPIC, "partitions": [partition]}], [node])


def _is_of_metadata(topics: Any) -> bool:
    named = [(topic.topic_name, part.partition_index) for topic in topics for part in topic.partitions]
    return len(topics) == 1 and named == [(METADATA_TOPIC, METADATA_PARTITION)]


def _answer(topics: Iterable[dict[str, Any]], nodes: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics, "nodes": nodes}


def _refused(topic: Any, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "topic_name": topic.topic_name,
        "partitions": [
            {
                "partition_index": part.partition_index,
                "error_code": error_code,
                "error_message": _MESSAGES[error_code],
                "leader_id": NO_BROKER,
                "leader_epoch": -1,
                "high_watermark": -1,
                "current_voters": [],
                "observers": [],
            }
            for part in topic.partitions
        ],
    }
