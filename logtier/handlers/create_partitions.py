"""CreatePartitions: grow topics. Records stay where they are, so keys may land elsewhere from then on."""

from typing import Any

from logtier.controller.commands import NewPartitions
from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode

API_KEY = 37
VERSIONS = (0, 3)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Grow the topics of the request, each by itself; every one of them gets its result."""
    requests = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
    ]
    results = await context.services.controller.create_partitions(requests, validate_only=request.validate_only)
    return {
        "results": [
            {
                "name": result.name,
                "error_code": ErrorCode.none if result.error is None else result.error.code,
                "error_message": None if result.error is None else result.error.message,
            }
            for result in results
        ]
    }
