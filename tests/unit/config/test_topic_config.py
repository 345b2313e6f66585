import dataclasses

import pytest

from headwater.logtier.config import (
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    check_topic_overrides,
    render,
)
from headwater.logtier.config.topic import HEADWATER_TOPIC_CONFIGS

# Names, types and defaults as Apache Kafka 4.1.1 answers DescribeConfigs for a new topic.
KAFKA_4_1 = {
    "cleanup.policy": (7, "delete"),
    "compression.gzip.level": (3, "-1"),
    "compression.lz4.level": (3, "9"),
    "compression.type": (2, "producer"),
    "compression.zstd.level": (3, "3"),
    "delete.retention.ms": (5, "86400000"),
    "file.delete.delay.ms": (5, "60000"),
    "flush.messages": (5, "9223372036854775807"),
    "flush.ms": (5, "9223372036854775807"),
    "follower.replication.throttled.replicas": (7, ""),
    "index.interval.bytes": (3, "4096"),
    "leader.replication.throttled.replicas": (7, ""),
    "local.retention.bytes": (5, "-2"),
    "local.retention.ms": (5, "-2"),
    "max.compaction.lag.ms": (5, "9223372036854775807"),
    "max.message.bytes": (3, "1048588"),
    "message.timestamp.after.max.ms": (5, "3600000"),
    "message.timestamp.before.max.ms": (5, "9223372036854775807"),
    "message.timestamp.type": (2, "CreateTime"),
    "min.cleanable.dirty.ratio": (6, "0.5"),
    "min.compaction.lag.ms": (5, "0"),
    "min.insync.replicas": (3, "1"),
    "preallocate": (1, "false"),
    "remote.log.copy.disable": (1, "false"),
    "remote.log.delete.on.disable": (1, "false"),
    "remote.storage.enable": (1, "false"),
    "retention.bytes": (5, "-1"),
    "retention.ms": (5, "604800000"),
    "segment.bytes": (3, "1073741824"),
    "segment.index.bytes": (3, "10485760"),
    "segment.jitter.ms": (5, "0"),
    "segment.ms": (5, "604800000"),
    "unclean.leader.election.enable": (1, "false"),
}

# Those that Kafka has not.
ADDED = {
    "headwater.archive.enable": (1, "false"),
    "headwater.archive.table": (2, ""),
    "headwater.archive.value": (2, "raw"),
    "retention.hold.groups": (7, ""),
    "retention.hold.max.bytes": (5, "-1"),
}

BROKER = BrokerConfig.from_properties()


def test_the_table_is_kafkas_and_what_is_added_to_it() -> None:
    resolved = TopicConfig.resolve({}, BROKER)
    ours = {
        name: (int(definition.type), render(getattr(resolved, definition.attribute)))
        for name, definition in TOPIC_CONFIGS.items()
    }
    assert ours == KAFKA_4_1 | ADDED
    assert ADDED.keys() == HEADWATER_TOPIC_CONFIGS


def test_an_override_wins_over_the_broker_and_the_broker_over_the_default() -> None:
    broker = BrokerConfig.from_properties({"log.segment.bytes": 2000, "message.max.bytes": 3000})
    resolved = TopicConfig.resolve({"segment.bytes": "1000"}, broker)
    assert resolved.segment_bytes == 1000
    assert resolved.max_message_bytes == 3000


@pytest.mark.parametrize(
    ("properties", "expected_ms"),
    [
        ({"log.retention.hours": 2}, 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 5}, 5),
        ({"log.retention.hours": -1}, -1),
        ({}, 604_800_000),
    ],
)
def test_the_finest_retention_of_the_broker_is_the_strongest(properties: dict[str, object], expected_ms: int) -> None:
    assert TopicConfig.resolve({}, BrokerConfig.from_properties(properties)).retention_ms == expected_ms


def test_topics_with_the_same_overrides_share_their_config() -> None:
    first = TopicConfig.resolve({"segment.bytes": "1000", "retention.ms": "5"}, BROKER)
    assert TopicConfig.resolve({"retention.ms": "5", "segment.bytes": "1000"}, BROKER) is first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.segment_bytes = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention": "1"}, "topic config 'retention' is not known; did you mean 'retention.ms'?"),
        ({"retention.ms": "soon"}, "retention.ms: must be of type LONG, not 'soon'"),
        ({"retention.ms": "-2"}, "retention.ms: must be -1 or more, not '-2'"),
        ({"retention.hold.groups": "a,,b"}, "retention.hold.groups: must be a list of distinct entries, not 'a,,b'"),
        ({"retention.hold.groups": "a, a"}, "retention.hold.groups: must be a list of distinct entries"),
        ({"retention.hold.max.bytes": "-2"}, "retention.hold.max.bytes: must be -1 or more, not '-2'"),
        ({"segment.bytes": "1"}, "segment.bytes: must be 14 or more"),
        ({"cleanup.policy": "shred"}, "cleanup.policy: must be a list of delete, compact"),
        ({"cleanup.policy": ""}, "cleanup.policy: must be a list of delete, compact"),
        ({"cleanup.policy": "compact,compact"}, "cleanup.policy: must be a list of delete, compact"),
        ({"compression.type": "lz5"}, "compression.type: must be one of"),
        ({"compression.lz4.level": "18"}, "compression.lz4.level: must be between 1 and 17, not '18'"),
        ({"remote.storage.enable": "true"}, "no tiered storage"),
        ({"preallocate": "true"}, "preallocate='true' is not supported"),
        ({"unclean.leader.election.enable": "yes"}, "must be of type BOOLEAN"),
        ({"leader.replication.throttled.replicas": "*,0:1"}, "must be * or a list of partition:broker"),
        ({"follower.replication.throttled.replicas": "0-1"}, "must be * or a list of partition:broker"),
        ({"headwater.archive.enable": "1"}, "headwater.archive.enable: must be of type BOOLEAN, not '1'"),
        ({"headwater.archive.value": "avro"}, "headwater.archive.value: must be one of raw, string, registry, not"),
        ({"headwater.archive.valu": "raw"}, "is not known; did you mean 'headwater.archive.value'?"),
        ({"min.cleanable.dirty.ratio": "nan"}, "must be of type DOUBLE"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "is above max.compaction.lag.ms"),
    ],
)
def test_what_a_topic_cannot_have_is_refused_with_the_reason(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic_overrides(overrides, BROKER)
    assert message in str(caught.value)


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_a_topic_may_be_compacted_deleted_from_or_both(policy: str) -> None:
    assert check_topic_overrides({"cleanup.policy": policy}, BROKER).cleanup_policy == tuple(policy.split(","))


def test_the_brokers_log_cleaner_configs_are_the_defaults_of_topics() -> None:
    broker = BrokerConfig.from_properties(
        {
            "log.cleanup.policy": "compact",
            "log.cleaner.delete.retention.ms": "1",
            "log.cleaner.min.cleanable.ratio": "0.25",
            "log.cleaner.min.compaction.lag.ms": "3",
            "log.cleaner.max.compaction.lag.ms": "4",
        }
    )
    topic = TopicConfig.resolve({}, broker)
    assert topic.cleanup_policy == ("compact",)
    assert (topic.delete_retention_ms, topic.min_cleanable_dirty_ratio) == (1, 0.25)
    assert (topic.min_compaction_lag_ms, topic.max_compaction_lag_ms) == (3, 4)


def test_the_default_of_a_config_that_is_not_acted_upon_is_accepted() -> None:
    overrides = {name: default for name, (_, default) in KAFKA_4_1.items()}
    assert check_topic_overrides(overrides, BROKER) == TopicConfig.resolve({}, BROKER)
