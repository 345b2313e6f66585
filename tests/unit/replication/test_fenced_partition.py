"""A leader that may be deposed without its knowledge leads no more, and forgets nothing that counts meanwhile."""

from __future__ import annotations

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import (
    IsrDecision,
    LeaderFence,
    LeadershipMoved,
    ProposeIsr,
    WatermarkMoved,
)
from tests.unit.replication.fake_partition_log import FakePartitionLog

LAG_MS = 30_000
EPOCHS = {1: 11, 2: 12, 3: 13}
REPLICAS = (1, 2, 3)


def stored(
    leader: int = 1, epoch: int = 3, isr: tuple[int, ...] = REPLICAS, partition_epoch: int = 5
) -> PartitionImage:
    return PartitionImage(leader, epoch, partition_epoch, REPLICAS, isr)


def leading(isr: tuple[int, ...] = REPLICAS) -> Partition[FakePartitionLog]:
    """The leader of three replicas, whose log has 10 records."""
    log = FakePartitionLog(config=TopicConfig(min_insync_replicas=2))
    partition = Partition(TopicPartition("t", 0), 1, log, lag_ms_max=LAG_MS)
    partition.leadership(stored(isr=isr), EPOCHS, 0)
    return partition


def fetch(partition: Partition[FakePartitionLog], broker_id: int, offset: int, now_ms: int) -> tuple[object, ...]:
    return partition.fetched(
        broker_id, fetch_offset=offset, log_start_offset=0, broker_epoch=EPOCHS[broker_id], now_ms=now_ms
    )


def refusal(partition: Partition[FakePartitionLog], *, or_follower: bool = False) -> ErrorCode | None:
    try:
        partition.check_leader(or_follower=or_follower)
    except KafkaError as error:
        return error.code
    return None


def test_a_fenced_leader_refuses_everyone_and_gives_up_its_waits() -> None:
    partition = leading()
    assert partition.fence(LeaderFence.SESSION_OVER) == (LeadershipMoved(),)
    assert not partition.is_leader
    assert refusal(partition) is ErrorCode.not_leader_or_follower
    assert refusal(partition, or_follower=True) is ErrorCode.not_leader_or_follower, "a consumer would wait for ever"
    assert not partition.may_serve(any_replica=True)
    assert partition.acknowledgement(9, 3) is ErrorCode.not_leader_or_follower
    with pytest.raises(KafkaError):
        fetch(partition, 2, 10, 1)
    assert not partition.appended()
    assert partition.tick(10**9) == (), "it proposes no ISR"
    assert partition.fence(LeaderFence.SESSION_OVER) == ()


def test_a_fenced_follower_follows_on_and_serves_no_consumer() -> None:
    partition = leading()
    partition.leadership(stored(leader=2, epoch=4, partition_epoch=6), EPOCHS, 0)
    assert partition.fence(LeaderFence.SESSION_OVER) == ()
    assert partition.leader_id == 2
    assert refusal(partition, or_follower=True) is ErrorCode.not_leader_or_follower
    assert partition.answered(high_watermark=7, log_start_offset=0) == (WatermarkMoved(7),)
    assert partition.unfence(LeaderFence.SESSION_OVER, 1) == ()
    assert refusal(partition, or_follower=True) is None


def test_an_election_is_noted_while_it_is_fenced_and_takes_effect_afterwards() -> None:
    partition = leading()
    partition.fence(LeaderFence.SESSION_OVER)
    partition.leadership(stored(epoch=4, partition_epoch=6), EPOCHS, 1)
    assert (partition.is_leader, partition.leader_epoch) == (False, 4)
    assert partition.unfence(LeaderFence.SESSION_OVER, 2)[0] == LeadershipMoved()
    assert partition.is_leader
    assert partition.has_followers
    partition.fence(LeaderFence.SESSION_OVER)
    partition.leadership(stored(leader=3, epoch=5, partition_epoch=7), EPOCHS, 3)
    assert partition.leader_id == 3
    assert partition.unfence(LeaderFence.SESSION_OVER, 4) == ()
    assert partition.leader_id == 3


def test_the_high_watermark_waits_for_followers_that_have_not_fetched_since() -> None:
    partition = leading()
    for broker_id in (2, 3):
        fetch(partition, broker_id, 10, 1)
    assert partition.high_watermark == 10
    partition.fence(LeaderFence.SESSION_OVER)
    partition.unfence(LeaderFence.SESSION_OVER, 50_000)
    partition.log.log_end_offset = 12
    assert not partition.appended()
    assert partition.tick(50_000 + LAG_MS) == (), "they have the whole lag time"
    fetch(partition, 2, 12, 50_001)
    assert partition.high_watermark == 10
    fetch(partition, 3, 12, 50_002)
    assert partition.high_watermark == 12


def test_a_proposal_under_way_counts_again_after_the_fence() -> None:
    """The controller may accept it meanwhile: who joins must have what is acknowledged."""
    partition = leading(isr=(1, 2))
    fetch(partition, 2, 10, 1)
    [proposal] = [each for each in fetch(partition, 3, 10, 1) if isinstance(each, ProposeIsr)]
    assert proposal.isr == (1, 2, 3)
    partition.fence(LeaderFence.CUT_OFF)
    assert partition.maximal_isr == {1, 2, 3}
    [repeated] = partition.isr_decided(proposal, IsrDecision(ErrorCode.request_timed_out))
    assert isinstance(repeated, ProposeIsr)
    assert [each.broker_epoch for each in repeated.members] == [11, 12, 13]
    partition.unfence(LeaderFence.CUT_OFF, 2)
    partition.log.log_end_offset = 11
    fetch(partition, 2, 11, 3)
    assert partition.high_watermark == 10, "broker 3 may be in the ISR"
    partition.isr_decided(repeated, IsrDecision(ErrorCode.none, 3, 6, (1, 2, 3)))
    assert partition.isr == (1, 2, 3)


# -- a leader that hears nobody ----------------------------------------------------------------------------------------


def test_a_leader_that_hears_neither_the_store_nor_its_isr_is_fenced() -> None:
    partition = leading()
    fetch(partition, 2, 10, 1_000)
    partition.tick(1_000 + LAG_MS, is_store_silent=True)
    assert partition.is_leader, "broker 2 was heard of within the lag time"
    assert partition.tick(1_001 + LAG_MS, is_store_silent=True) == (LeadershipMoved(),)
    assert not partition.is_leader


def test_a_leader_that_hears_the_store_or_one_member_leads_on() -> None:
    partition = leading()
    partition.tick(10 * LAG_MS)
    assert partition.is_leader
    partition = leading()
    fetch(partition, 3, 2, 10 * LAG_MS)
    partition.tick(10 * LAG_MS, is_store_silent=True)
    assert partition.is_leader


def test_a_fetch_of_a_replica_that_is_not_in_the_isr_keeps_no_leader() -> None:
    partition = leading(isr=(1, 2))
    fetch(partition, 3, 2, 10 * LAG_MS)
    partition.tick(10 * LAG_MS, is_store_silent=True)
    assert not partition.is_leader


def test_a_leader_alone_in_its_isr_leads_on() -> None:
    partition = leading(isr=(1,))
    partition.tick(10 * LAG_MS, is_store_silent=True)
    assert partition.is_leader


def test_a_member_that_still_knows_the_leader_lets_it_lead_again() -> None:
    """Without ZooKeeper nobody else was elected: a short cut between brokers must not last as long as its outage."""
    partition = leading()
    partition.tick(10 * LAG_MS, is_store_silent=True)
    assert partition.heard(3, 4, 10 * LAG_MS) == (), "it knows another election"
    assert partition.heard(3, 3, 10 * LAG_MS)[0] == LeadershipMoved()
    assert partition.is_leader
    assert not partition.is_fenced


def test_no_fetch_ends_the_fence_of_a_session_that_is_over() -> None:
    partition = leading()
    partition.tick(10 * LAG_MS, is_store_silent=True)
    partition.fence(LeaderFence.SESSION_OVER)
    assert partition.heard(3, 3, 10 * LAG_MS) == ()
    assert not partition.is_leader
    assert partition.unfence(LeaderFence.SESSION_OVER | LeaderFence.CUT_OFF, 10 * LAG_MS)
    assert partition.is_leader
