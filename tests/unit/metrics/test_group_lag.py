"""The lag of groups: whole on the broker that coordinates them, or absent."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.metrics.end_offsets import EndOffsets, RemoteEnd
from headwater.logtier.metrics.partition_families import GroupFamilies
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.unit.replication.replicated_node import P0, P1, TOPIC, TOPIC_ID, ReplicatedNode

OTHER_ID = uuid.UUID(int=77)
LAG, LAG_SUM = "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum"


def committed(*offsets: tuple[TopicPartition, int], topic_id: uuid.UUID | None = TOPIC_ID) -> GroupOffsets:
    found = GroupOffsets()
    for key, offset in offsets:
        found.put(key, CommittedOffset(offset, topic_id=topic_id), 0)
    return found


def node_with(tmp_path: Path, *, records: int, replicas: tuple[int, ...] = (1, 2, 3)) -> ReplicatedNode:
    """A leader of both partitions whose records are committed."""
    node = ReplicatedNode(tmp_path)
    node.start(replicas, replicas=replicas)
    for key in (P0, P1):
        node.append(key, records)
        for follower in replicas[1:]:
            node.fetched(follower, key=key)
    return node


def no_remote_end(_: TopicPartition, __: uuid.UUID) -> int | None:
    """What a single node has."""
    return None


def lags(node: ReplicatedNode, offsets: GroupOffsets, remote_end: RemoteEnd = no_remote_end) -> dict[str, float]:
    """Samples of the lag by name and partition."""
    families = GroupFamilies()
    group: Any = SimpleNamespace(group_id="readers", members={})
    ends = EndOffsets(cast("Any", node.metadata), node.replicas, remote_end)
    families.add(group, offsets, ends.of(offsets))
    return {
        "/".join((sample.name, sample.labels.get("partition", ""))).rstrip("/"): sample.value
        for family in families.families()
        for sample in family.samples
        if sample.name in (LAG, LAG_SUM)
    }


def test_a_single_node_reports_the_distance_to_its_own_watermarks(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10, replicas=(1,))
    assert lags(node, committed((P0, 4), (P1, 10))) == {f"{LAG}/0": 6, f"{LAG}/1": 0, LAG_SUM: 6}
    # The offset of a client that committed beyond the end.
    assert lags(node, committed((P0, 12))) == {f"{LAG}/0": 0, LAG_SUM: 0}


def test_an_offset_without_the_id_of_its_topic_has_a_lag(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10, replicas=(1,))
    assert lags(node, committed((P0, 4), topic_id=None)) == {f"{LAG}/0": 6, LAG_SUM: 6}


def test_the_lag_of_partitions_with_their_leader_elsewhere_is_to_the_leaders_end(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10)
    node.change(leader=2, leader_epoch=1)
    # The watermark of the replica here, 10, is that of a follower.
    ends = {P0: 15, P1: 16}
    asked: list[uuid.UUID] = []

    def remote_end(key: TopicPartition, topic_id: uuid.UUID) -> int | None:
        asked.append(topic_id)
        return ends.get(key)

    assert lags(node, committed((P0, 4), (P1, 10)), remote_end) == {f"{LAG}/0": 11, f"{LAG}/1": 6, LAG_SUM: 17}
    assert asked == [TOPIC_ID, TOPIC_ID]


def test_a_leader_here_counts_with_its_own_watermark_whatever_was_answered_before(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10)
    assert lags(node, committed((P0, 4)), lambda *_: 99) == {f"{LAG}/0": 6, LAG_SUM: 6}


def test_a_partition_without_a_known_end_has_no_lag_and_its_topic_no_sum(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10)
    node.change(leader=NO_BROKER, leader_epoch=1)
    ends = {P1: 16}
    assert lags(node, committed((P0, 4), (P1, 10)), lambda key, _: ends.get(key)) == {f"{LAG}/1": 6}


def test_offsets_of_deleted_topics_have_no_lag_even_if_the_name_is_used_again(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10)
    of_another = committed((P0, 4), topic_id=OTHER_ID)
    assert lags(node, of_another, lambda *_: 99) == {}
    of_another.put(P1, CommittedOffset(4, topic_id=TOPIC_ID), 1)
    assert lags(node, of_another, lambda *_: 99) == {f"{LAG}/1": 6, LAG_SUM: 6}
    node.delete()
    assert lags(node, committed((P0, 4)), lambda *_: 99) == {}


def test_a_partition_that_the_topic_does_not_have_has_no_lag(tmp_path: Path) -> None:
    node = node_with(tmp_path, records=10)
    beyond = TopicPartition(TOPIC, 2)
    assert lags(node, committed((P0, 4), (beyond, 4), topic_id=None), lambda *_: 99) == {f"{LAG}/0": 6, LAG_SUM: 6}
