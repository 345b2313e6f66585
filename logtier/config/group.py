"""Group configs (resource type GROUP): overrides of the broker's group configs for one consumer group."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.logtier.config.broker import BrokerConfig
from headwater.logtier.config.definition import (
    ConfigDef,
    ConfigError,
    ConfigType,
    at_least,
    config,
    config_defs,
    unknown_name,
)


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """All configs of one consumer group, typed; `resolve` creates it."""

    consumer_heartbeat_interval_ms: int = config(
        ConfigType.INT,
        5000,
        "Interval between heartbeats of the group's members.",
        at_least(1),
        broker_configs=("group.consumer.heartbeat.interval.ms",),
    )
    consumer_session_timeout_ms: int = config(
        ConfigType.INT,
        45_000,
        "Time without a heartbeat after which a member is removed from the group.",
        at_least(1),
        broker_configs=("group.consumer.session.timeout.ms",),
    )

    @staticmethod
    def resolve(overrides: Mapping[str, str], broker: BrokerConfig) -> "ConsumerGroupConfig":
        """Return the overrides of the group, completed by the broker's configs. Cached.

        An override beyond the broker's present limits is replaced by the limit.
        """
        return _resolve(tuple(sorted(overrides.items())), broker)


GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = config_defs(ConsumerGroupConfig)


def check_group_overrides(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check the overrides of a group.

    Raises:
        ConfigError: A name is unknown, or a value is invalid or beyond the broker's limits.
    """
    for name, text in overrides.items():
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise unknown_name("group config", name, GROUP_CONFIGS)
        value: Any = definition.parse(text)
        low, high = _limits(definition, broker)
        what = name.removeprefix("consumer.")
        if value < low:
            raise ConfigError(f"{name} must be greater than or equal to group.consumer.min.{what} ({low})")
        if value > high:
            raise ConfigError(f"{name} must be less than or equal to group.consumer.max.{what} ({high})")
    resolved = ConsumerGroupConfig.resolve(overrides, broker)
    if resolved.consumer_session_timeout_ms <= resolved.consumer_heartbeat_interval_ms:
        raise ConfigError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")


@functools.lru_cache(maxsize=1024)
def _resolve(overrides: tuple[tuple[str, str], ...], broker: BrokerConfig) -> ConsumerGroupConfig:
    values: dict[str, Any] = {
        definition.attribute: getattr(broker, f"group_{definition.attribute}") for definition in GROUP_CONFIGS.values()
    }
    for name, text in overrides:
        definition = GROUP_CONFIGS[name]
        low, high = _limits(definition, broker)
        value: Any = definition.parse(text)
        values[definition.attribute] = min(max(value, low), high)
    return ConsumerGroupConfig(**values)


def _limits(definition: ConfigDef, broker: BrokerConfig) -> tuple[int, int]:
    what = definition.attribute.removeprefix("consumer_")
    return getattr(broker, f"group_consumer_min_{what}"), getattr(broker, f"group_consumer_max_{what}")
