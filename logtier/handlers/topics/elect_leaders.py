"""ElectLeaders: elects preferred, or any, replicas as leaders (KIP-183, KIP-460).

With one replica, the leader of a partition is fixed, unless the folder of its log is offline.
"""

from collections.abc import Iterator
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 43
VERSIONS = (0, 2)
#: The controller answers.
IS_FORWARDED = True

_PREFERRED = 0
_UNCLEAN = 1

#: The first version with an election type; earlier ones elect the preferred replica.
_TYPED_FROM = 1

_Outcome = tuple[ErrorCode, str | None]


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Return for each partition why no election took place; for all partitions (null) only those without a leader."""
    election_type = getattr(request, "election_type", _PREFERRED) if context.api_version >= _TYPED_FROM else _PREFERRED
    refusal: _Outcome | None = None
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster):
        refusal = (ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    elif election_type not in (_PREFERRED, _UNCLEAN):
        refusal = (ErrorCode.invalid_request, f"Unknown election type {election_type}")
    image = context.services.metadata.image
    if request.topic_partitions is not None:
        asked = [(each.topic, tuple(each.partitions)) for each in request.topic_partitions]
    elif refusal is None:
        asked = [(name, tuple(_without_leader(image.topics[name], context))) for name in image.topics]
    else:
        asked = []
    return {
        "error_code": ErrorCode.none if refusal is None else refusal[0],
        "replica_election_results": [
            {
                "topic": name,
                "partition_result": [
                    _result(index, refusal or _elect(name, index, election_type, context)) for index in indexes
                ],
            }
            for name, indexes in asked
        ],
    }


def _without_leader(topic: TopicImage, context: RequestContext) -> Iterator[int]:
    return (index for index in range(len(topic.partitions)) if not _has_leader(topic, index, context))


def _has_leader(topic: TopicImage, index: int, context: RequestContext) -> bool:
    leader = topic.partitions[index].leader
    return leader != NO_BROKER and leader not in context.services.replica_manager.offline_replicas(topic.name, index)


def _elect(name: str, index: int, election_type: int, context: RequestContext) -> _Outcome:
    topic = context.services.metadata.image.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    if _has_leader(topic, index, context):
        return ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    if election_type == _PREFERRED:
        return ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
    return ErrorCode.eligible_leaders_not_available, "No replica of the partition can lead it."


def _result(index: int, outcome: _Outcome) -> dict[str, Any]:
    return {"partition_id": index, "error_code": outcome[0], "error_message": outcome[1]}
