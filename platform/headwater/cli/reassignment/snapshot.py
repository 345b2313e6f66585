"""The state of a cluster from which reassignments are planned: brokers, log folders, replicas, sizes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["BrokerSnapshot", "ClusterSnapshot", "LogDirSnapshot", "PartitionSnapshot", "rack_spread"]

#: What moves leave free of a file system, the lesser of both: segments grow, and a leader whose folder is full refuses
#: appends.
ROOM_RESERVE_PERCENT: Final = 5
ROOM_RESERVE_BYTES_MAX: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class LogDirSnapshot:
    """An online log folder; `total_bytes` and `usable_bytes` are its file system's, None if unknown (KIP-827)."""

    path: str
    total_bytes: int | None = None
    usable_bytes: int | None = None

    @property
    def room_bytes(self) -> int | None:
        """The bytes that moves may fill, None if unknown: the usable ones less a reserve.

        >>> LogDirSnapshot("a", 1_000, 100).room_bytes, LogDirSnapshot("a", None, 100).room_bytes
        (50, 100)
        """
        if self.usable_bytes is None or self.total_bytes is None:
            return self.usable_bytes
        return self.usable_bytes - min(self.total_bytes * ROOM_RESERVE_PERCENT // 100, ROOM_RESERVE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """A broker that is present; without online log folders it cannot receive replicas."""

    broker_id: int
    rack: str | None
    log_dirs: tuple[LogDirSnapshot, ...]


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition and its replicas.

    Attributes:
        replicas: The assignment, the preferred leader first; of a running reassignment its target.
        leader: None if the partition is offline: there is no replica to copy from.
        size_bytes: Size of one replica: the largest that a present broker reports.
        log_dirs: Folder by broker, of the replicas on present brokers.
    """

    key: TopicPartition
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...] = ()
    size_bytes: int = 0
    log_dirs: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Present brokers and all partitions. Brokers that are away are known from the assignments only."""

    brokers: Mapping[int, BrokerSnapshot]
    partitions: Mapping[TopicPartition, PartitionSnapshot]

    @property
    def absent(self) -> frozenset[int]:
        """Brokers that have replicas and are away."""
        return frozenset(each for part in self.partitions.values() for each in part.replicas) - self.brokers.keys()

    @property
    def racks(self) -> dict[int, str]:
        """Rack by broker. As in the placement of new topics, each broker is a rack unless all brokers have one.

        >>> two = {1: BrokerSnapshot(1, "a", ()), 2: BrokerSnapshot(2, None, ())}
        >>> ClusterSnapshot(two, {}).racks
        {1: 'broker 1', 2: 'broker 2'}
        """
        named = {each.broker_id: each.rack for each in self.brokers.values() if each.rack is not None}
        if named and len(named) == len(self.brokers):
            # The rack of a broker that is away is unknown: it counts as none.
            return named
        known = sorted({*self.brokers, *self.absent})
        return {broker_id: f"broker {broker_id}" for broker_id in known}


def rack_spread(replicas: Iterable[int], racks: Mapping[int, str]) -> int:
    """Return the number of known racks that have a replica.

    >>> rack_spread((1, 2, 3), {1: "a", 2: "a", 3: "b"})
    2
    """
    return len({racks[each] for each in replicas if each in racks})
