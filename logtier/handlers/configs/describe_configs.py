"""DescribeConfigs: the configs of topics, groups, this broker and its loggers, with the source of each value."""

from collections.abc import Callable
from typing import Any

from headwater.logtier.config import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, ConfigDef
from headwater.logtier.controller.commands import ConfigResourceType
from headwater.logtier.controller.config_state import unsupported_resource
from headwater.logtier.handlers.configs.broker_loggers import describe_loggers
from headwater.logtier.handlers.configs.config_authorization import config_denial
from headwater.logtier.handlers.configs.config_entries import (
    ConfigEntry,
    broker_config_entry,
    cluster_default_entry,
    group_config_entry,
    topic_config_entry,
)
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.topic_names import topic_name_problem
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 32
VERSIONS = (1, 4)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe each resource; a resource that cannot be described has its own error."""
    metadata = context.services.metadata
    documented = getattr(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        result: dict[str, Any] = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [],
        }
        try:
            denial = config_denial(
                AclOperation.describe_configs, resource.resource_type, resource.resource_name, context
            )
            if denial is not None:
                raise denial
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                result["configs"] = describe_loggers(
                    resource.resource_name, metadata.static_config.node_id, resource.configuration_keys
                )
            else:
                result["configs"] = [
                    _config(entry, synonyms=request.include_synonyms, documented=documented)
                    for entry in _entries(resource, metadata)
                ]
        except KafkaError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        results.append(result)
    return {"results": results}


def _entries(resource: Any, metadata: MetadataCache) -> list[ConfigEntry]:
    name = resource.resource_name
    definitions: dict[str, ConfigDef]
    describe: Callable[[ConfigDef], ConfigEntry]
    if resource.resource_type == ConfigResourceType.TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.invalid_topic_exception, problem)
        topic = metadata.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")
        definitions = dict(TOPIC_CONFIGS)

        def describe(definition: ConfigDef) -> ConfigEntry:
            return topic_config_entry(definition, topic, metadata)

    elif resource.resource_type == ConfigResourceType.BROKER and name == "":
        # All brokers: only the dynamic defaults.
        defaults = metadata.image.broker_configs.get(paths.CLUSTER_DEFAULT, {})
        definitions = {config: BROKER_CONFIGS[config] for config in defaults if config in BROKER_CONFIGS}

        def describe(definition: ConfigDef) -> ConfigEntry:
            return cluster_default_entry(definition, metadata)

    elif resource.resource_type == ConfigResourceType.BROKER:
        node_id = metadata.static_config.node_id
        if name != str(node_id):
            raise KafkaError(
                ErrorCode.invalid_request, f"This is broker {node_id}; send the request to broker {name[:64]!r}."
            )
        definitions = {**BROKER_CONFIGS, **metadata.config.listener_definitions}

        def describe(definition: ConfigDef) -> ConfigEntry:
            return broker_config_entry(definition, metadata)

    elif resource.resource_type == ConfigResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Group name must not be empty.")
        definitions = dict(GROUP_CONFIGS)

        def describe(definition: ConfigDef) -> ConfigEntry:
            return group_config_entry(definition, name, metadata)

    else:
        raise unsupported_resource(resource.resource_type)
    # Null and, as in Kafka, an empty list request all configs.
    keys = set(resource.configuration_keys or definitions)
    return [describe(definition) for key, definition in definitions.items() if key in keys]


def _config(entry: ConfigEntry, *, synonyms: bool, documented: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.is_sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source} for synonym in entry.synonyms
        ]
        if synonyms
        else [],
        "config_type": entry.definition.type,
        "documentation": entry.definition.doc if documented else None,
    }
