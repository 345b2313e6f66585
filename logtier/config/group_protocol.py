"""The broker's configs of consumer groups (KIP-848): a part of the broker's table (see `broker`)."""

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
"""Server-side assignors that there are."""

MIGRATION_POLICIES: Final = ("disabled", "upgrade", "downgrade", "bidirectional")


def assignor_name(text: str) -> str:
    """The assignor of a name, or of the name of Kafka's class.

    >>> assignor_name("org.apache.kafka.coordinator.group.assignor.RangeAssignor")
    'range'
    """
    return _CLASSES.get(text, text)


def _are_assignors(names: tuple[str, ...]) -> bool:
    known = [assignor_name(name) for name in names]
    return bool(known) and len(set(known)) == len(known) and all(name in ASSIGNORS for name in known)


@dataclass(frozen=True, slots=True, eq=False)
class GroupProtocolConfig(SecurityConfig):
    """What holds for groups whose members leave assignment to the broker (`group.protocol=consumer`)."""

    group_consumer_assignors: tuple[str, ...] = config(
        ConfigType.LIST,
        ASSIGNORS,
        "Server-side assignors that members may ask for, by name or by Kafka's class; the first is the default.",
        Validator(f"a list of {', '.join(ASSIGNORS)}", _are_assignors),
    )
    group_consumer_heartbeat_interval_ms: int = config(
        ConfigType.INT, 5000, "How often the members of a consumer group are told to send a heartbeat.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = config(
        ConfigType.INT, 15_000, "Longest heartbeat interval that a group may have.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = config(
        ConfigType.INT, 60_000, "Longest session timeout that a group may have.", at_least(1)
    )
    group_consumer_max_size: int = config(ConfigType.INT, INT_MAX, "Most members of one consumer group.", at_least(1))
    group_consumer_migration_policy: str = config(
        ConfigType.STRING,
        "bidirectional",
        "Whether groups with members change between the classic and the consumer protocol as their members do: "
        "disabled, upgrade (to consumer), downgrade (to classic) or bidirectional.",
        Validator(f"one of {', '.join(MIGRATION_POLICIES)}", lambda value: value.lower() in MIGRATION_POLICIES),
    )
    group_consumer_min_heartbeat_interval_ms: int = config(
        ConfigType.INT, 5000, "Shortest heartbeat interval that a group may have.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = config(
        ConfigType.INT, 45_000, "Shortest session timeout that a group may have.", at_least(1)
    )
    group_consumer_regex_refresh_interval_ms: int = config(
        ConfigType.INT,
        600_000,
        "How often the topics that match a group's regular expressions are looked at anew though none was made.",
        at_least(10_000),
    )
    group_consumer_session_timeout_ms: int = config(
        ConfigType.INT, 45_000, "After how long without a heartbeat a member of a consumer group is gone.", at_least(1)
    )


def check_group_protocol(broker: GroupProtocolConfig) -> None:
    """Rules over several of these; ConfigError."""
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
