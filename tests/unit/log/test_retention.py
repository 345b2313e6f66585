"""Retention: by time, by size, by the log's start; never a gap, never a compacted topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.retention import HOLD_ALL, Deletion, RetentionHold, SegmentAge, segments_to_delete
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tests.unit.log.conftest import LogFolder, MakeBatch

SEGMENTS = [
    SegmentAge(10, 100, 1_000),
    SegmentAge(20, 100, 9_000),
    SegmentAge(30, 100, 2_000),
    SegmentAge(40, 100, 9_500, is_active=True),
]


def deletion(
    config: TopicConfig,
    *,
    now_ms: int = 10_000,
    start: int = 0,
    high_watermark: int = 40,
    hold: RetentionHold | None = None,
) -> Deletion:
    return segments_to_delete(
        SEGMENTS,
        total_bytes=400,
        config=config,
        now_ms=now_ms,
        log_start_offset=start,
        high_watermark=high_watermark,
        hold=hold,
    )


def count(config: TopicConfig, *, now_ms: int = 10_000, start: int = 0, high_watermark: int = 40) -> int:
    return deletion(config, now_ms=now_ms, start=start, high_watermark=high_watermark).count


def test_time_deletes_only_up_to_the_first_segment_that_is_young() -> None:
    assert count(TopicConfig(retention_ms=5_000)) == 1
    assert count(TopicConfig(retention_ms=400)) == 4
    assert count(TopicConfig(retention_ms=-1)) == 0


def test_size_deletes_what_is_wholly_in_excess() -> None:
    assert count(TopicConfig(retention_ms=-1, retention_bytes=301)) == 0
    assert count(TopicConfig(retention_ms=-1, retention_bytes=300)) == 1
    assert count(TopicConfig(retention_ms=-1, retention_bytes=150)) == 2


def test_any_negative_size_is_no_limit() -> None:
    config = TopicConfig.resolve({"retention.ms": "-1", "retention.bytes": "-2"}, BrokerConfig.from_properties())
    assert count(config) == 0


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    assert count(TopicConfig(retention_ms=1), high_watermark=29) == 2


def test_segments_before_the_logs_start_go_whatever_the_policy() -> None:
    assert count(TopicConfig(retention_ms=-1), start=29) == 2
    assert count(TopicConfig(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1), start=29) == 2


def test_a_compacted_topic_is_never_touched_by_retention() -> None:
    assert count(TopicConfig(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)) == 0


def test_expired_segments_leave_and_the_logs_start_follows(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for i in range(40):
        small_segments.append(make_batch(1, timestamp_ms=1_000 + i), leader_epoch=i // 20)
    bases = [int(name[:20]) for name in small_segments.names(".log")]
    small_segments.configure(retention_ms=1_000, file_delete_delay_ms=500)
    now_ms = 2_000 + bases[2]  # the newest record of the second segment is just too old
    assert small_segments.log.delete_old_segments(now_ms, small_segments.log.log_end_offset) == 2
    assert small_segments.log.log_start_offset == bases[2]
    assert [offset for offset, _ in small_segments.read_all()] == list(range(bases[2], 40))
    assert len(small_segments.names(".log.deleted")) == 2
    small_segments.log.remove_deleted_files(now_ms + 499)
    assert len(small_segments.names(".log.deleted")) == 2
    small_segments.log.remove_deleted_files(now_ms + 500)
    assert small_segments.names(".deleted") == []
    assert small_segments.names(".snapshot")[0] == f"{bases[2]:020d}.snapshot"
    assert small_segments.reopen().log_start_offset == bases[2]


def test_an_expired_active_segment_is_rolled_and_deleted(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(7, timestamp_ms=1_000))
    folder.configure(retention_ms=10)
    assert folder.log.delete_old_segments(1_000_000, folder.log.log_end_offset) == 1
    assert (folder.log.log_start_offset, folder.log.log_end_offset) == (7, 7)
    assert folder.log.delete_old_segments(9_000_000, folder.log.log_end_offset) == 0
    assert folder.reopen().log_end_offset == 7
    assert folder.append(make_batch(1)).first_offset == 7
    assert folder.crash().log_end_offset == 8


def test_records_without_timestamps_expire_by_the_time_of_the_last_write(
    folder: LogFolder, make_batch: MakeBatch
) -> None:
    folder.configure(retention_ms=100)
    folder.append(make_batch(1, timestamp_ms=-1), now_ms=5_000)
    assert folder.log.delete_old_segments(5_100, folder.log.log_end_offset) == 0
    assert folder.log.delete_old_segments(5_101, folder.log.log_end_offset) == 1


def test_delete_records_moves_the_start_and_then_the_files_go(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for _ in range(40):
        small_segments.append(make_batch(1))
    assert small_segments.log.delete_records_before(25, 40) == 25
    assert small_segments.log.delete_records_before(20, 40) == 25
    assert [offset for offset, _ in small_segments.read_all()] == list(range(25, 40))
    assert small_segments.log.delete_old_segments(1_000_000, small_segments.log.log_end_offset) > 0
    assert small_segments.log.log_start_offset == 25
    with pytest.raises(KafkaError) as caught:
        small_segments.log.delete_records_before(41, 40)
    assert caught.value.code == ErrorCode.offset_out_of_range


def test_records_above_the_high_watermark_stay_however_old_and_however_many(
    small_segments: LogFolder, make_batch: MakeBatch
) -> None:
    for _ in range(40):
        small_segments.append(make_batch(1, timestamp_ms=1_000))
    bases = [int(name[:20]) for name in small_segments.names(".log")]
    small_segments.configure(retention_ms=1, retention_bytes=1)
    assert small_segments.log.delete_old_segments(1_000_000, bases[1] - 1) == 0
    assert small_segments.log.delete_old_segments(1_000_000, bases[2]) == 2
    assert small_segments.log.log_start_offset == bases[2]
    with pytest.raises(KafkaError) as caught:
        small_segments.log.delete_records_before(bases[2] + 2, bases[2] + 1)
    assert caught.value.code == ErrorCode.offset_out_of_range
    assert small_segments.log.log_start_offset == bases[2]


def test_an_idempotent_producer_survives_the_retention_of_its_records(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(1, producer_id=1, producer_epoch=0, base_sequence=0, timestamp_ms=1_000))
    folder.configure(retention_ms=10)
    folder.log.delete_old_segments(1_000_000, folder.log.log_end_offset)
    folder.configure(retention_ms=-1)
    folder.reopen()
    assert folder.append(make_batch(1, producer_id=1, producer_epoch=0, base_sequence=1)).first_offset == 1


@pytest.mark.parametrize(
    ("hold", "expected"),
    [
        (RetentionHold(40), Deletion(4)),
        (RetentionHold(39), Deletion(3, held_bytes=100)),
        (RetentionHold(20), Deletion(2, held_bytes=200)),
        (RetentionHold(19), Deletion(1, held_bytes=300)),
        (RetentionHold(0), Deletion(0, held_bytes=400)),
        (RetentionHold(0, 400), Deletion(0, held_bytes=400)),
        (RetentionHold(0, 399), Deletion(1, held_bytes=300, given_up_bytes=100)),
        (RetentionHold(20, 150), Deletion(3, held_bytes=100, given_up_bytes=100)),
        (RetentionHold(0, 0), Deletion(4, given_up_bytes=400)),
    ],
)
@pytest.mark.parametrize(
    "config",
    [TopicConfig(retention_ms=400), TopicConfig(retention_ms=-1, retention_bytes=0)],
    ids=["by time", "by size"],
)
def test_a_hold_keeps_what_groups_have_not_passed_up_to_its_limit(
    hold: RetentionHold, expected: Deletion, config: TopicConfig
) -> None:
    assert deletion(config, hold=hold) == expected


def test_a_hold_keeps_nothing_that_retention_does_not_delete() -> None:
    config = TopicConfig(retention_ms=5_000)
    assert deletion(config, hold=RetentionHold(0)) == Deletion(0, held_bytes=100)
    assert deletion(config, hold=RetentionHold(0, 0)) == Deletion(1, given_up_bytes=100)
    compacted = TopicConfig(cleanup_policy=("compact",), retention_ms=1)
    assert deletion(compacted, hold=RetentionHold(0, 0)) == Deletion(0)


def test_delete_records_is_obeyed_in_spite_of_a_hold() -> None:
    assert deletion(TopicConfig(retention_ms=-1), start=29, hold=RetentionHold(0)) == Deletion(2)
    assert deletion(TopicConfig(retention_ms=400), start=29, hold=RetentionHold(0)) == Deletion(2, held_bytes=200)


def test_what_is_not_known_never_deletes_more_than_what_is_known() -> None:
    for bytes_max in range(-1, 450, 50):
        unknown = deletion(TopicConfig(retention_ms=400), hold=RetentionHold(0, bytes_max)).count
        for offset in range(41):
            assert unknown <= deletion(TopicConfig(retention_ms=400), hold=RetentionHold(offset, bytes_max)).count


def test_where_all_is_held_anyway_only_the_first_segment_that_stays_is_looked_at() -> None:
    left = iter(SEGMENTS)
    config = TopicConfig(retention_ms=1, retention_bytes=0)
    found = segments_to_delete(
        left, total_bytes=400, config=config, now_ms=10_000, log_start_offset=10, high_watermark=40, hold=HOLD_ALL
    )
    assert (found, list(left)) == (Deletion(1), SEGMENTS[2:])
