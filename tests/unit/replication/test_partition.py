"""A partition with one replica, and the checks of requests. Followers: tests/interaction/partition."""

from __future__ import annotations

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import LeadershipMoved, WatermarkMoved
from tests.unit.replication.fake_partition_log import FakePartitionLog

LAG_MS_MAX = 30_000


def stored(leader: int, epoch: int, *replicas: int, partition_epoch: int = 3) -> PartitionImage:
    return PartitionImage(leader, epoch, partition_epoch, replicas, replicas)


def leading(log: FakePartitionLog, epoch: int = 3) -> Partition[FakePartitionLog]:
    partition = Partition(TopicPartition("t", 0), 1, log, lag_ms_max=LAG_MS_MAX)
    partition.leadership(stored(1, epoch, 1), {1: 5}, 0)
    return partition


def test_the_high_watermark_of_a_single_replica_is_its_log_end() -> None:
    log = FakePartitionLog()
    partition = leading(log)
    assert partition.high_watermark == 10
    assert not partition.appended()
    log.log_end_offset = 12
    assert partition.appended()
    assert (partition.high_watermark, partition.last_stable_offset) == (12, 12)
    assert partition.acknowledgement(11, 3) is ErrorCode.none


def test_a_single_replica_has_everything_it_ever_acknowledged_as_soon_as_it_leads() -> None:
    """On one node a start changes nothing for clients, whatever the checkpoint says."""
    partition = Partition(
        TopicPartition("t", 0), 1, FakePartitionLog(log_start_offset=2), high_watermark=7, lag_ms_max=LAG_MS_MAX
    )
    assert partition.leadership(stored(1, 3, 1), {1: 5}, 0) == (LeadershipMoved(), WatermarkMoved(10))
    partition.check_offsets_known()
    assert not partition.has_followers
    assert partition.tick(10**9) == ()


def test_a_single_replica_needs_no_other_however_many_its_topic_asks_for() -> None:
    """KIP-966: the minimum is at most the number of replicas; a topic of one replica stays writable."""
    partition = leading(FakePartitionLog(config=TopicConfig(min_insync_replicas=3)))
    partition.check_enough_in_sync()
    assert partition.high_watermark == 10


@pytest.mark.parametrize(("checkpointed", "begins"), [(0, 2), (7, 7), (11, 10)])
def test_the_first_high_watermark_is_the_checkpoint_within_the_log(checkpointed: int, begins: int) -> None:
    """A power loss may have taken records below the checkpoint, and DeleteRecords may have moved the start."""
    log = FakePartitionLog(log_start_offset=2)
    partition = Partition(TopicPartition("t", 0), 1, log, high_watermark=checkpointed, lag_ms_max=LAG_MS_MAX)
    assert partition.high_watermark == begins


def test_the_last_stable_offset_stays_at_an_open_transaction() -> None:
    log = FakePartitionLog(first_unstable_offset=4)
    assert leading(log).last_stable_offset == 4


def test_the_high_watermark_never_goes_back() -> None:
    log = FakePartitionLog()
    partition = leading(log)
    log.log_end_offset = 4
    assert not partition.appended()
    assert partition.high_watermark == 10


@pytest.mark.parametrize("older", [stored(2, 2, 1, 2), stored(2, 3, 1, 2, partition_epoch=2)])
def test_a_state_of_an_older_leader_or_partition_epoch_is_ignored(older: PartitionImage) -> None:
    """KAFKA-7235: a broker that had bounced executed what the controller had sent to it before."""
    partition = leading(FakePartitionLog())
    assert partition.leadership(older, {}, 0) == ()
    assert partition.is_leader
    assert (partition.leader_epoch, partition.replicas) == (3, (1,))


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)],
)
def test_another_leader_epoch_than_ours_is_refused(epoch: int, code: ErrorCode) -> None:
    """KIP-320: requests had no epoch; a deposed leader, and one that did not know it leads anew, served them."""
    with pytest.raises(KafkaError) as refused:
        leading(FakePartitionLog()).check_leader(epoch)
    assert refused.value.code is code


def test_a_client_without_an_epoch_is_served() -> None:
    leading(FakePartitionLog()).check_leader(-1)
    leading(FakePartitionLog()).check_leader(3)


def test_a_follower_is_no_leader() -> None:
    partition = leading(FakePartitionLog())
    assert partition.leadership(stored(2, 4, 1, 2), {}, 0) == (LeadershipMoved(),)
    with pytest.raises(KafkaError) as refused:
        partition.check_leader()
    assert refused.value.code is ErrorCode.not_leader_or_follower
    assert partition.acknowledgement(0, 3) is ErrorCode.not_leader_or_follower
    assert not partition.appended(), "what is appended as a follower is committed by the leader alone"


def test_acks_all_needs_enough_in_sync_replicas() -> None:
    log = FakePartitionLog(config=TopicConfig(min_insync_replicas=2))
    partition = Partition(TopicPartition("t", 0), 1, log, lag_ms_max=LAG_MS_MAX)
    partition.leadership(PartitionImage(1, 3, 3, (1, 2, 3), (1, 2)), {}, 0)
    partition.check_enough_in_sync()
    partition.leadership(PartitionImage(1, 3, 4, (1, 2, 3), (1,)), {}, 0)
    with pytest.raises(KafkaError) as refused:
        partition.check_enough_in_sync()
    assert refused.value.code is ErrorCode.not_enough_replicas
