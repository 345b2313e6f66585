from dataclasses import dataclass

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition


@dataclass
class FakeLog:
    log_start_offset: int = 0
    log_end_offset: int = 10
    first_unstable_offset: int = 1_000

    def last_stable_offset(self, high_watermark: int) -> int:
        return min(high_watermark, self.first_unstable_offset)


def leading(log: FakeLog, epoch: int = 3) -> Partition[FakeLog]:
    partition = Partition(TopicPartition("t", 0), 1, log)
    partition.update(1, epoch, [1], [1])
    return partition


def test_the_high_watermark_of_a_single_replica_is_its_log_end() -> None:
    log = FakeLog()
    partition = leading(log)
    assert partition.high_watermark == 10
    assert not partition.advance_high_watermark()
    log.log_end_offset = 12
    assert partition.advance_high_watermark()
    assert (partition.high_watermark, partition.last_stable_offset) == (12, 12)


def test_the_last_stable_offset_stays_at_an_open_transaction() -> None:
    log = FakeLog(first_unstable_offset=4)
    assert leading(log).last_stable_offset == 4


def test_the_high_watermark_never_goes_back() -> None:
    log = FakeLog()
    partition = leading(log)
    log.log_end_offset = 4
    assert not partition.advance_high_watermark()
    assert partition.high_watermark == 10


def test_a_state_of_an_older_leader_epoch_is_ignored() -> None:
    partition = leading(FakeLog())
    partition.update(2, 2, [1, 2], [1, 2])
    assert partition.is_leader
    assert partition.leader_epoch == 3


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)],
)
def test_another_leader_epoch_than_ours_is_refused(epoch: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        leading(FakeLog()).check_leader(epoch)
    assert refused.value.code is code


def test_a_client_without_an_epoch_is_served() -> None:
    leading(FakeLog()).check_leader(-1)
    leading(FakeLog()).check_leader(3)


def test_a_follower_is_no_leader() -> None:
    partition = leading(FakeLog())
    partition.update(2, 4, [1, 2], [1, 2])
    with pytest.raises(KafkaError) as refused:
        partition.check_leader()
    assert refused.value.code is ErrorCode.not_leader_or_follower


def test_acks_all_needs_enough_in_sync_replicas() -> None:
    partition = leading(FakeLog())
    partition.check_enough_in_sync(1)
    with pytest.raises(KafkaError) as refused:
        partition.check_enough_in_sync(2)
    assert refused.value.code is ErrorCode.not_enough_replicas
