"""DeleteTopics: deletes topics with all their records, by name or (version 6) by id."""

from typing import Any
from uuid import UUID

from headwater.logtier.controller.commands import DeleteResult
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.quotas.mutation_quota import Mutations
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 20
VERSIONS = (1, 6)
#: The controller answers.
IS_FORWARDED = True

_BY_ID_FROM = 6
_STRICT_QUOTA_FROM = 5


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Delete the topics; their files are removed after `file.delete.delay.ms`."""
    topics: list[str | UUID] = []
    refused = []
    if context.api_version < _BY_ID_FROM:
        topics += request.topic_names
    else:
        for topic in request.topics:
            if topic.name is not None and topic.topic_id:
                refused.append(_result(topic.name, topic.topic_id, "Specify a topic's name or its id, not both."))
            elif topic.name is not None:
                topics.append(topic.name)
            elif topic.topic_id:
                topics.append(topic.topic_id)
            else:
                refused.append(_result(None, None, "Specify a topic's name or its id."))
    denied = _denied(topics, context)
    refused += denied.values()
    mutations = Mutations(context, _STRICT_QUOTA_FROM)
    results = await context.services.controller.delete_topics(
        [topic for topic in topics if topic not in denied], count_mutations=mutations.count
    )
    mutations.throttle()
    return {"responses": [*refused, *(_answer(result, by_id=context.api_version >= _BY_ID_FROM) for result in results)]}


def _denied(topics: list[str | UUID], context: RequestContext) -> dict[str | UUID, dict[str, Any]]:
    """Return the errors of topics that the client may not delete, without revealing whether a topic exists."""
    if context.is_authorized(AclOperation.delete, ResourceType.cluster, log_denied=False):
        return {}
    image = context.services.metadata.image
    denied: dict[str | UUID, dict[str, Any]] = {}
    for asked in dict.fromkeys(topics):
        name = asked if isinstance(asked, str) else image.topic_names.get(asked)
        if name is None:
            continue
        is_describable = context.is_authorized(AclOperation.describe, ResourceType.topic, name)
        is_unknown = is_describable and name not in image.topics
        if is_unknown or context.is_authorized(AclOperation.delete, ResourceType.topic, name):
            continue
        topic_id = None if isinstance(asked, str) else asked
        is_told = is_describable or topic_id is None
        denied[asked] = _result(
            name if is_told else None, topic_id, "Topic authorization failed.", ErrorCode.topic_authorization_failed
        )
    return denied


def _answer(result: DeleteResult, *, by_id: bool) -> dict[str, Any]:
    name = result.name if by_id or result.name is not None else ""
    if result.error is None:
        return _result(name, result.topic_id, None, ErrorCode.none)
    return _result(name, result.topic_id, result.error.message, result.error.code)


def _result(
    name: str | None, topic_id: UUID | None, message: str | None, code: ErrorCode = ErrorCode.invalid_request
) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
