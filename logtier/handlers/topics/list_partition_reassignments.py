"""ListPartitionReassignments: the reassignments under way (KIP-455)."""

from collections.abc import Iterator
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation

API_KEY = 46
VERSIONS = (0, 0)
#: The controller answers.
IS_FORWARDED = True


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Return the partitions with a reassignment, of all (null) or of those asked for; unknown ones are no error."""
    context.require_cluster(AclOperation.describe)
    topics = []
    for topic, indexes in _asked(request, context.services.metadata.image):
        partitions = [_partition(topic, index) for index in indexes if topic.partitions[index].reassignment]
        if partitions:
            topics.append({"name": topic.name, "partitions": partitions})
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics}


def _asked(request: Any, image: MetadataImage) -> Iterator[tuple[TopicImage, list[int]]]:
    if request.topics is None:
        for topic in image.topics.values():
            yield topic, list(range(len(topic.partitions)))
        return
    for asked in request.topics:
        known = image.topic(asked.name)
        if known is not None:
            count = len(known.partitions)
            yield known, [index for index in dict.fromkeys(asked.partition_indexes) if 0 <= index < count]


def _partition(topic: TopicImage, index: int) -> dict[str, Any]:
    state = topic.partitions[index]
    change = state.reassignment
    assert change is not None
    return {
        "partition_index": index,
        "replicas": state.replicas,
        "adding_replicas": change.adding,
        "removing_replicas": change.removing,
    }
