"""CreateTopics: creates topics, each accepted or rejected separately; from version 5 on responses list configs."""

from typing import Any

from headwater.logtier.config import TOPIC_CONFIGS
from headwater.logtier.controller.commands import NewTopic, TopicResult
from headwater.logtier.handlers.configs.config_entries import topic_config_entry
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.quotas.mutation_quota import Mutations
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 19
VERSIONS = (2, 7)
#: The controller answers.
IS_FORWARDED = True

_STRICT_QUOTA_FROM = 6


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Create the topics, which exist and have leaders when the response is sent."""
    topics = [
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments},
            {config.name: config.value for config in topic.configs},
        )
        for topic in request.topics
    ]
    on_any = context.is_authorized(AclOperation.create, ResourceType.cluster, log_denied=False)
    denied = {
        topic.name
        for topic in request.topics
        if not on_any and not context.is_authorized(AclOperation.create, ResourceType.topic, topic.name)
    }
    twice = {
        topic.name
        for topic in request.topics
        if len({assignment.partition_index for assignment in topic.assignments}) != len(topic.assignments)
        or len({config.name for config in topic.configs}) != len(topic.configs)
    }
    mutations = Mutations(context, _STRICT_QUOTA_FROM)
    results = await context.services.controller.create_topics(
        [topic for topic in topics if topic.name not in twice and topic.name not in denied],
        validate_only=request.validate_only,
        count_mutations=mutations.count,
    )
    mutations.throttle()
    refused = [
        _error(name, ErrorCode.invalid_request, "A partition or a config is listed twice.") for name in twice - denied
    ]
    refused += [_error(name, ErrorCode.topic_authorization_failed, "Authorization failed.") for name in sorted(denied)]
    return {"topics": [*(_result(result, context) for result in results), *refused]}


def _result(result: TopicResult, context: RequestContext) -> dict[str, Any]:
    if result.error is not None:
        return _error(result.name, result.error.code, result.error.message)
    topic = result.topic
    assert topic is not None, "a result holds an error or a topic"
    if not context.is_authorized(AclOperation.describe_configs, ResourceType.topic, topic.name, log_denied=False):
        return {
            "name": result.name,
            "topic_id": topic.topic_id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "topic_config_error_code": ErrorCode.topic_authorization_failed,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }
    entries = [
        topic_config_entry(definition, topic, context.services.metadata) for definition in TOPIC_CONFIGS.values()
    ]
    return {
        "name": result.name,
        "topic_id": topic.topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": False,
                "config_source": entry.source,
                "is_sensitive": entry.is_sensitive,
            }
            for entry in entries
        ],
    }


def _error(name: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"name": name, "topic_id": None, "error_code": code, "error_message": message, "configs": []}
