"""Configs of consumer groups: the broker's table, and what a single group has other than it."""

from __future__ import annotations

import pytest

from headwater.logtier.config import BrokerConfig, ConfigError, ConsumerGroupConfig, check_group_overrides


def test_a_group_has_the_brokers_values_unless_it_has_its_own() -> None:
    broker = BrokerConfig.from_properties({"group.consumer.heartbeat.interval.ms": 6000})
    assert ConsumerGroupConfig.resolve({}, broker) == ConsumerGroupConfig(6000, 45_000)
    own = ConsumerGroupConfig.resolve({"consumer.session.timeout.ms": "50000"}, broker)
    assert own == ConsumerGroupConfig(6000, 50_000)


def test_an_override_comes_back_into_limits_that_were_narrowed_since() -> None:
    broker = BrokerConfig.from_properties({"group.consumer.max.session.timeout.ms": 48_000})
    assert ConsumerGroupConfig.resolve({"consumer.session.timeout.ms": "50000"}, broker) == (
        ConsumerGroupConfig(5000, 48_000)
    )


def test_a_group_may_not_time_out_between_two_heartbeats() -> None:
    broker = BrokerConfig.from_properties(
        {"group.consumer.min.session.timeout.ms": 1000, "group.consumer.session.timeout.ms": 20_000}
    )
    with pytest.raises(ConfigError, match=r"must be greater than consumer\.heartbeat\.interval\.ms"):
        check_group_overrides({"consumer.session.timeout.ms": "4000"}, broker)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"group.consumer.session.timeout.ms": 1000}, "is not between"),
        ({"group.consumer.heartbeat.interval.ms": 60_000}, "is not between"),
        (
            {
                "group.consumer.min.session.timeout.ms": 1,
                "group.consumer.session.timeout.ms": 5000,
            },
            "is not below",
        ),
        ({"group.consumer.assignors": "sticky"}, "a list of uniform, range"),
        ({"group.consumer.assignors": ""}, "a list of uniform, range"),
        ({"group.consumer.assignors": "range,org.apache.kafka.coordinator.group.assignor.RangeAssignor"}, "a list of"),
        ({"group.consumer.migration.policy": "sometimes"}, "one of disabled, upgrade"),
        ({"group.consumer.regex.refresh.interval.ms": 1}, "10000 or more"),
    ],
)
def test_what_a_broker_cannot_have_is_refused(properties: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        BrokerConfig.from_properties(properties)


def test_assignors_may_be_named_by_kafkas_classes() -> None:
    prefix = "org.apache.kafka.coordinator.group.assignor."
    names = f"{prefix}RangeAssignor,{prefix}UniformAssignor"
    config = BrokerConfig.from_properties({"group.consumer.assignors": names})
    assert config.group_consumer_assignors == (f"{prefix}RangeAssignor", f"{prefix}UniformAssignor")
