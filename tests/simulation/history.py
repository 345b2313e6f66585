"""What clients were told, and what they may therefore rely on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.logtier.protocol.topic_partition import TopicPartition


class InvariantError(Exception):
    """A run violated an invariant."""


class Entry(NamedTuple):
    """One record of a log: the leader epoch of its batch, and its value."""

    leader_epoch: int
    value: bytes


@dataclass(slots=True)
class CommittedRange:
    """A group's offset of one partition: acknowledged, and sent since then."""

    acknowledged: int = -1
    attempted: int = -1


@dataclass(slots=True)
class EndsTold:
    """The ends of a partition that consumers were told by one leader epoch: the first one and the last one."""

    least: int
    greatest: int


@dataclass(slots=True)
class History:
    """The acknowledgements so far.

    Attributes:
        may_lose: Whether a power loss may take acknowledged records, because they are not synced first.
        losses: Power losses that may have taken something.
        group_losses: Those that may have taken offsets or generations of groups.
        lossy_topics: Topics of which acknowledged records may be lost with their leader.
        acknowledged: Values of acknowledged records by partition and offset.
        on_acknowledge: Called with the partition and the end offset of each acknowledged batch.
        seen: Records that consumers read.
        ends: Ends of partitions that consumers were told, by leader epoch.
        commits: Offsets of groups.
        assignments: Partitions of a group's members by generation.
        generations: Newest generation of a group that a member has got.
    """

    may_lose: bool
    losses: int = 0
    group_losses: int = 0
    lossy_topics: set[str] = field(default_factory=set)
    on_acknowledge: Callable[[TopicPartition, int], None] = lambda *_: None
    acknowledged: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    seen: dict[TopicPartition, dict[int, Entry]] = field(default_factory=dict)
    ends: dict[TopicPartition, dict[int, EndsTold]] = field(default_factory=dict)
    commits: dict[tuple[str, TopicPartition], CommittedRange] = field(default_factory=dict)
    assignments: dict[tuple[str, int], dict[TopicPartition, str]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: Digest of all events in their order: the same for two runs of a seed.
    trace: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def has_lost(self) -> bool:
        """Whether acknowledged records may be gone."""
        return self.may_lose and self.losses > 0

    def note(self, time_s: float, what: str, *details: object) -> None:
        """Add an event to the trace."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.trace.update(f"{time_s:.6f} {what} {details}\n".encode())

    def acknowledge(self, topic_partition: TopicPartition, base_offset: int, values: list[bytes]) -> None:
        """A batch was acknowledged with acks=all."""
        known = self.acknowledged.setdefault(topic_partition, {})
        for offset, value in enumerate(values, base_offset):
            if known.setdefault(offset, value) != value:
                raise InvariantError(f"{topic_partition}: offset {offset} was acknowledged for two records")
        self.on_acknowledge(topic_partition, base_offset + len(values))

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its records may be gone, and its offsets are used again by a later one of its name."""
        for known in (self.acknowledged, self.seen, self.ends):
            for key in [key for key in known if key.topic == topic]:
                del known[key]

    def ends_told(self, topic_partition: TopicPartition) -> dict[int, int]:
        """Return the greatest end told so far, by leader epoch."""
        return {epoch: told.greatest for epoch, told in self.ends.get(topic_partition, {}).items()}

    def tell_end(self, topic_partition: TopicPartition, leader_epoch: int, end: int, before: dict[int, int]) -> None:
        """A consumer was told the end of a partition, the high watermark: it never falls.

        Within an epoch an answer is not below those that had arrived `before` it was asked for, and no answer of an
        epoch is below any of an earlier one (KIP-207).
        """
        told = self.ends.setdefault(topic_partition, {})
        for epoch, known in told.items():
            if (epoch < leader_epoch and known.greatest > end) or (epoch > leader_epoch and known.least < end):
                raise InvariantError(
                    f"{topic_partition}: the end told is {end} in leader epoch {leader_epoch}, "
                    f"{known.least} to {known.greatest} in epoch {epoch}"
                )
        if end < before.get(leader_epoch, 0):
            raise InvariantError(f"{topic_partition}: the end told fell from {before[leader_epoch]} to {end}")
        mine = told.setdefault(leader_epoch, EndsTold(end, end))
        mine.least, mine.greatest = min(mine.least, end), max(mine.greatest, end)

    def see(self, topic_partition: TopicPartition, offset: int, entry: Entry) -> None:
        """A consumer read a record; the same offset and epoch never have two records (log matching)."""
        seen = self.seen.setdefault(topic_partition, {})
        before = seen.get(offset)
        if before is not None and before.leader_epoch == entry.leader_epoch and before != entry:
            raise InvariantError(f"{topic_partition}: consumers read two records at offset {offset}: {before}, {entry}")
        seen[offset] = entry

    def lose(self) -> None:
        """A power loss took what was not synced: nothing that may be lost is relied on any more."""
        self.losses += 1
        if self.may_lose:
            self.acknowledged.clear()
            self.ends.clear()
            self.lose_groups()

    def lose_groups(self) -> None:
        """What coordinators had not synced may be gone."""
        self.group_losses += 1
        for commits in self.commits.values():
            commits.acknowledged = -1
        self.assignments.clear()
        self.generations.clear()

    def assign(self, group: str, generation: int, member: str, partitions: list[TopicPartition]) -> None:
        """A member got its partitions: in one generation, nobody else has them."""
        self.generations[group] = max(generation, self.generations.get(group, -1))
        owners = self.assignments.setdefault((group, generation), {})
        for key in partitions:
            owner = owners.setdefault(key, member)
            if owner != member:
                raise InvariantError(f"group {group}: generation {generation} gives {key} to {owner} and to {member}")

    def check_committed(self, group: str, topic_partition: TopicPartition, offset: int) -> None:
        """A group read its offset back: it is the last acknowledged one, or one that was sent since then."""
        commits = self.commits.get((group, topic_partition))
        if commits is not None and not commits.acknowledged <= offset <= commits.attempted:
            raise InvariantError(
                f"group {group} has offset {offset} of {topic_partition}, acknowledged was {commits.acknowledged}"
            )
