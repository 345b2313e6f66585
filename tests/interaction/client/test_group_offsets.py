"""Offsets of a group that a client commits who is no member of it: any tool sees them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.errors import BrokerError
from headwater.logtier.client.group_offsets import commit_group_offsets, committed_group_offsets
from headwater.pipelines.sinks.source_offsets import SourceOffsets

pytestmark = pytest.mark.slow


@pytest.fixture
def config(bootstrap_servers: str) -> ClientConfig:
    return ClientConfig(parse_bootstrap_servers(bootstrap_servers))


def test_offsets_that_are_committed_are_seen_by_other_clients_and_read_back(
    config: ClientConfig, admin: AdminClient, new_topic: Any
) -> None:
    topic = new_topic(partitions=3)
    group = f"{topic}.stage"
    with ClusterClient(config) as cluster:
        assert committed_group_offsets(cluster, [group]) == {group: {}}
        commit_group_offsets(cluster, group, {(topic, 0): 5, (topic, 2): 7}, "batch=3")
        commit_group_offsets(cluster, group, {(topic, 2): 8, ("no-such-topic", 0): 1}, "batch=4")
        assert committed_group_offsets(cluster, [group]) == {group: {(topic, 0): 5, (topic, 2): 8}}
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(3)])]
    seen = admin.list_consumer_group_offsets(wanted, request_timeout=30)[group].result(30)
    assert [(each.offset, each.metadata) for each in seen.topic_partitions if each.offset >= 0] == [
        (5, "batch=3"),
        (8, "batch=4"),
    ]


def test_a_group_that_has_members_refuses_and_a_stage_goes_on(
    config: ClientConfig, bootstrap_servers: str, new_topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    group = f"{topic}.stage"
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        with ClusterClient(config) as cluster, pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
            commit_group_offsets(cluster, group, {(topic, 0): 5})
        offsets = SourceOffsets(config, topic, "stage")
        offsets.commit(1, {(topic, 0): 5})
        offsets.commit(2, {(topic, 0): 6})
        offsets.close()
        assert caplog.text.count(f"the lag of consumer group {group} is not up to date") == 1
    finally:
        consumer.close()
