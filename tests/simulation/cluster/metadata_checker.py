"""The metadata of a cluster as ZooKeeper has it, and the invariants of each change of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.history import InvariantError


class Replicated(NamedTuple):
    """One partition of one topic id: a topic made anew has others."""

    topic_id: str
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return f"{self.topic_partition} ({self.topic_id[:6]})"


def brief(state: PartitionImage | None) -> str:
    """A state in one line."""
    if state is None:
        return "none"
    recovering = ", recovering" if state.is_recovering else ""
    moving = f", adding {[*c.adding]} removing {[*c.removing]}" if (c := state.reassignment) is not None else ""
    return (
        f"leader {state.leader} epoch {state.leader_epoch}/{state.partition_epoch} ISR {[*state.isr]} "
        f"ELR {[*state.elr]} last {state.last_known_leader} of {[*state.replicas]}{moving}{recovering}"
    )


class StateChange(NamedTuple):
    """One change of a partition's state; `before` is None for a new partition, `after` for a deleted one."""

    replicated: Replicated
    before: PartitionImage | None
    after: PartitionImage | None

    @property
    def is_election(self) -> bool:
        """Whether a leader was elected."""
        before, after = self.before, self.after
        if after is None or after.leader == NO_BROKER:
            return False
        return before is None or before.leader_epoch < after.leader_epoch


class MetadataChecker:
    """Follows every transaction of ZooKeeper.

    Invariants, by their number in docs/reliability.md: 6 (epochs never fall; a change of the state has another
    partition epoch, one of the leader another leader epoch), and of 2 that only members of the ISR and of the ELR are
    elected, unless the election counts as unclean.
    """

    def __init__(self, on_change: Callable[[StateChange], None]) -> None:
        self.image = MetadataImage()
        self._on_change = on_change

    def state(self, replicated: Replicated) -> PartitionImage | None:
        """The present state of a partition."""
        name, index = replicated.topic_partition
        topic = self.image.topics.get(name)
        if topic is None or uuids.to_text(topic.topic_id) != replicated.topic_id or index >= len(topic.partitions):
            return None
        return topic.partitions[index]

    def replicated(self, key: TopicPartition) -> Replicated | None:
        """The present partition of a name."""
        topic = self.image.topics.get(key.topic)
        return None if topic is None else Replicated(uuids.to_text(topic.topic_id), key)

    def all(self) -> list[tuple[Replicated, PartitionImage]]:
        """All partitions and their states."""
        return [
            (Replicated(uuids.to_text(topic.topic_id), TopicPartition(name, index)), state)
            for name, topic in sorted(self.image.topics.items())
            for index, state in enumerate(topic.partitions)
        ]

    def changed(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        """Apply a transaction, and check what it changed."""
        old, self.image = self.image, self.image.apply(changes)
        if old.topics is self.image.topics:
            return
        before = _states(old)
        after = _states(self.image)
        for replicated in {**before, **after}:
            change = StateChange(replicated, before.get(replicated), after.get(replicated))
            if change.before is not change.after and change.before != change.after:
                _check(change)
                self._on_change(change)


def _states(image: MetadataImage) -> dict[Replicated, PartitionImage]:
    return {
        Replicated(uuids.to_text(topic.topic_id), TopicPartition(name, index)): state
        for name, topic in image.topics.items()
        for index, state in enumerate(topic.partitions)
    }


def _check(change: StateChange) -> None:
    replicated, before, after = change
    if before is None or after is None:
        return
    if after.partition_epoch <= before.partition_epoch or after.leader_epoch < before.leader_epoch:
        raise InvariantError(f"{replicated}: epochs fell: {brief(before)}; then {brief(after)}")
    if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
        raise InvariantError(f"{replicated}: two leaders in one epoch: {brief(before)}; then {brief(after)}")
    if change.is_election and not after.is_recovering:
        eligible = {*before.isr, *before.elr} or {*after.isr}
        if before.reassignment is not None and after.reassignment is None:
            eligible |= {*after.isr}  # the change that brings a replica into the ISR may make it the leader
        if after.leader not in eligible:
            raise InvariantError(
                f"{replicated}: broker {after.leader} was elected out of the ISR: {brief(before)}; then {brief(after)}"
            )
