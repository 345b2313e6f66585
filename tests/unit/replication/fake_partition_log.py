"""The properties of a log that a partition's state machine reads, set by a test."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from headwater.logtier.config import TopicConfig


class FakeEpochs:
    """The leader epochs of the records, each with its start offset."""

    def __init__(self, *starts: tuple[int, int]) -> None:
        self.starts = list(starts)

    @property
    def latest(self) -> int:
        return self.starts[-1][0] if self.starts else -1

    def end_offset_for(self, leader_epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        following = bisect_right([epoch for epoch, _ in self.starts], leader_epoch)
        if not following:
            return -1, -1
        end = self.starts[following][1] if following < len(self.starts) else log_end_offset
        return self.starts[following - 1][0], end


@dataclass
class FakePartitionLog:
    """A log without records."""

    log_start_offset: int = 0
    log_end_offset: int = 10
    first_unstable_offset: int = 1_000
    config: TopicConfig = field(default_factory=TopicConfig)
    leader_epochs: FakeEpochs = field(default_factory=FakeEpochs)

    def last_stable_offset(self, high_watermark: int) -> int:
        return min(high_watermark, self.first_unstable_offset)
