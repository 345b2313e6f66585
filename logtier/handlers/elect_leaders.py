"""ElectLeaders: have preferred, or any, replicas elected (KIP-183, KIP-460).

With one replica a partition has its only possible leader, unless that one is offline.
"""

from collections.abc import Iterator
from typing import Any

from logtier.handlers.context import RequestContext
from logtier.metadata.image import MetadataImage, PartitionImage
from logtier.protocol.errors import ErrorCode
from logtier.security.operations import AclOperation, ResourceType

API_KEY = 43
VERSIONS = (0, 2)

_PREFERRED = 0
_UNCLEAN = 1
_NO_LEADER = -1

#: The first version that says which election; before it was the preferred one.
_TYPED_FROM = 1

_Outcome = tuple[ErrorCode, str | None]


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Say of each partition why no election took place; of all partitions (null) only those that need one."""
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
        asked = [(name, tuple(_without_leader(image, name))) for name in image.topics]
    else:
        asked = []
    return {
        "error_code": ErrorCode.none if refusal is None else refusal[0],
        "replica_election_results": [
            {
                "topic": name,
                "partition_result": [
                    _result(index, refusal or _elect(image, name, index, election_type)) for index in indexes
                ],
            }
            for name, indexes in asked
        ],
    }


def _without_leader(image: MetadataImage, name: str) -> Iterator[int]:
    for index, partition in enumerate(image.topics[name].partitions):
        if partition.leader == _NO_LEADER:
            yield index


def _elect(image: MetadataImage, name: str, index: int, election_type: int) -> _Outcome:
    topic = image.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    partition: PartitionImage = topic.partitions[index]
    if partition.leader != _NO_LEADER:
        return ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    if election_type == _PREFERRED:
        return ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
    return ErrorCode.eligible_leaders_not_available, "No replica of the partition can lead it."


def _result(index: int, outcome: _Outcome) -> dict[str, Any]:
    return {"partition_id": index, "error_code": outcome[0], "error_message": outcome[1]}
