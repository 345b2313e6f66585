"""A broker that loses its replica of a partition, and gets one: its log, its waiting requests, its proposals."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.metadata.topic_nodes import PartitionImage, Reassignment
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr
from tests.unit.replication.fake_partition_log import FakePartitionLog
from tests.unit.replication.replicated_node import P0, P1, Make, run

NOT_LEADER = ErrorCode.not_leader_or_follower
LIVE = {each: 10 + each for each in (1, 2, 3, 4)}


def folders(path: Path) -> set[str]:
    return {each.name.split(".")[0].rsplit("-", 1)[0] for each in (path / "data").iterdir() if each.is_dir()}


def test_a_removed_replica_is_deleted_and_its_clients_look_for_the_leader(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        node = make()
        node.start()
        waiting = node.produce(0)
        assert isinstance(waiting, Awaitable)
        consumer = node.fetch(0, wait_ms=60_000)
        node.change(leader=2, leader_epoch=1, replicas=(2, 3), isr=(2, 3))
        assert await waiting == [(NOT_LEADER, -1)]
        [fetched] = await consumer
        assert fetched.error_code == NOT_LEADER
        assert node.logs.logs == {}
        with pytest.raises(KafkaError) as refused:
            node.partition(P0)
        assert refused.value.code is NOT_LEADER
        with pytest.raises(KafkaError) as unknown:
            node.partition(TopicPartition("flights", 2))
        assert unknown.value.code is ErrorCode.unknown_topic_or_partition
        node.change(replicas=(2, 3, 1), reassignment=Reassignment((1,), (), (2, 3)))
        assert node.partition(P0).log.log_end_offset == 0

    run(scenario)


@pytest.mark.parametrize(
    ("state", "topic_id", "is_deleted"),
    [
        (PartitionImage(2, 1, 9, (2, 3), (2, 3)), None, True),
        (PartitionImage(2, 0, 9, (2, 3), (2, 3)), UUID(int=9), False),
        (PartitionImage(2, 0, 9, (2, 3), (2, 3)), None, False),
    ],
    ids=["moved", "another topic of the name", "metadata not newer than the log"],
)
def test_a_start_deletes_the_logs_of_partitions_that_were_moved_meanwhile(
    state: PartitionImage, topic_id: UUID | None, is_deleted: bool, make: Make, caplog: Any
) -> None:
    node = make()
    node.start(replicas=(1,), isr=(1,))
    node.append()
    node.append(P1)
    node.close()
    again = make()
    caplog.set_level("INFO")
    image = again._with(state)
    if topic_id is not None:
        topics = {name: replace(topic, topic_id=topic_id) for name, topic in image.topics.items()}
        image = replace(image, topics=topics, topic_names={topic_id: "flights"})
    again.image = again.metadata.image = image
    again.replicas.start(image)
    assert again.logs.logs == {}
    assert ("on other brokers now" in caplog.text) == is_deleted
    assert ("it is kept as" in caplog.text) != is_deleted


@pytest.mark.parametrize(("isr", "is_kept"), [((1,), True), ((2,), False)], ids=["alone in sync", "another in sync"])
def test_a_single_replica_that_is_moved_keeps_its_log_without_a_topic_id(
    isr: tuple[int, ...], is_kept: bool, make: Make, tmp_path: Path
) -> None:
    """A power loss may take the file with the id: an empty log would lead, and the added replica be cut to it."""
    node = make()
    node.start(replicas=(1,), isr=(1,))
    node.append()
    node.close()
    for path in tmp_path.rglob("partition.metadata"):
        path.unlink()
    again = make()
    again.image = again._with(PartitionImage(isr[0], 1, 8, (2, 1), isr, reassignment=Reassignment((2,), (1,), (1,))))
    again.replicas.start(again.image)
    assert again.partition(P0).log.log_end_offset == int(is_kept)


def test_a_running_broker_keeps_the_files_of_a_log_that_is_ahead_of_the_metadata(make: Make, caplog: Any) -> None:
    node = make()
    node.start(replicas=(1,), isr=(1,), epoch=4)
    node.append()
    node.change(leader=2, leader_epoch=3, replicas=(2,), isr=(2,))
    assert "it is kept as" in caplog.text


# ---- the leader ----


def leader(state: PartitionImage) -> Partition[FakePartitionLog]:
    log = FakePartitionLog(log_end_offset=0, config=TopicConfig(min_insync_replicas=2))
    partition = Partition(P0, 1, log, lag_ms_max=1_000)
    partition.leadership(state, LIVE, 0)
    return partition


def test_a_proposal_with_a_replica_that_was_removed_is_given_up() -> None:
    """A replica leaves in a new leader epoch."""
    moving = PartitionImage(1, 0, 1, (1, 4, 2, 3), (1, 2), reassignment=Reassignment((4,), (2, 3), (1, 2, 3)))
    partition = leader(moving)
    [joining, *_] = partition.fetched(3, fetch_offset=0, log_start_offset=0, broker_epoch=13, now_ms=1)
    assert isinstance(joining, ProposeIsr)
    partition.isr_decided(joining, IsrDecision(ErrorCode.invalid_request))
    assert 3 in partition.maximal_isr
    partition.leadership(PartitionImage(1, 1, 2, (1, 4), (1, 4)), LIVE, 2)
    assert partition.maximal_isr == {1, 4}


def test_a_single_replica_that_moves_needs_one_in_sync() -> None:
    alone = leader(PartitionImage(1, 0, 0, (1,), (1,)))
    alone.leadership(PartitionImage(1, 0, 1, (2, 1), (1,), reassignment=Reassignment((2,), (1,), (1,))), LIVE, 0)
    alone.check_enough_in_sync()
    assert alone.min_isr == 1
