"""The invariants that span brokers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState
from headwater.logtier.group.events import GroupState
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.state_topic.topic import partition_for
from tests.simulation.checker import NodeChecker, check_acknowledged
from tests.simulation.cluster.metadata_checker import MetadataChecker, Replicated, StateChange, brief
from tests.simulation.history import History, InvariantError
from tests.simulation.log_model import BatchKey, LogModel
from tests.simulation.node import SimulatedNode
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel

#: Time in which every broker learns of a change of the metadata, in seconds.
IMAGE_S = 10


@dataclass(slots=True)
class _Batch:
    """A batch as every log with its offset and epoch has it."""

    checksum: int
    before: BatchKey | None
    is_first_known: bool


class _Leading(NamedTuple):
    """A leader as it set its high watermark; it may have been deposed in the same callback."""

    high_watermark: int
    leader_epoch: int
    maximal_isr: frozenset[int]

    @classmethod
    def of(cls, partition: Partition[Any]) -> _Leading:
        return cls(partition.high_watermark, partition.leader_epoch, partition.maximal_isr)


@dataclass(slots=True)
class _Committed:
    """What of a partition is below the high watermark of some leader: batches by their end offset."""

    end: int = 0
    batches: dict[int, BatchKey] = field(default_factory=dict)


class ClusterChecker:
    """Checks all brokers together: after each callback the partitions that it touched.

    Invariants, by their number in docs/reliability.md: 1 (what is below a leader's high watermark is on the ISR), 2 (a
    leader has every committed record), 3 (log matching), 4 (the high watermark counts the maximal ISR), 7 (a follower
    truncates before it adopts a high watermark, and no record that is committed), 11 (a record acknowledged with
    acks=all is on min.insync.replicas replicas); 6 is checked by `MetadataChecker`.

    A replica whose machine lost power lacks what it had not synced: until it leaves the ISR, as it does when it comes
    back, it counts as one that has nothing.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        zookeeper: ZooKeeperModel,
        checkers: Mapping[int, NodeChecker],
        history: History,
        min_isr: int,
    ) -> None:
        self.metadata = MetadataChecker(self._state_changed)
        #: Members of the ISR that lost power since they joined: they may lack what they had not synced.
        self.lacking: dict[Replicated, set[int]] = {}
        #: Members of an ISR that lost power since they joined it, also after they have left it, for the ELR as well.
        self._forgetful: dict[Replicated, set[int]] = {}
        #: Partitions of which committed records were lost, by a run beyond what replication survives.
        self.lost: set[Replicated] = set()
        #: Those of them whose state in the metadata tells so: the leader was elected uncleanly (KIP-704).
        self._told: set[Replicated] = set()
        #: Called after each change of the metadata.
        self.on_state: Callable[[], None] = lambda: None
        self._loop = loop
        self._checkers = checkers
        self._history = history
        self._min_isr = min_isr
        #: Brokers that lost power and do not serve yet: nobody knows what they have.
        self._unknown: set[int] = set()
        self._batches: dict[Replicated, dict[tuple[int, int], _Batch]] = {}
        self._committed: dict[Replicated, _Committed] = {}
        self._touched: dict[tuple[int, TopicPartition], None] = {}
        self._leading: dict[tuple[int, TopicPartition], _Leading] = {}
        self._changes: list[list[tuple[str, bytes | None]]] = []
        zookeeper.on_change = self._stored
        history.on_acknowledge = self._acknowledged
        for broker_id, checker in checkers.items():
            checker.on_batch = self._batch_taken
            checker.on_truncated = self._truncated
            checker.is_lost = lambda key: self.metadata.replicated(key) in self.lost
            checker.coordinators.is_coordinator = functools.partial(self._leads, broker_id)
            self._look_when_serving(broker_id, checker.node)
        loop.checks.append(self._after_step)

    def _look_when_serving(self, broker_id: int, node: SimulatedNode) -> None:
        read = node.on_serving

        def serving(incarnation: Any) -> None:
            read(incarnation)
            self._unknown.discard(broker_id)
            for replicated, state in self.metadata.all():
                if broker_id in state.replicas:
                    self._touch(broker_id, replicated.topic_partition)

        node.on_serving = serving

    # -- events

    def _touch(self, broker_id: int, key: TopicPartition) -> None:
        self._touched[broker_id, key] = None
        self._loop.is_touched = True

    def watermark_changed(self, partition: Partition[Any]) -> None:
        """A replica has another high watermark."""
        if partition.is_leader:
            self._leading[partition.broker_id, partition.topic_partition] = _Leading.of(partition)
        self._touch(partition.broker_id, partition.topic_partition)

    def _stored(self, changes: list[tuple[str, bytes | None]]) -> None:
        self._changes.append(changes)
        self._loop.is_touched = True

    def lost_power(self, broker_id: int) -> None:
        """The machine of a broker lost power: what its replicas had not synced may be gone."""
        self._unknown.add(broker_id)
        for replicated, state in self.metadata.all():
            if broker_id in state.isr:
                self.lacking.setdefault(replicated, set()).add(broker_id)
            if broker_id in (*state.isr, *state.elr):
                self._forgetful.setdefault(replicated, set()).add(broker_id)

    def _after_step(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            self.metadata.changed(change)
            self.on_state()
        touched, self._touched = self._touched, {}
        leading, self._leading = self._leading, {}
        partitions = {
            (broker_id, key): partition
            for broker_id, key in touched
            if (partition := self._checkers[broker_id].partition(key)) is not None
        }
        # Leaders first: what they commit in this callback is what followers may adopt in it. One may have been deposed,
        # or have lost its log folder, in the same callback.
        for (broker_id, key), partition in partitions.items():
            if partition.is_leader:
                leading.setdefault((broker_id, key), _Leading.of(partition))
        for (broker_id, key), leader in leading.items():
            self._check_leader(broker_id, key, leader)
        for (broker_id, _), partition in partitions.items():
            if not partition.is_leader:
                self._check_follower(partition, broker_id)

    # -- logs

    def _batch_taken(self, model: LogModel, end: int, batch: BatchKey, before: BatchKey | None) -> None:
        """Invariant 3: the same offset and epoch have the same batch, with the same batches before it."""
        replicated = Replicated(model.topic_id, model.key)
        known = self._batches.setdefault(replicated, {})
        is_first = before is None and batch.base_offset > 0
        mine = _Batch(batch.checksum, before, is_first)
        found = known.setdefault((batch.base_offset, batch.leader_epoch), mine)
        is_same = found.checksum == batch.checksum and (is_first or found.is_first_known or found.before == before)
        if not is_same:
            raise InvariantError(
                f"{replicated}: logs differ at offset {batch.base_offset} of epoch {batch.leader_epoch}, "
                f"which ends at {end}: {found}, {mine}"
            )

    def _truncated(self, before: LogModel, after: LogModel) -> None:
        """Of invariant 7: no replica removes a record that is committed."""
        replicated = Replicated(before.topic_id, before.key)
        committed = self._committed.get(replicated)
        self._history.note(self._loop.time(), "truncated", before.key, before.end, after.end)
        if committed is None or replicated in self.lost:
            return
        for end in reversed(before.batches):
            if end <= after.end:
                break
            if committed.batches.get(end) == before.batches[end] and end > after.start:
                raise InvariantError(
                    f"{replicated}: a log was cut from {before.end} to {after.end}, committed is {committed.end}"
                )

    def _holds(self, broker_id: int, replicated: Replicated, end: int, batch: BatchKey | None) -> bool | None:
        """Whether a replica has a batch, and so all before it; None if nobody knows, as its broker does not serve."""
        checker = self._checkers[broker_id]
        if broker_id in self._unknown or broker_id in self.lacking.get(replicated, ()):
            return None
        model = checker.present_log(replicated.topic_partition)
        current = checker.node.current
        if model is None or (current is not None and not current.is_serving):
            return None
        if model.topic_id != replicated.topic_id:
            return end == 0  # a log of an earlier topic of the name, which is about to go
        return end <= model.start or batch is None or model.batches.get(end) == batch

    # -- partitions

    def _check_leader(self, broker_id: int, key: TopicPartition, leading: _Leading) -> None:
        """Invariants 1, 4 and 11, whenever the high watermark of a leader or its log has moved."""
        model = self._checkers[broker_id].log(key)
        if model is None:
            return
        replicated = Replicated(model.topic_id, key)
        state = self.metadata.state(replicated)
        if state is None or replicated in self.lost:
            return
        end = leading.high_watermark
        batch = model.batches.get(end)
        if batch is None and end > model.start:
            raise InvariantError(f"{replicated}: the high watermark {end} is within a batch")
        committed = self._committed.setdefault(replicated, _Committed())
        if end > committed.end:
            self._check_spread(replicated, state, broker_id, leading, batch)
            self._commit(committed, model, end)
        elif batch is not None and committed.batches.get(end, batch) != batch:
            raise InvariantError(
                f"{replicated}: leader {broker_id} in epoch {leading.leader_epoch} shows another record below its "
                f"high watermark {end} than an earlier leader"
            )

    def _check_spread(
        self,
        replicated: Replicated,
        state: PartitionImage,
        broker_id: int,
        leading: _Leading,
        batch: BatchKey | None,
    ) -> None:
        """What is committed now is on every member of the maximal ISR, and on enough replicas."""
        end = leading.high_watermark
        members = set(leading.maximal_isr)
        if leading.leader_epoch == state.leader_epoch:
            members |= set(state.isr)
        elif state.leader != NO_BROKER:
            # A deposed leader that does not know it: the new one has what it still commits.
            members.add(state.leader)
        # A replica that was moved away deletes its log, and a leader that does not know it counts what it has fetched
        # before. The members of the ISR that stay have it, too.
        members &= {*state.replicas, broker_id}
        holders = {each: self._holds(each, replicated, end, batch) for each in sorted({*members, *state.replicas})}
        # What they had not synced, and have acknowledged, a leader counts that does not know of their removal. It is on
        # the ISR all the same.
        forgetful = self._forgetful.get(replicated, set()) - set(state.isr)
        for each in sorted(members - forgetful):
            if holders[each] is False:
                raise InvariantError(
                    f"{replicated}: the high watermark of leader {broker_id} in epoch {leading.leader_epoch} is "
                    f"{end}, which broker {each} of the ISR {sorted(members)} does not have"
                )
        needed = min(self._min_isr, state.least_replication_factor)
        if len([each for each, holds in holders.items() if holds is not False]) < needed:
            raise InvariantError(f"{replicated}: {end} is committed on {holders}, needed are {needed} replicas")

    def _commit(self, committed: _Committed, model: LogModel, end: int) -> None:
        """Note the batches below a high watermark."""
        at = end
        while at > max(committed.end, model.start):
            batch = committed.batches[at] = model.batches[at]
            at = batch.base_offset
        committed.end = end

    def _check_follower(self, partition: Partition[Any], broker_id: int) -> None:
        """Invariant 7, whenever the high watermark of a follower or its log has moved."""
        key = partition.topic_partition
        model = self._checkers[broker_id].log(key)
        if model is None:
            return
        replicated = Replicated(model.topic_id, key)
        if self.metadata.state(replicated) is None or replicated in self.lost:
            return
        committed = self._committed.get(replicated, _Committed())
        high_watermark = partition.high_watermark
        if high_watermark > max(committed.end, model.start):
            raise InvariantError(
                f"{replicated}: follower {broker_id} has high watermark {high_watermark}, committed is {committed.end}"
            )
        mine, batch = model.batches.get(high_watermark), committed.batches.get(high_watermark)
        if high_watermark > model.start and mine != batch:
            raise InvariantError(
                f"{replicated}: follower {broker_id} adopted the high watermark {high_watermark} before it had the "
                f"record: {mine}, committed is {batch}"
            )

    def _state_changed(self, change: StateChange) -> None:
        """Invariant 2: who is elected, and who joins the ISR, has every committed record."""
        replicated, before, after = change
        if after is None:
            self._committed.pop(replicated, None)
            self._batches.pop(replicated, None)
            self.lacking.pop(replicated, None)
            self._forgetful.pop(replicated, None)
            return
        self._history.note(self._loop.time(), "state", replicated.topic_partition, after)
        if after.is_recovering:
            self._told.add(replicated)
        joined = set(after.isr) - set(after.isr if before is None else before.isr)
        self.lacking.get(replicated, set()).intersection_update(set(after.isr) - joined)
        self._forgetful.get(replicated, set()).difference_update(joined)
        self._check_removal(change)
        committed = self._committed.get(replicated)
        if committed is None or replicated in self.lost:
            return
        elected = {after.leader} if change.is_election else set()
        batch = committed.batches.get(committed.end)
        for broker_id in sorted(joined | elected):
            if self._holds(broker_id, replicated, committed.end, batch) is False:
                self._lacks(change, broker_id, committed)

    def _check_removal(self, change: StateChange) -> None:
        """Of invariant 11: no replica that may be needed is removed, so that what is committed stays on enough.

        One that lost power is not needed: nobody knows what it has.
        """
        before, after = change.before, change.after
        if before is None or after is None:
            return
        removed = {*before.isr, *before.elr} - {*after.replicas} - self._forgetful.get(change.replicated, set())
        if removed and len(after.isr) < min(self._min_isr, len(after.target)):
            raise InvariantError(
                f"{change.replicated}: {removed} was removed from too small an ISR: {brief(before)}; "
                f"then {brief(after)}"
            )

    def _lacks(self, change: StateChange, broker_id: int, committed: _Committed) -> None:
        assert change.after is not None
        model = self._checkers[broker_id].logs.get(change.replicated.topic_partition)
        what = "leader" if broker_id == change.after.leader else "member of the ISR"
        raise InvariantError(
            f"{change.replicated}: the new {what} {broker_id} ends at {None if model is None else model.end} and lacks "
            f"what is committed, up to {committed.end}: {brief(change.before)}; then {brief(change.after)}"
        )

    def _acknowledged(self, key: TopicPartition, end: int) -> None:
        """Invariant 11: what was acknowledged with acks=all is below the high watermark of a leader."""
        replicated = self.metadata.replicated(key)
        if replicated is None or replicated in self.lost:
            return
        committed = self._committed.get(replicated, _Committed()).end
        if committed < end:
            raise InvariantError(f"{replicated}: up to {end} was acknowledged, the high watermark was {committed}")

    # -- all

    def check_all(self) -> None:
        """Check that each leader has what was acknowledged, and that replicas agree below their high watermarks."""
        for replicated, state in self.metadata.all():
            key = replicated.topic_partition
            committed = self._committed.get(replicated, _Committed())
            for broker_id in state.replicas:
                partition, model = self._checkers[broker_id].partition(key), self._checkers[broker_id].log(key)
                if partition is None or model is None:
                    continue
                if uuids.to_text(partition.log.topic_id) != replicated.topic_id:
                    # A broker that is cut off from ZooKeeper has an earlier topic of the name, and may lead it in the
                    # same epoch: each topic begins with the first one.
                    continue
                leads = partition.is_leader and partition.leader_epoch == state.leader_epoch
                if replicated in self.lost:
                    if leads:
                        self._check_told(replicated, broker_id, model, committed)
                elif leads:
                    self._check_leads(replicated, broker_id, model, committed)
                elif not partition.is_leader:
                    self._check_follower(partition, broker_id)

    def _check_leads(self, replicated: Replicated, broker_id: int, model: LogModel, committed: _Committed) -> None:
        key = replicated.topic_partition
        batch = committed.batches.get(committed.end)
        if committed.end > model.start and model.batches.get(committed.end) != batch:
            raise InvariantError(
                f"{replicated}: leader {broker_id} ends at {model.end} and lacks what is committed, up to "
                f"{committed.end}"
            )
        check_acknowledged(key, self._history.acknowledged.get(key, {}), model)

    def _check_told(self, replicated: Replicated, broker_id: int, model: LogModel, committed: _Committed) -> None:
        """A leader lacks committed records only after an election that tells so."""
        if committed.end <= model.start:
            return
        if model.batches.get(committed.end) != committed.batches.get(committed.end) and replicated not in self._told:
            raise InvariantError(
                f"{replicated}: leader {broker_id} ends at {model.end} and lacks what is committed, up to "
                f"{committed.end}, and nothing tells of the loss"
            )

    def check_end(self) -> None:
        """Check that all replicas have the same records, and no other broker has a log of the partition."""
        if self.unequal:
            raise InvariantError(f"the logs end at {self.unequal}")
        for replicated, state in self.metadata.all():
            for broker_id in {*self._checkers} - {*state.replicas}:
                if self._checkers[broker_id].partition(replicated.topic_partition) is not None:
                    raise InvariantError(
                        f"{replicated}: broker {broker_id} has a log that was moved to {state.replicas}"
                    )

    async def check_images(self) -> None:
        """Check that all brokers have the topics, leaders and epochs that ZooKeeper has (KAFKA-9212)."""
        for broker_id, checker in self._checkers.items():
            for _ in range(IMAGE_S * 10):
                assert checker.node.parts is not None
                mine = checker.node.parts.metadata.image.topics
                if mine == self.metadata.image.topics:
                    break
                await asyncio.sleep(0.1)
            else:
                raise InvariantError(f"broker {broker_id} has {mine} at the end, not {self.metadata.image.topics}")

    def is_stable(self, group_id: str) -> bool:
        """Whether the coordinator of a group has it in the state Stable."""
        broker_id = self._coordinator_of(group_id)
        parts = None if broker_id == NO_BROKER else self._checkers[broker_id].node.parts
        if parts is None:
            return False
        try:
            group = parts.services.groups.group(group_id)
        except KafkaError:
            return False
        if isinstance(group, ConsumerGroup):
            return group.state.phase is ConsumerGroupState.STABLE
        return group is not None and group.state is GroupState.STABLE

    async def check_coordinators(self) -> None:
        """Check that the state of each broker's coordinators is that of its logs, when the clients have ended."""
        for checker in self._checkers.values():
            await checker.coordinators.check_end()

    @property
    def unequal(self) -> dict[str, dict[int, int]]:
        """The log ends of the partitions whose replicas have not all records."""
        unequal = {}
        for replicated, state in self.metadata.all():
            ends = {}
            for broker_id in state.replicas:
                partition = self._checkers[broker_id].partition(replicated.topic_partition)
                assert partition is not None, f"{replicated}: broker {broker_id} has no usable replica at the end"
                ends[broker_id] = partition.log.log_end_offset
            if len(set(ends.values())) > 1:
                unequal[str(replicated)] = ends
        return unequal

    def ends(self) -> dict[TopicPartition, int]:
        """The high watermarks of the present leaders."""
        return {
            replicated.topic_partition: partition.high_watermark
            for replicated, state in self.metadata.all()
            if state.leader != NO_BROKER
            and (partition := self._checkers[state.leader].partition(replicated.topic_partition)) is not None
        }

    @property
    def open_transactions(self) -> dict[str, tuple[int, int]]:
        """Last stable offset and high watermark of the leaders whose partitions have an open transaction."""
        found = {}
        for replicated, state in self.metadata.all():
            if state.leader == NO_BROKER:
                continue
            partition = self._checkers[state.leader].partition(replicated.topic_partition)
            if partition is not None and partition.last_stable_offset < partition.high_watermark:
                found[str(replicated)] = partition.last_stable_offset, partition.high_watermark
        return found

    def _leads(self, broker_id: int, key: TopicPartition) -> bool:
        replicated = self.metadata.replicated(key)
        state = None if replicated is None else self.metadata.state(replicated)
        partition = self._checkers[broker_id].partition(key)
        return (
            state is not None
            and partition is not None
            and (state.leader, state.leader_epoch) == (broker_id, partition.leader_epoch)
        )

    def coordinates(self, host: str, group: str) -> bool:
        """Whether a broker leads the partition of a group in the newest metadata."""
        leader = self._coordinator_of(group)
        return leader != NO_BROKER and self._checkers[leader].node.name == host

    def _coordinator_of(self, group: str) -> int:
        partitions = {
            each.topic_partition.partition: state.leader
            for each, state in self.metadata.all()
            if each.topic_partition.topic == OFFSETS_TOPIC
        }
        return partitions[partition_for(group, len(partitions))] if partitions else NO_BROKER

    @property
    def not_in_sync(self) -> list[str]:
        """The partitions without a leader, without a full ISR of replicas that are there, or with a reassignment.

        A broker that has just lost power is in the ISR until its session ends.
        """
        return [
            f"{replicated}: {brief(state)}"
            for replicated, state in self.metadata.all()
            if state.leader == NO_BROKER
            or state.reassignment is not None
            or len(state.isr) < len(state.replicas)
            or any(self._checkers[each].partition(replicated.topic_partition) is None for each in state.replicas)
        ]

    async def check_periodically(self, interval_s: float) -> None:
        """Check everything at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.check_all()
