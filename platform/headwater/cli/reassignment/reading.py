"""Reads a cluster over Kafka's protocol, as a plan and as its execution need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from headwater.cli.reassignment.execution import ClusterObservation
from headwater.cli.reassignment.snapshot import BrokerSnapshot, ClusterSnapshot, LogDirSnapshot, PartitionSnapshot
from headwater.logtier.client.administration import partitions_by_topic
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.replicas import AssignedPartition, ReplicaAdmin, ReplicaLogDir
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["read_cluster", "read_observation"]

#: Readings before the reassignments are the same before and after the metadata: a burst of them ends soon.
READINGS_MAX: Final = 20

Running = dict[TopicPartition, OngoingReassignment]


def read_cluster(admin: ReplicaAdmin) -> tuple[ClusterSnapshot, Running]:
    """Return the whole cluster, and the running reassignments, whose targets are in its assignments.

    Raises BrokerError if this user may not describe all topics: a drain would leave their replicas, and say that it is
    done.
    """
    for _ in range(READINGS_MAX):
        running = _running(admin)
        brokers, assigned = admin.assignments()
        if _running(admin).keys() == running.keys():
            break
    else:
        raise ClientError("reassignments start and end too fast for a plan; wait until they are over")
    dirs = {each: admin.log_dirs(each) for each in sorted(brokers)}
    # A broker that does not answer has died since; it is away.
    present = {
        each: BrokerSnapshot(each, brokers[each].rack, _folders(found))
        for each, found in dirs.items()
        if found is not None
    }
    sizes: dict[TopicPartition, int] = {}
    places: dict[TopicPartition, dict[int, str]] = {}
    for broker_id, found in dirs.items():
        for folder in found or ():
            for each in folder.replicas:
                key = TopicPartition(each.topic, each.partition)
                if not each.is_future:
                    sizes[key] = max(sizes.get(key, 0), each.size_bytes)
                    places.setdefault(key, {})[broker_id] = folder.path
    # The metadata of all topics leaves out those that this user may not describe; of a named one it tells that.
    if hidden := {key.topic for key in sizes} - {each.topic for each in assigned}:
        admin.assignments(sorted(hidden))
    partitions = _partitions(assigned, running)
    return (
        ClusterSnapshot(
            present,
            {
                key: replace(part, size_bytes=sizes.get(key, 0), log_dirs=places.get(key, {}))
                for key, part in partitions.items()
            },
        ),
        running,
    )


def read_observation(
    admin: ReplicaAdmin,
    sizes: Mapping[TopicPartition, int],
    asked_dirs: Collection[int],
    changing_dirs: Collection[TopicPartition] = (),
) -> ClusterObservation:
    """Return the present state of some partitions.

    Args:
        sizes: Partitions of the plan, with their sizes when it was made.
        asked_dirs: Brokers whose folders are read.
        changing_dirs: Partitions with replicas that move between folders.
    """
    running = _running(admin)
    brokers, assigned = admin.assignments(partitions_by_topic(sizes))
    # Only what changes: a broker refuses a request about more partitions than 20,000, and this one is sent every time.
    changing = partitions_by_topic({*changing_dirs, *(key for key in running if key in sizes)})
    present: dict[int, BrokerSnapshot] = {}
    places: dict[TopicPartition, dict[int, str]] = {}
    copied: dict[tuple[TopicPartition, int], int] = {}
    for broker_id, broker in brokers.items():
        folders: tuple[LogDirSnapshot, ...] = ()
        if broker_id in asked_dirs:
            found = admin.log_dirs(broker_id, changing)
            if found is None:
                continue
            folders = _folders(found)
            for folder in found:
                for each in folder.replicas:
                    key = TopicPartition(each.topic, each.partition)
                    if each.is_future or (key in running and broker_id in running[key].adding):
                        copied[key, broker_id] = each.size_bytes
                    if not each.is_future:
                        places.setdefault(key, {})[broker_id] = folder.path
        present[broker_id] = BrokerSnapshot(broker_id, broker.rack, folders)
    partitions = {
        key: replace(part, size_bytes=sizes[key], log_dirs=places.get(key, {}))
        for key, part in _partitions(assigned, running).items()
        if key in sizes
    }
    return ClusterObservation(ClusterSnapshot(present, partitions), running, copied)


def _running(admin: ReplicaAdmin) -> Running:
    return {TopicPartition(*key): each for key, each in admin.reassignments().items()}


def _partitions(assigned: list[AssignedPartition], running: Running) -> dict[TopicPartition, PartitionSnapshot]:
    found = {}
    for each in assigned:
        key = TopicPartition(each.topic, each.partition)
        moving = running.get(key)
        replicas = each.replicas if moving is None else moving.target
        found[key] = PartitionSnapshot(key, replicas, each.leader, each.isr)
    return found


def _folders(found: tuple[ReplicaLogDir, ...]) -> tuple[LogDirSnapshot, ...]:
    return tuple(LogDirSnapshot(each.path, each.total_bytes, each.usable_bytes) for each in found)
