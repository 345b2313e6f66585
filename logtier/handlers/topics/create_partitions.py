"""CreatePartitions: adds partitions to topics. Records are not moved, so that keys may map to other partitions."""

from typing import Any

from headwater.logtier.controller.commands import NewPartitions
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.quotas.mutation_quota import Mutations
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 37
VERSIONS = (0, 3)
#: The controller answers.
IS_FORWARDED = True

_STRICT_QUOTA_FROM = 3


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Add partitions to each topic separately; every topic gets a result."""
    denied = {
        topic.name
        for topic in request.topics
        if not context.is_authorized(AclOperation.alter, ResourceType.topic, topic.name)
    }
    requests = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
        if topic.name not in denied
    ]
    mutations = Mutations(context, _STRICT_QUOTA_FROM)
    results = await context.services.controller.create_partitions(
        requests, validate_only=request.validate_only, count_mutations=mutations.count
    )
    mutations.throttle()
    return {
        "results": [
            {
                "name": result.name,
                "error_code": ErrorCode.none if result.error is None else result.error.code,
                "error_message": None if result.error is None else result.error.message,
            }
            for result in results
        ]
        + [
            {
                "name": name,
                "error_code": ErrorCode.topic_authorization_failed,
                "error_message": "Topic authorization failed.",
            }
            for name in sorted(denied)
        ]
    }
