"""What the metrics tell of groups that hold back retention."""

from __future__ import annotations

from headwater.logtier.log.retention_holds import HoldState
from headwater.logtier.metrics.families import hold_families
from headwater.logtier.protocol.topic_partition import TopicPartition


def test_held_bytes_their_limit_and_what_was_given_up_are_told_by_partition() -> None:
    states = {
        TopicPartition("flights", 1): HoldState(retention_bytes=70, compaction_bytes=50),
        TopicPartition("flights", 0): HoldState(compaction_bytes=90, bytes_max=100, given_up_bytes=30),
    }
    samples = [
        (sample.name, sample.labels["topic"], sample.labels["partition"], sample.value)
        for family in hold_families(states)
        for sample in family.samples
    ]
    assert samples == [
        ("headwater_retention_held_bytes", "flights", "0", 90),
        ("headwater_retention_held_bytes", "flights", "1", 70),
        ("headwater_retention_hold_max_bytes", "flights", "0", 100),
        ("headwater_retention_hold_given_up_bytes_total", "flights", "0", 30),
        ("headwater_retention_hold_given_up_bytes_total", "flights", "1", 0),
    ]
