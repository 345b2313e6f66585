"""The difference between a cluster and what a plan makes of it: moves, with the bytes they copy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = [
    "BlockedPartition",
    "BrokerLoad",
    "LogDirMove",
    "PartitionMove",
    "ReassignmentPlan",
    "apply_plan",
    "broker_loads",
]


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition's change of replicas, of their order, or of both.

    Attributes:
        before, after: Assignments, the preferred leader first.
        log_dirs: Folders in which brokers with several folders create the added replicas, as (broker, path).
        size_bytes: Size of one replica.
    """

    key: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int
    log_dirs: tuple[tuple[int, str], ...] = ()

    @property
    def added(self) -> tuple[int, ...]:
        """Brokers that receive a replica."""
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """Brokers that lose their replica."""
        return tuple(each for each in self.before if each not in self.after)

    @property
    def copied_bytes(self) -> int:
        """Bytes that followers copy."""
        return self.size_bytes * len(self.added)


@dataclass(frozen=True, slots=True)
class LogDirMove:
    """A replica's move to another folder of its broker (KIP-113)."""

    key: TopicPartition
    broker_id: int
    source: str
    target: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition of which a plan cannot move, or add, a replica, and the reason."""

    key: TopicPartition
    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What a broker has: replicas and partitions of which it is the preferred leader, with their bytes."""

    broker_id: int
    rack: str | None
    replicas: int
    size_bytes: int
    leaders: int
    leader_bytes: int


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """Moves in the order in which they start, and the loads of brokers before and after them.

    `elections`: partitions that do not move, whose preferred leader could lead and does not.
    """

    moves: tuple[PartitionMove, ...]
    log_dir_moves: tuple[LogDirMove, ...]
    elections: tuple[TopicPartition, ...]
    blocked: tuple[BlockedPartition, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.moves and not self.log_dir_moves and not self.elections

    @property
    def copies(self) -> tuple[PartitionMove, ...]:
        """Moves that copy a replica; the others change the preferred leader only."""
        return tuple(each for each in self.moves if each.added)

    @property
    def copied_bytes(self) -> int:
        """Bytes that followers copy, between brokers."""
        return sum(each.copied_bytes for each in self.moves)

    def as_json(self) -> dict[str, Any]:
        """Return the plan for programs; `partitions` are as in the file of kafka-reassign-partitions.sh."""
        return {
            "partitions": [
                {
                    "topic": each.key.topic,
                    "partition": each.key.partition,
                    "replicas": list(each.after),
                    "log_dirs": [dict(each.log_dirs).get(broker, "any") for broker in each.after],
                    "previous_replicas": list(each.before),
                    "size_bytes": each.size_bytes,
                }
                for each in self.moves
            ],
            "log_dirs": [
                {
                    "topic": each.key.topic,
                    "partition": each.key.partition,
                    "broker": each.broker_id,
                    "source": each.source,
                    "target": each.target,
                    "size_bytes": each.size_bytes,
                }
                for each in self.log_dir_moves
            ],
            "elections": [{"topic": each.topic, "partition": each.partition} for each in self.elections],
            "blocked": [
                {
                    "topic": each.key.topic,
                    "partition": each.key.partition,
                    "broker": each.broker_id,
                    "reason": each.reason,
                }
                for each in self.blocked
            ],
            "copied_bytes": self.copied_bytes,
            "brokers": [
                {
                    "broker": old.broker_id,
                    "rack": old.rack,
                    "replicas": old.replicas,
                    "replicas_after": new.replicas,
                    "size_bytes": old.size_bytes,
                    "size_bytes_after": new.size_bytes,
                    "leaders": old.leaders,
                    "leaders_after": new.leaders,
                    "leader_bytes": old.leader_bytes,
                    "leader_bytes_after": new.leader_bytes,
                }
                for old, new in zip(self.before, self.after, strict=True)
            ],
        }


def broker_loads(
    snapshot: ClusterSnapshot, assignment: dict[TopicPartition, tuple[int, ...]]
) -> tuple[BrokerLoad, ...]:
    """Return the loads of all present brokers, and of those away that have replicas, by id."""
    known = sorted({*snapshot.brokers, *snapshot.absent})
    counts = {each: [0, 0, 0, 0] for each in known}
    for key, replicas in assignment.items():
        size = snapshot.partitions[key].size_bytes
        for broker_id in replicas:
            counts[broker_id][0] += 1
            counts[broker_id][1] += size
        if replicas:
            counts[replicas[0]][2] += 1
            counts[replicas[0]][3] += size
    racks = {each.broker_id: each.rack for each in snapshot.brokers.values()}
    return tuple(BrokerLoad(each, racks.get(each), *counts[each]) for each in known)


def apply_plan(snapshot: ClusterSnapshot, moves: Sequence[PartitionMove]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the assignment after moves."""
    return {key: each.replicas for key, each in snapshot.partitions.items()} | {each.key: each.after for each in moves}
