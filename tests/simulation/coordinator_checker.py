"""Invariant 9: the live state of a broker's coordinators equals the replay of their logs, also of compacted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_state import ConsumerState
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.events import GroupMetadata, GroupState
from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.pending_offsets import PendingOffset, PendingOffsets
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import iterate_batches
from headwater.logtier.replication.partition import Partition
from headwater.logtier.transaction.metadata import NO_PRODUCER_EPOCH, TransactionMetadata
from headwater.logtier.transaction.replay import TransactionReplay
from headwater.logtier.transaction.state_log import TransactionStateLog
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from tests.simulation.compaction import compacted
from tests.simulation.file_system import Folder
from tests.simulation.history import History, InvariantError
from tests.simulation.log_model import segments
from tests.simulation.node import SimulatedNode

#: Checks from one cleaning of copies to the next.
CHECKS_PER_COMPACTION = 5
#: Time at the end in which what is committed must be applied.
END_S = 5.0


class Part(NamedTuple):
    """One part of a coordinator's state: what it has of a group or of a transactional id."""

    topic_partition: TopicPartition
    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.what} of {self.name}"


class Difference(NamedTuple):
    """What a coordinator has of one part of its state, and what its log has; None for nothing."""

    live: object
    logged: object


State = Mapping[Part, object]


class CoordinatorChecker:
    """Compares the state of one broker's coordinators with the replay of their logs up to the high watermark.

    Args:
        logs: The folders of the partitions on the broker.
        partition: The replica of a partition, if its log is usable.
    """

    def __init__(
        self,
        node: SimulatedNode,
        history: History,
        logs: Callable[[], Mapping[TopicPartition, Folder]],
        partition: Callable[[TopicPartition], Partition[Log] | None],
    ) -> None:
        #: Whether this broker leads a partition in the newest metadata.
        self.is_coordinator: Callable[[TopicPartition], bool] = lambda _: True
        self._node = node
        self._history = history
        self._logs = logs
        self._partition = partition
        self._differences: dict[Part, Difference] = {}
        self._checks = 0

    def check(self) -> None:
        """Check all partitions; what is committed in this moment may be about to be applied.

        So a part of the state may differ from the log once, but not in the same way until the next check.
        """
        if self._node.current is None or self._node.current.process.is_frozen:
            self._differences = {}  # a frozen process applies nothing
            return
        self._checks += 1
        before = self._differences
        self._differences = self.differences(compacts=self._checks % CHECKS_PER_COMPACTION == 0)
        for part, difference in self._differences.items():
            if before.get(part) == difference:
                raise InvariantError(described(part, difference))

    async def check_end(self) -> None:
        """Check that nothing differs when the clients have ended; what is committed is applied a moment later."""
        for _ in range(int(END_S * 10)):
            if not self.differences(compacts=False):
                break
            await asyncio.sleep(0.1)
        for part, difference in self.differences().items():
            raise InvariantError(f"at the end, {described(part, difference)}")

    def differences(self, *, compacts: bool = True) -> dict[Part, Difference]:
        """Return what differs; with `compacts`, the logs are compared with compacted copies of themselves, too."""
        assert self._node.parts is not None
        services = self._node.parts.services
        found = {}
        for key, folder in self._logs().items():
            partition = self._partition(key)
            if partition is None:
                continue
            if key.topic == OFFSETS_TOPIC and services.groups._log.is_active(key.partition):
                live = _live_groups(key, services.groups)
                _check_below(live, partition.high_watermark)
                logged = self._replayed(key, folder, partition, _groups_of, compacts=compacts)
                self._check_classic(key, services.groups, logged)
                # A classic group lives between its records, too.
                logged = {part: value for part, value in logged.items() if part.what != "generation"}
            elif key.topic == TRANSACTION_TOPIC and services.transactions._log.is_active(key.partition):
                live = _live_transactions(key, services.transactions._log)
                logged = self._replayed(key, folder, partition, _transactions_of, compacts=compacts)
            else:
                continue
            found.update(_compared(live, logged))
        return found

    def _replayed(
        self,
        key: TopicPartition,
        folder: Folder,
        partition: Partition[Log],
        state_of: Callable[[TopicPartition, Iterable[bytes]], State],
        *,
        compacts: bool,
    ) -> State:
        batches = list(_committed(folder, partition))
        logged = state_of(key, batches)
        if compacts:
            copy = compacted(partition.log, batches, partition.last_stable_offset, self._node.clock)
            for part, difference in _compared(state_of(key, copy), logged).items():
                raise InvariantError(f"after a compaction, {described(part, difference)}")
        return logged

    def _check_classic(self, key: TopicPartition, coordinator: GroupCoordinator, logged: State) -> None:
        """A stable classic group is the one that its log has, and no acknowledged generation is forgotten."""
        if coordinator._log._tasks or not self.is_coordinator(key):
            return
        for part, written in logged.items():
            if not isinstance(written, GroupMetadata):
                continue
            group_id = part.name
            if written.generation_id < self._history.generations.get(group_id, -1):
                raise InvariantError(f"group {group_id}: generation {written.generation_id} is the last in the log")
            live = coordinator.group(group_id)
            if isinstance(live, Group) and live.state is GroupState.STABLE:
                if live.generation_id != written.generation_id:
                    raise InvariantError(
                        f"group {group_id} is in generation {live.generation_id}, its log in {written.generation_id}"
                    )
                if _assignments(live.metadata()) != _assignments(written):
                    raise InvariantError(f"group {group_id}: its members are not those of its log")


def _check_below(live: State, high_watermark: int) -> None:
    """Nothing is known of what is not committed, in no moment."""
    for part, value in live.items():
        if isinstance(value, PendingOffset) and value.log_offset >= high_watermark:
            raise InvariantError(f"{part}: {value} is above the high watermark {high_watermark}")


def described(part: Part, difference: Difference) -> str:
    """One difference in a line."""
    return f"{part}: the coordinator has {difference.live}, its log has {difference.logged}"


def _committed(folder: Folder, partition: Partition[Log]) -> Iterator[bytes]:
    """The batches of a log below the high watermark."""
    for _, inode in segments(folder):
        for header, batch in iterate_batches(bytes(inode.data)):
            if header.base_offset + header.last_offset_delta < partition.high_watermark:
                yield bytes(batch)


def _compared(live: State, logged: State) -> dict[Part, Difference]:
    return {
        part: Difference(live.get(part), logged.get(part))
        for part in {**live, **logged}
        if live.get(part) != logged.get(part)
    }


def _live_groups(key: TopicPartition, coordinator: GroupCoordinator) -> State:
    log, consumer = coordinator._log, coordinator._consumer
    groups = [
        group
        for group in coordinator._groups.values()
        if isinstance(group, ConsumerGroup) and group not in consumer._unwritten
    ]
    return {
        **_offsets_of(
            key, {name: each for name, each in log.offsets.items() if log.partition_of(name) == key.partition}
        ),
        **_pending_of(key, log.pending),
        **_members_of(key, [each.state for each in groups if log.partition_of(each.group_id) == key.partition]),
    }


def _groups_of(key: TopicPartition, batches: Iterable[bytes]) -> State:
    replay = GroupReplay(str(key), key.partition)
    for batch in batches:
        replay.apply(batch)
    return {
        **_offsets_of(key, replay.offsets),
        **_pending_of(key, replay.pending),
        **_members_of(key, list(replay.consumer_groups.values())),
        **{Part(key, "generation", group_id): metadata for group_id, metadata in replay.groups.items()},
    }


def _offsets_of(key: TopicPartition, by_group: Mapping[str, GroupOffsets]) -> State:
    return {
        Part(key, "offset", f"{group_id} for {topic_partition}"): PendingOffset(group_id, topic_partition, *committed)
        for group_id, offsets in by_group.items()
        for topic_partition, committed in offsets._offsets.items()
    }


def _pending_of(key: TopicPartition, pending: PendingOffsets) -> State:
    return {
        Part(key, "pending offset", f"producer {producer_id}, {group_id} for {topic_partition}"): each
        for (partition, producer_id), offsets in pending._by_producer.items()
        if partition == key.partition
        for (group_id, topic_partition), each in offsets.items()
    }


def _members_of(key: TopicPartition, states: Sequence[ConsumerState]) -> State:
    return {
        Part(key, "members", state.group_id): (
            state.epoch,
            state.metadata_hash,
            state.target_epoch,
            dict(state.members),
            dict(state.targets),
            dict(state.regexes),
        )
        for state in states
    }


def _live_transactions(key: TopicPartition, log: TransactionStateLog) -> State:
    return {
        Part(key, "transaction", name): _recorded(transaction.metadata)
        for name, transaction in log.transactions.items()
        if log.partition_of(name) == key.partition and not transaction.is_new
    }


def _transactions_of(key: TopicPartition, batches: Iterable[bytes]) -> State:
    replay = TransactionReplay(str(key))
    for batch in batches:
        replay.apply(batch)
    return {Part(key, "transaction", name): _recorded(metadata) for name, metadata in replay.transactions.items()}


def _recorded(metadata: TransactionMetadata) -> TransactionMetadata:
    """What a record of `__transaction_state` has of a transaction: not the epoch before the last bump."""
    return replace(metadata, last_producer_epoch=NO_PRODUCER_EPOCH)


def _assignments(metadata: GroupMetadata) -> dict[str, bytes]:
    return {member.member_id: member.assignment for member in metadata.members}
