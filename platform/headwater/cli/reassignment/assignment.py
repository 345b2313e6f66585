"""A draft of an assignment: replicas move in it one at a time, and every load is known at once. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Final

from headwater.cli.reassignment.plan import (
    BlockedPartition,
    LogDirMove,
    PartitionMove,
    ReassignmentPlan,
    apply_plan,
    broker_loads,
)
from headwater.cli.reassignment.snapshot import ClusterSnapshot, LogDirSnapshot, rack_spread
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["AssignmentDraft"]

_UNLIMITED: Final = 1 << 62


class AssignmentDraft:
    """The assignment of all partitions while it is planned.

    Invariant: a partition has no two replicas on one broker, and loses none. `sizes`, `counts`, `sorted_of`,
    the folders' bytes and room follow every change.
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.racks = snapshot.racks
        self.rack_count = len({self.racks[each] for each in snapshot.brokers})
        self.replicas = {key: list(part.replicas) for key, part in sorted(snapshot.partitions.items())}
        #: Present brokers that can receive replicas.
        self.receivers = sorted(each.broker_id for each in snapshot.brokers.values() if each.log_dirs)
        known = {*snapshot.brokers, *snapshot.absent}
        self.sizes = dict.fromkeys(known, 0)
        self.counts = dict.fromkeys(known, 0)
        #: (size, partition) of each broker's replicas, ascending.
        self.sorted_of: dict[int, list[tuple[int, TopicPartition]]] = {each: [] for each in known}
        self.dir_sizes = {
            each.broker_id: {folder.path: 0 for folder in each.log_dirs} for each in snapshot.brokers.values()
        }
        self.dir_room = {
            each.broker_id: {folder.path: _room(folder) for folder in each.log_dirs}
            for each in snapshot.brokers.values()
        }
        self.dir_of: dict[tuple[TopicPartition, int], str] = {}
        #: Number of changes of a broker's replicas, for what is remembered of a search.
        self.versions: defaultdict[int, int] = defaultdict(int)
        for key, part in snapshot.partitions.items():
            for broker_id in part.replicas:
                self.sizes[broker_id] += part.size_bytes
                self.counts[broker_id] += 1
                self.sorted_of[broker_id].append((part.size_bytes, key))
            for broker_id, path in (part.log_dirs or {}).items():
                if broker_id in part.replicas and path in self.dir_sizes.get(broker_id, ()):
                    self.dir_of[key, broker_id] = path
                    self.dir_sizes[broker_id][path] += part.size_bytes
        for each in self.sorted_of.values():
            each.sort()

    def size(self, key: TopicPartition) -> int:
        """Return the size of one replica in bytes."""
        return self.snapshot.partitions[key].size_bytes

    def has_room(self, broker_id: int, size_bytes: int) -> bool:
        """Return whether one of a broker's folders has room for a replica."""
        return any(room >= size_bytes for room in self.dir_room[broker_id].values())

    def spread(self, key: TopicPartition) -> int:
        """Return the number of racks that have a replica of a partition."""
        return rack_spread(self.replicas[key], self.racks)

    def spread_after(self, key: TopicPartition, source: int, target: int) -> int:
        """Return the same after a move of one replica."""
        return rack_spread((target if each == source else each for each in self.replicas[key]), self.racks)

    def may_move(self, key: TopicPartition, source: int, target: int) -> bool:
        """Return whether a replica can move without a loss: there is a leader to copy from, room, and racks remain."""
        return (
            target not in self.replicas[key]
            and self.snapshot.partitions[key].leader is not None
            and self.has_room(target, self.size(key))
            and self.spread_after(key, source, target) >= self.spread(key)
        )

    def move(self, key: TopicPartition, source: int, target: int) -> None:
        """Replace a replica in its position."""
        replicas = self.replicas[key]
        assert target not in replicas, (key, target)
        replicas[replicas.index(source)] = target
        self._remove(key, source)
        self._place(key, target)

    def add(self, key: TopicPartition, target: int) -> None:
        """Add a replica, the last in order."""
        replicas = self.replicas[key]
        assert target not in replicas, (key, target)
        replicas.append(target)
        self._place(key, target)

    def move_dir(self, key: TopicPartition, broker_id: int, path: str) -> None:
        """Place a replica in another folder of its broker."""
        self._leave_dir(key, broker_id)
        self._enter_dir(key, broker_id, path)

    def lead(self, key: TopicPartition, broker_id: int) -> None:
        """Make a replica the preferred leader; the others keep their order."""
        replicas = self.replicas[key]
        replicas.remove(broker_id)
        replicas.insert(0, broker_id)

    def _place(self, key: TopicPartition, broker_id: int) -> None:
        size = self.size(key)
        insort(self.sorted_of[broker_id], (size, key))
        self.sizes[broker_id] += size
        self.counts[broker_id] += 1
        self.versions[broker_id] += 1
        self._enter_dir(key, broker_id, self._dir_for(broker_id, size))

    def _remove(self, key: TopicPartition, broker_id: int) -> None:
        size = self.size(key)
        of_broker = self.sorted_of[broker_id]
        del of_broker[bisect_left(of_broker, (size, key))]
        self.sizes[broker_id] -= size
        self.counts[broker_id] -= 1
        self.versions[broker_id] += 1
        self._leave_dir(key, broker_id)

    def _dir_for(self, broker_id: int, size: int) -> str:
        """Return the folder with the fewest bytes among those with room."""
        room, sizes = self.dir_room[broker_id], self.dir_sizes[broker_id]
        fitting = [path for path in room if room[path] >= size] or list(room)
        return min(fitting, key=lambda path: (sizes[path], path))

    def _enter_dir(self, key: TopicPartition, broker_id: int, path: str) -> None:
        size = self.size(key)
        self.dir_of[key, broker_id] = path
        self.dir_sizes[broker_id][path] += size
        self.dir_room[broker_id][path] -= size

    def _leave_dir(self, key: TopicPartition, broker_id: int) -> None:
        path = self.dir_of.pop((key, broker_id), None)
        if path is not None:
            size = self.size(key)
            self.dir_sizes[broker_id][path] -= size
            self.dir_room[broker_id][path] += size

    def plan(
        self, blocked: tuple[BlockedPartition, ...] = (), elections: tuple[TopicPartition, ...] = ()
    ) -> ReassignmentPlan:
        """Return the moves that make this assignment of the present one, large ones first."""
        moves = [
            self._partition_move(key)
            for key, replicas in self.replicas.items()
            if tuple(replicas) != self.snapshot.partitions[key].replicas
        ]
        moves.sort(key=lambda each: (not each.added, -each.copied_bytes, each.key))
        before = {key: part.replicas for key, part in self.snapshot.partitions.items()}
        return ReassignmentPlan(
            tuple(moves),
            tuple(self._log_dir_moves()),
            elections,
            blocked,
            broker_loads(self.snapshot, before),
            broker_loads(self.snapshot, apply_plan(self.snapshot, moves)),
        )

    def _partition_move(self, key: TopicPartition) -> PartitionMove:
        part, after = self.snapshot.partitions[key], tuple(self.replicas[key])
        pinned = tuple(
            (each, self.dir_of[key, each])
            for each in after
            if each not in part.replicas and len(self.dir_sizes[each]) > 1
        )
        return PartitionMove(key, part.replicas, after, part.size_bytes, pinned)

    def _log_dir_moves(self) -> list[LogDirMove]:
        found = []
        for key, part in self.snapshot.partitions.items():
            for broker_id, source in sorted((part.log_dirs or {}).items()):
                target = self.dir_of.get((key, broker_id))
                if broker_id in part.replicas and target is not None and target != source:
                    found.append(LogDirMove(key, broker_id, source, target, part.size_bytes))
        return sorted(found, key=lambda each: (-each.size_bytes, each.key, each.broker_id))


def _room(log_dir: LogDirSnapshot) -> int:
    return _UNLIMITED if log_dir.room_bytes is None else log_dir.room_bytes
