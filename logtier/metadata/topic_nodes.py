"""The nodes of a topic: its id and number of partitions, and the state of its partitions in chunks of 64.

| path | data |
|---|---|
| `/brokers/topics/<name>` | `{"version":4,"topic_id":...,"partitions":6}` |
| `/brokers/topics/<name>/<chunk>` | `{"version":1,"partitions":[[replicas,isr,leader,leader_epoch,epoch],...]}` |

A partition without a full ISR has three more elements: its ELR, its last known leader, and whether the leader recovers.
So has one with a replica on a broker of several log folders, and one more: the id of each replica's folder (KIP-858).
So has one whose replicas are being reassigned, and after those ids, or none, one more: its adding, removing and former
replicas (KIP-455).

Chunk k holds partitions 64 k to 64 k + 63. A node for each partition would make 100,000 nodes, each of which every
broker reads; one node for all partitions of a topic would exceed the size limit of a node (see ADR 0034).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from headwater.logtier.metadata.paths import TOPICS, CorruptNodeError, topic_path
from headwater.logtier.metadata.store import Create, Delete, Operation, SetData
from headwater.logtier.protocol import uuids

CHUNK_PARTITIONS: Final = 64
"""Partitions in a chunk: 1 to 3 KB, so that a change of one partition writes little and a topic of six has one node."""

NO_BROKER: Final = -1

#: ELR, last known leader, and whether the leader recovers.
_FULL_ISR: Final = ((), NO_BROKER, False)

_DIRECTORY_ID_LENGTH_MAX: Final = 64

_TOPIC_VERSION: Final = 4
_CHUNK_VERSION: Final = 1


class Reassignment(NamedTuple):
    """The replicas of a partition that change (KIP-455).

    Attributes:
        adding: Replicas of the target that the partition did not have before.
        removing: Replicas that are no part of the target. They leave when all of the adding ones are in sync.
        former: The replicas before, in their order: a cancellation goes back to them.
    """

    adding: tuple[int, ...]
    removing: tuple[int, ...]
    former: tuple[int, ...]

    def target(self, replicas: Sequence[int]) -> tuple[int, ...]:
        """Return those of the present replicas that stay."""
        return tuple([each for each in replicas if each not in self.removing])

    def least_replication_factor(self, replicas: Sequence[int]) -> int:
        """Return the number of replicas before or after, the smaller one."""
        return min(len(self.former), len(replicas) - len(self.removing))


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. `leader` is NO_BROKER without a leader; `partition_epoch` grows with each change.

    Attributes:
        elr: The eligible leader replicas: out of the ISR, but with every committed record (KIP-966).
        last_known_leader: The last leader of a partition without one, else NO_BROKER.
        is_recovering: Whether the leader, elected uncleanly, has not yet reported that it has recovered (KIP-704).
        directories: The id of each replica's log folder, empty for one that its broker has not reported (KIP-858); no
            elements if none is known, as with brokers that have one folder each.
        reassignment: What changes of the replicas, None if nothing does. Meanwhile `replicas` has those of the target
            in its order, then those that are removed.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_BROKER
    is_recovering: bool = False
    directories: tuple[str, ...] = ()
    reassignment: Reassignment | None = None

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment under way; all of them without one."""
        return self.replicas if self.reassignment is None else self.reassignment.target(self.replicas)

    @property
    def least_replication_factor(self) -> int:
        """The number of replicas, before or after a reassignment: the smaller one.

        It bounds min.insync.replicas: with all replicas of a reassignment counted, a partition of one replica that is
        moved would refuse acks=all until the new replica is in sync.
        """
        if self.reassignment is None:
            return len(self.replicas)
        return self.reassignment.least_replication_factor(self.replicas)

    def directory_of(self, broker_id: int) -> str:
        """Return the id of the log folder of a replica; empty if it is not known."""
        return self.directories[self.replicas.index(broker_id)] if self.directories else ""


def first_partition_state(replicas: tuple[int, ...], leader_epoch: int = 0) -> PartitionImage:
    """Return the initial state of a partition: the preferred replica leads, and all replicas are in sync."""
    return PartitionImage(
        leader=replicas[0], leader_epoch=leader_epoch, partition_epoch=0, replicas=replicas, isr=replicas
    )


def encode_topic(topic_id: UUID, partition_count: int) -> bytes:
    """Data of a topic's node."""
    return orjson.dumps({"version": _TOPIC_VERSION, "topic_id": uuids.to_text(topic_id), "partitions": partition_count})


def decode_topic(path: str, data: bytes) -> tuple[UUID, int]:
    """Return the id of a topic and the number of its partitions; CorruptNodeError."""
    fields = _fields(path, data, _TOPIC_VERSION)
    try:
        count = fields["partitions"]
        if not isinstance(count, int) or count < 1:
            raise ValueError(count)
        return uuids.from_text(fields["topic_id"]), count
    except (KeyError, TypeError, ValueError):
        raise CorruptNodeError(path, data) from None


def chunk_path(topic: str, chunk: int) -> str:
    """Path of the state of a topic's partitions 64 `chunk` and following.

    >>> chunk_path("flights", 0)
    '/brokers/topics/flights/0'
    """
    return f"{TOPICS}/{topic}/{chunk}"


def encode_chunk(partitions: Sequence[PartitionImage]) -> bytes:
    """Data of a chunk.

    >>> encode_chunk([PartitionImage(leader=2, leader_epoch=5, partition_epoch=7, replicas=(1, 2), isr=(2,))])
    b'{"version":1,"partitions":[[[1,2],[2],2,5,7]]}'
    """
    return orjson.dumps({"version": _CHUNK_VERSION, "partitions": [_state(each) for each in partitions]})


def _state(partition: PartitionImage) -> tuple[object, ...]:
    state = (
        partition.replicas,
        partition.isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
    )
    more = (partition.elr, partition.last_known_leader, partition.is_recovering)
    if partition.reassignment is not None:
        return (*state, *more, partition.directories, tuple(partition.reassignment))
    if partition.directories:
        return (*state, *more, partition.directories)
    return state if more == _FULL_ISR else (*state, *more)


def decode_chunk(path: str, data: bytes) -> tuple[PartitionImage, ...]:
    """Return the partitions of a chunk.

    Raises:
        CorruptNodeError: The data is not a chunk, or a state contradicts itself: a leader or a member of the ISR that
            is no replica, a replica listed twice or both in the ISR and in the ELR, a negative epoch, a reassignment of
            other replicas.
    """
    # Partitions of a topic often have the same replicas: one tuple serves all of them.
    tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
    try:
        states = _fields(path, data, _CHUNK_VERSION)["partitions"]
        partitions = tuple([_partition(tuples, *state) for state in states])
    except (KeyError, TypeError, ValueError):
        raise CorruptNodeError(path, data) from None
    if not 0 < len(partitions) <= CHUNK_PARTITIONS:
        raise CorruptNodeError(path, data)
    return partitions


def _partition(
    tuples: dict[tuple[int, ...], tuple[int, ...]],
    replicas: list[Any],
    isr: list[Any],
    leader: int,
    leader_epoch: Any,
    partition_epoch: Any,
    elr: Sequence[Any] = (),
    last_known_leader: int = NO_BROKER,
    is_recovering: Any = False,
    directories: Sequence[Any] = (),
    reassignment: Sequence[Sequence[Any]] | None = None,
) -> PartitionImage:
    members = set(replicas)
    for number in (leader_epoch, partition_epoch, *members):
        if number.__class__ is not int or number < 0:
            raise ValueError(number)
    if not members or len(members) != len(replicas) or is_recovering.__class__ is not bool:
        raise ValueError(replicas)
    if isr != replicas or elr:
        listed = [*isr, *elr]
        if len(set(listed)) != len(listed) or not members.issuperset(listed):
            raise ValueError(listed)
    if not members.issuperset({leader, last_known_leader} - {NO_BROKER}):
        raise ValueError(leader)
    if directories:
        if len(directories) != len(replicas):
            raise ValueError(directories)
        for directory in directories:
            if directory.__class__ is not str or len(directory) > _DIRECTORY_ID_LENGTH_MAX:
                raise ValueError(directory)
    assigned = tuple(replicas)
    assigned = tuples.setdefault(assigned, assigned)
    in_sync = assigned
    if isr != replicas:
        in_sync = tuple(isr)
        in_sync = tuples.setdefault(in_sync, in_sync)
    return PartitionImage(
        leader,
        leader_epoch,
        partition_epoch,
        assigned,
        in_sync,
        tuple(elr),
        last_known_leader,
        is_recovering,
        tuple([sys.intern(each) for each in directories]),  # few ids in many partitions
        None if reassignment is None else _reassignment(replicas, *reassignment),
    )


def _reassignment(
    replicas: Sequence[Any], adding: Sequence[Any], removing: Sequence[Any], former: Sequence[Any]
) -> Reassignment:
    changed = Reassignment(tuple(adding), tuple(removing), tuple(former))
    for listed in changed:
        if len(set(listed)) != len(listed) or not set(replicas).issuperset(listed):
            raise ValueError(listed)
    target = changed.target(replicas)
    if not target or not former or not (adding or removing) or set(adding) != set(target).difference(former):
        raise ValueError(changed)
    return changed


def create_topic(name: str, topic_id: UUID, partitions: Sequence[PartitionImage]) -> list[Operation]:
    """Return the operations that create a topic's nodes."""
    return [
        Create(topic_path(name), encode_topic(topic_id, len(partitions))),
        *(Create(chunk_path(name, chunk), encode_chunk(states)) for chunk, states in _chunks(partitions)),
    ]


def delete_topic(name: str, partition_count: int) -> list[Operation]:
    """Return the operations that delete a topic's nodes, children first."""
    chunks = -(-partition_count // CHUNK_PARTITIONS)
    return [*(Delete(chunk_path(name, chunk)) for chunk in range(chunks)), Delete(topic_path(name))]


def change_topic(
    name: str, topic_id: UUID, old: Sequence[PartitionImage], new: Sequence[PartitionImage]
) -> list[Operation]:
    """Return the operations that turn a topic's partitions `old` into `new`, at least as many: changed chunks only."""
    assert len(new) >= len(old)
    operations: list[Operation] = []
    before = dict(_chunks(old))
    for chunk, states in _chunks(new):
        if chunk not in before:
            operations.append(Create(chunk_path(name, chunk), encode_chunk(states)))
        elif before[chunk] != states:
            operations.append(SetData(chunk_path(name, chunk), encode_chunk(states)))
    if len(new) > len(old):
        operations.append(SetData(topic_path(name), encode_topic(topic_id, len(new))))
    return operations


def partitions_with(
    old: Sequence[PartitionImage], count: int, changed: Mapping[int, tuple[PartitionImage, ...]]
) -> tuple[PartitionImage, ...] | None:
    """Return the `count` partitions of a topic after changes of chunks; None if a chunk is missing or has another size.

    Args:
        old: The partitions before, of the same topic.
        changed: The partitions of each changed chunk.
    """
    before = dict(_chunks(old))
    partitions: list[PartitionImage] = []
    for chunk in range(-(-count // CHUNK_PARTITIONS)):
        partitions += changed.get(chunk) or before.get(chunk, ())
        if len(partitions) != min(count, (chunk + 1) * CHUNK_PARTITIONS):
            return None
    return tuple(partitions)


def _chunks(partitions: Sequence[PartitionImage]) -> Iterator[tuple[int, Sequence[PartitionImage]]]:
    for first in range(0, len(partitions), CHUNK_PARTITIONS):
        yield first // CHUNK_PARTITIONS, partitions[first : first + CHUNK_PARTITIONS]


def _fields(path: str, data: bytes, version: int) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise CorruptNodeError(path, data) from None
    if not isinstance(fields, dict) or fields.get("version") != version:
        raise CorruptNodeError(path, data)
    return fields
