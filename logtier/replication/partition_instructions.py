"""What a partition's state machine receives and what it asks of its broker. Pure values."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

# -- in


class StoredPartition(Protocol):
    """The state of a partition in the metadata; `leader` is -1 without a leader."""

    @property
    def leader(self) -> int: ...  # noqa: D102
    @property
    def leader_epoch(self) -> int: ...  # noqa: D102
    @property
    def partition_epoch(self) -> int: ...  # noqa: D102
    @property
    def replicas(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def isr(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def least_replication_factor(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class IsrDecision:
    """The controller's answer to a proposal: an error, or the state of the partition that it stored."""

    error_code: ErrorCode
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class LeaderFence(enum.Flag):
    """Why this broker does not lead a partition although its metadata says so: another one may, for all it knows."""

    #: The session with the metadata store is over: the controller has others elected.
    SESSION_OVER = enum.auto()
    #: Neither the metadata store nor any other member of the ISR has been heard of for long.
    CUT_OFF = enum.auto()


# -- out


class IsrMember(NamedTuple):
    """A member of a proposed ISR, in the broker epoch in which it qualified; -1 if unknown (KIP-903)."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller for another ISR (AlterPartition); a leader that asks has recovered (KIP-704).

    Attributes:
        partition_epoch: The epoch that the change is compared with.
        is_repeated: Whether the same change was asked for before, without an answer that decides: the sender backs off
            and asks the controller of the newest image.
    """

    topic_partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    members: tuple[IsrMember, ...]
    is_repeated: bool = False

    @property
    def isr(self) -> tuple[int, ...]:
        """The broker ids of the proposed ISR."""
        return tuple(member.broker_id for member in self.members)


@dataclass(frozen=True, slots=True)
class WatermarkMoved:
    """Complete fetches and produces that wait for the high watermark."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class IsrBelowMinimum:
    """Refuse produces that wait for the high watermark: it stands until the ISR has enough members again."""


@dataclass(frozen=True, slots=True)
class LowWatermarkMoved:
    """Complete DeleteRecords requests that wait for the log start offset of every live replica."""

    low_watermark: int


@dataclass(frozen=True, slots=True)
class LeadershipMoved:
    """Check every waiting request: the leader or its epoch is another one."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove the records from this offset on: the leader does not have them (KIP-101)."""

    offset: int


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """Raise the log start offset to the leader's."""

    offset: int


Instruction = ProposeIsr | WatermarkMoved | IsrBelowMinimum | LowWatermarkMoved | LeadershipMoved
Instructions = tuple[Instruction, ...]
"""What the broker of a partition does, in this order."""

FollowerInstructions = tuple[Truncate | WatermarkMoved | RaiseLogStart, ...]
"""What the fetcher of a follower does, in this order."""

NOTHING: tuple[()] = ()
