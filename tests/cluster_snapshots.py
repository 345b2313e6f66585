"""Snapshots of clusters for tests of reassignment, and what a plan makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.snapshot import BrokerSnapshot, ClusterSnapshot, LogDirSnapshot, PartitionSnapshot
from headwater.logtier.protocol.topic_partition import TopicPartition

DIR = "a"
Brokers = dict[int, BrokerSnapshot]


def brokers_of(*brokers: int, racks: Sequence[str | None] = (), dirs: Sequence[str] = (DIR,)) -> Brokers:
    """Brokers with folders of unknown room."""
    folders = tuple(LogDirSnapshot(each) for each in dirs)
    return {
        broker: BrokerSnapshot(broker, racks[index] if racks else None, folders) for index, broker in enumerate(brokers)
    }


def partition_of(name: str, replicas: Sequence[int], size_bytes: int = 0, **others: object) -> PartitionSnapshot:
    """A partition with all replicas in sync, in folder `a` of their brokers."""
    topic, _, number = name.rpartition("-")
    made = PartitionSnapshot(
        TopicPartition(topic, int(number)),
        tuple(replicas),
        replicas[0],
        tuple(replicas),
        size_bytes,
        dict.fromkeys(replicas, DIR),
    )
    return replace(made, **others)  # type: ignore[arg-type]


def cluster_of(brokers: Mapping[int, BrokerSnapshot], *partitions: PartitionSnapshot) -> ClusterSnapshot:
    """A snapshot."""
    return ClusterSnapshot(brokers, {each.key: each for each in partitions})


def carried_out(snapshot: ClusterSnapshot, plan: ReassignmentPlan) -> ClusterSnapshot:
    """The cluster after a plan: brokers create replicas where the plan pins them, and preferred leaders lead."""
    parts = dict(snapshot.partitions)
    used: dict[tuple[int, str], int] = {}

    def occupy(broker: int, path: str, size: int) -> None:
        used[broker, path] = used.get((broker, path), 0) + size

    for move in plan.moves:
        part = parts[move.key]
        dirs = dict(part.log_dirs or {})
        for broker in move.removed:
            if broker in dirs:
                occupy(broker, dirs.pop(broker), -move.size_bytes)
        for broker in move.added:
            [*paths] = (each.path for each in snapshot.brokers[broker].log_dirs)
            path = dict(move.log_dirs).get(broker, paths[0])
            assert len(paths) == 1 or broker in dict(move.log_dirs)
            dirs[broker] = path
            occupy(broker, path, move.size_bytes)
        in_sync = tuple(each for each in move.after if each in snapshot.brokers)
        leader = move.after[0] if move.after[0] in snapshot.brokers else part.leader
        parts[move.key] = replace(part, replicas=move.after, log_dirs=dirs, isr=in_sync, leader=leader)
    for each in plan.log_dir_moves:
        part = parts[each.key]
        assert part.log_dirs is not None and part.log_dirs[each.broker_id] == each.source
        parts[each.key] = replace(part, log_dirs=dict(part.log_dirs) | {each.broker_id: each.target})
        occupy(each.broker_id, each.source, -each.size_bytes)
        occupy(each.broker_id, each.target, each.size_bytes)
    for key in plan.elections:
        parts[key] = replace(parts[key], leader=parts[key].replicas[0])
    brokers = {
        broker.broker_id: replace(
            broker,
            log_dirs=tuple(
                replace(
                    folder,
                    usable_bytes=None
                    if folder.usable_bytes is None
                    else folder.usable_bytes - used.get((broker.broker_id, folder.path), 0),
                )
                for folder in broker.log_dirs
            ),
        )
        for broker in snapshot.brokers.values()
    }
    return ClusterSnapshot(brokers, parts)
