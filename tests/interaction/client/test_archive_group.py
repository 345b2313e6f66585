"""The group of an archive beside a topic that is deleted and made anew, on a real broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.group_offsets import committed_group_offsets
from headwater.pipelines.archive.archive_group import GROUP_PREFIX, ArchiveGroup
from headwater.pipelines.archive.trailing_offsets import COMMITTED_AGAIN_S

pytestmark = pytest.mark.slow


def test_a_topic_that_was_made_anew_has_no_offsets_of_the_old_one(
    bootstrap_servers: str, admin: AdminClient, new_topic: Any
) -> None:
    topic = new_topic()
    name = f"{GROUP_PREFIX}{topic}"
    now_s = 1_000.0
    archive = ArchiveGroup(topic, 600.0, clock=lambda: now_s)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(bootstrap_servers))) as cluster:
        cluster.partitions(topic)
        assert cluster.known_leader(topic, 0) is not None
        assert cluster.known_leader(topic, 1) is None
        archive.of_topic(str(cluster.topic_id(topic)))
        archive.noted({0: 5}, now_s - 600.0)
        archive.commit(cluster)
        assert committed_group_offsets(cluster, [name]) == {name: {(topic, 0): 5}}
        archive.noted({0: 9}, now_s)
        admin.delete_topics([topic])[topic].result(60)
        admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
        now_s += COMMITTED_AGAIN_S
        archive.commit(cluster)
        assert committed_group_offsets(cluster, [name]) == {name: {}}
        archive.of_topic(str(cluster.topic_id(topic)))
        archive.begin(cluster, {0: 0})
        assert committed_group_offsets(cluster, [name]) == {name: {(topic, 0): 0}}
