"""Configs of brokers, topics and groups: a table each of Kafka's names, types, defaults and limits, with typed access.

The entry points are `BrokerConfig.from_properties`, `TopicConfig.resolve` and `ConsumerGroupConfig.resolve`;
`ConfigError` is the only error.
"""

from headwater.logtier.config.broker import BROKER_CONFIGS, BrokerConfig
from headwater.logtier.config.definition import ConfigDef, ConfigError, ConfigType, render
from headwater.logtier.config.group import GROUP_CONFIGS, ConsumerGroupConfig, check_group_overrides
from headwater.logtier.config.listeners import Endpoint
from headwater.logtier.config.topic import (
    TOPIC_CONFIGS,
    TopicConfig,
    broker_default,
    check_topic_overrides,
    parse_topic_config,
)

__all__ = [
    "BROKER_CONFIGS",
    "GROUP_CONFIGS",
    "TOPIC_CONFIGS",
    "BrokerConfig",
    "ConfigDef",
    "ConfigError",
    "ConfigType",
    "ConsumerGroupConfig",
    "Endpoint",
    "TopicConfig",
    "broker_default",
    "check_group_overrides",
    "check_topic_overrides",
    "parse_topic_config",
    "render",
]
