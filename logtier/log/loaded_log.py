"""The state of a log read from its files, from which a `Log` is made."""

from dataclasses import dataclass
from uuid import UUID

from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.log.producers.producer_snapshots import ProducerSnapshots
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log loaded from its folder, or newly created there.

    Its parts belong to the single `Log` made from it.

    Args:
        segments: In offset order, at least one; the last one becomes the active segment.
        recovery_point: Every record below this offset is on the device.
        is_on_device: Whether all files and their names are on the device, as after a clean stop.
    """

    directory: str
    topic_partition: TopicPartition
    topic_id: UUID
    segments: tuple[LogSegment, ...]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerStates
    snapshots: ProducerSnapshots
    leader_epochs: LeaderEpochs
    is_on_device: bool = False

    def __post_init__(self) -> None:
        assert self.segments
        assert self.log_start_offset <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
