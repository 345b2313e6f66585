"""What a partition reads of its log."""

from typing import Protocol


class ReplicatedConfig(Protocol):
    """The config of a topic that a partition uses."""

    @property
    def min_insync_replicas(self) -> int:
        """Members that the ISR needs for the high watermark to move, at most the number of replicas."""


class EpochHistory(Protocol):
    """The leader epochs of a log."""

    @property
    def latest(self) -> int:
        """The newest epoch, -1 without one."""

    def end_offset_for(self, leader_epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """Return the greatest epoch at or below the given one, and its end offset."""


class PartitionLog(Protocol):
    """The properties of a log that a partition uses."""

    log_start_offset: int
    log_end_offset: int

    @property
    def config(self) -> ReplicatedConfig:
        """The present configs of the topic."""

    @property
    def leader_epochs(self) -> EpochHistory:
        """The epochs of the records."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the first transaction that is ongoing or ends at or above the high watermark."""
