"""Broker configs of consumer groups (KIP-848), a part of the broker's table (see `broker`)."""

from dataclasses import dataclass
from typing import Final

from headwater.logtier.config.definition import (
    INT_MAX,
    ConfigError,
    ConfigType,
    Validator,
    at_least,
    config,
)
from headwater.logtier.config.security import SecurityConfig

_CLASS_PREFIX: Final = "org.apache.kafka.coordinator.group.assignor."
_CLASSES: Final = {f"{_CLASS_PREFIX}UniformAssignor": "uniform", f"{_CLASS_PREFIX}RangeAssignor": "range"}
ASSIGNORS: Final = ("uniform", "range")
"""Server-side assignors of the broker."""

MIGRATION_POLICIES: Final = ("disabled", "upgrade", "downgrade", "bidirectional")


def assignor_name(text: str) -> str:
    """Return the assignor with a name, or with the name of Kafka's class.

    >>> assignor_name("org.apache.kafka.coordinator.group.assignor.RangeAssignor")
    'range'
    """
    return _CLASSES.get(text, text)


def _are_assignors(names: tuple[str, ...]) -> bool:
    known = [assignor_name(name) for name in names]
    return bool(known) and len(set(known)) == len(known) and all(name in ASSIGNORS for name in known)


@dataclass(frozen=True, slots=True, eq=False)
class GroupProtocolConfig(SecurityConfig):
    """Configs of groups with server-side assignment (`group.protocol=consumer`)."""

    group_consumer_assignors: tuple[str, ...] = config(
        ConfigType.LIST,
        ASSIGNORS,
        "Server-side assignors that members can select, by name or by Kafka's class name; the first one is the "
        "default.",
        Validator(f"a list of {', '.join(ASSIGNORS)}", _are_assignors),
    )
    group_consumer_heartbeat_interval_ms: int = config(
        ConfigType.INT, 5000, "Interval between heartbeats of the members of a consumer group.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = config(
        ConfigType.INT, 15_000, "Maximum heartbeat interval of a consumer group.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = config(
        ConfigType.INT, 60_000, "Maximum session timeout of a consumer group.", at_least(1)
    )
    group_consumer_max_size: int = config(
        ConfigType.INT, INT_MAX, "Maximum number of members of a consumer group.", at_least(1)
    )
    group_consumer_migration_policy: str = config(
        ConfigType.STRING,
        "bidirectional",
        "Conversion of non-empty groups between the classic and the consumer protocol: disabled, upgrade (to "
        "consumer), downgrade (to classic) or bidirectional.",
        Validator(f"one of {', '.join(MIGRATION_POLICIES)}", lambda value: value.lower() in MIGRATION_POLICIES),
    )
    group_consumer_min_heartbeat_interval_ms: int = config(
        ConfigType.INT, 5000, "Minimum heartbeat interval of a consumer group.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = config(
        ConfigType.INT, 45_000, "Minimum session timeout of a consumer group.", at_least(1)
    )
    group_consumer_regex_refresh_interval_ms: int = config(
        ConfigType.INT,
        600_000,
        "Interval after which a group's regular expressions are matched against the topics again without a new topic.",
        at_least(10_000),
    )
    group_consumer_session_timeout_ms: int = config(
        ConfigType.INT,
        45_000,
        "Time without a heartbeat after which a member is removed from a consumer group.",
        at_least(1),
    )


def check_group_protocol(broker: GroupProtocolConfig) -> None:
    """Check that the configs are consistent with each other; ConfigError."""
    for what in ("heartbeat_interval_ms", "session_timeout_ms"):
        least = getattr(broker, f"group_consumer_min_{what}")
        value = getattr(broker, f"group_consumer_{what}")
        most = getattr(broker, f"group_consumer_max_{what}")
        if not least <= value <= most:
            name = what.replace("_", ".")
            raise ConfigError(
                f"group.consumer.{name} ({value}) is not between group.consumer.min.{name} ({least}) and "
                f"group.consumer.max.{name} ({most})"
            )
    if broker.group_consumer_heartbeat_interval_ms >= broker.group_consumer_session_timeout_ms:
        raise ConfigError(
            f"group.consumer.heartbeat.interval.ms ({broker.group_consumer_heartbeat_interval_ms}) is not below "
            f"group.consumer.session.timeout.ms ({broker.group_consumer_session_timeout_ms})"
        )
