"""A consumer group under whatever members, topics, disks and clocks do to it; its clients keep to the rules."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.logtier.group.assignors.range_assignor import RangeAssignor
from headwater.logtier.group.assignors.uniform_assignor import UniformAssignor
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from headwater.logtier.group.consumer.consumer_records import (
    Change,
    RegexValue,
    consumer_key,
    consumer_value,
)
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState, ConsumerState
from headwater.logtier.group.consumer.consumer_step import ConsumerGroupLimits, Heartbeat, HeartbeatResult, Step
from headwater.logtier.group.persistence.records import parse_key, parse_value
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import first_partition_state
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.name_regex import NameRegex
from tests.example_counts import examples

Partition = tuple[uuid.UUID, int]

LIMITS = ConsumerGroupLimits({each.name: each for each in (UniformAssignor(), RangeAssignor())}, max_size=5)
REBALANCE_MS = 30_000
TOPICS = ("t-1", "t-2", "u")
subscriptions = st.one_of(
    st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda names: (frozenset(names), None)),
    st.sampled_from([(None, "t-.*"), (None, "u|t-1"), (frozenset({"u"}), "t-2")]),
)


@dataclass
class Client:
    """A member as a client is to behave: it consumes what it was told, and stops when it is told so."""

    member_id: str
    instance_id: str | None
    subscription: tuple[frozenset[str] | None, str | None]
    epoch: int = 0
    holds: frozenset[Partition] = frozenset()
    told: frozenset[Partition] = frozenset()
    changes_subscription: bool = True


class ConsumerGroupModel(RuleBasedStateMachine):
    """Rules are what happens; invariants are checked after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.image = MetadataImage()
        self.group = ConsumerGroup("g")
        self.log: list[Change] = []
        self.clients: list[Client] = []
        self.number = 0
        self.fails = False

    # ---- what happens ----

    @initialize()
    def begin(self) -> None:
        self.set_topics({"t-1": 3, "u": 2})

    @rule(subscription=subscriptions, is_static=st.booleans())
    def join(self, subscription: Any, is_static: bool) -> None:
        self.number += 1
        instance_id = f"i-{self.number % 3}" if is_static else None
        client = Client(f"m-{self.number}", instance_id, subscription)
        if self.beat(client):
            self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_slow=st.booleans(), is_lost=st.booleans())
    def heartbeat(self, data: st.DataObject, is_slow: bool, is_lost: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if not is_slow:
            client.holds &= client.told
        self.beat(client, is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=subscriptions)
    def change_subscription(self, data: st.DataObject, subscription: Any) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.subscription, client.changes_subscription = subscription, True
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_away=st.booleans())
    def leave(self, data: st.DataObject, is_away: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        epoch = LEAVE_STATIC_EPOCH if is_away and client.instance_id else LEAVE_EPOCH
        self.clients.remove(client)
        try:
            _, step = self.group.leave(client.member_id, epoch, client.instance_id, self.image, LIMITS)
        except KafkaError:
            return
        self.write(step)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(ms=st.sampled_from([1000, 20_000, 50_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.write(self.group.expire(self.image, LIMITS, self.now_ms))

    @rule(counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 5)))
    def change_topics(self, counts: dict[str, int]) -> None:
        self.set_topics(counts)

    @rule()
    def restart(self) -> None:
        self.group = ConsumerGroup("g", replayed(self.log))
        self.group.restore(LIMITS, self.now_ms)

    @rule()
    def the_next_write_fails(self) -> None:
        self.fails = True

    @rule()
    def everybody_goes_on(self) -> None:
        """The group comes to rest, and then everybody has its target."""
        self.fails = False
        for _ in range(12):
            for client in list(self.clients):
                client.holds &= client.told
                self.beat(client)
        # Members that nobody speaks for any more time out, and those that are left share what they had.
        for _ in range(4):
            for _ in range(5):
                self.now_ms += 10_000
                for client in self.clients:
                    client.holds &= client.told
                    self.beat(client)
                self.write(self.group.expire(self.image, LIMITS, self.now_ms))
        in_group = [client for client in self.clients if client.member_id in self.group.state.members]
        assert len(in_group) == len(self.group.state.members)
        if not in_group:
            return
        assert self.group.state.phase is ConsumerGroupState.STABLE
        held = [partition for client in in_group for partition in client.holds]
        wanted = {
            (topic.topic_id, index)
            for name in self.group.state.subscribed_topics()
            if (topic := self.image.topic(name)) is not None
            for index in range(len(topic.partitions))
        }
        assert sorted(held) == sorted(wanted)

    # ---- what holds ----

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        state = self.group.state
        owners: dict[Partition, str] = {}
        for member_id, member in state.members.items():
            for partition in member.owned():
                assert owners.setdefault(partition, member_id) == member_id
                assert state.owner_of(*partition) == member_id

    @invariant()
    def no_two_members_consume_a_partition(self) -> None:
        consumers: dict[Partition, str] = {}
        for client in self.clients:
            if client.member_id in self.group.state.members:
                for partition in client.holds:
                    assert consumers.setdefault(partition, client.member_id) == client.member_id

    @invariant()
    def the_live_state_equals_the_replay_of_its_log_compacted_or_not(self) -> None:
        live = described(self.group.state)
        assert described(replayed(self.log)) == live
        last = {(change.key.kind, change.key.name): index for index, change in enumerate(self.log)}
        compacted = [self.log[index] for index in sorted(last.values())]
        assert described(replayed(compacted)) == live
        without_tombstones = [change for change in compacted if change.value is not None]
        assert described(replayed(without_tombstones)) == live

    # ---- the shell ----

    def set_topics(self, counts: dict[str, int]) -> None:
        topics = {}
        for name, count in counts.items():
            old = self.image.topics.get(name)
            size = max(count, len(old.partitions)) if old else count
            partitions = tuple(first_partition_state((1,)) for _ in range(size))
            self.number += 1
            topics[name] = TopicImage(name, old.topic_id if old else uuid.UUID(int=self.number), partitions)
        names = {topic.topic_id: name for name, topic in topics.items()}
        self.image = replace(self.image, topics=topics, topic_names=names)
        self.group.topics_changed()

    def beat(self, client: Client, *, is_lost: bool = False) -> bool:
        """Send a heartbeat, and do what its answer says."""
        joins = client.epoch == 0
        if joins:
            client.holds = client.told = frozenset()
        owned: dict[uuid.UUID, set[int]] = {}
        for topic_id, index in client.holds:
            owned.setdefault(topic_id, set()).add(index)
        names, regex = client.subscription
        is_full = joins or client.changes_subscription
        event = Heartbeat(
            client.member_id,
            client.epoch,
            "client",
            "/10.0.0.1",
            client.instance_id,
            None,
            REBALANCE_MS if joins else -1,
            (names or frozenset()) if is_full else None,
            (regex or "") if is_full else None,
            None,
            {topic_id: frozenset(indexes) for topic_id, indexes in owned.items()},
        )
        resolved = {
            each: RegexValue(NameRegex(each).matching(self.image.topics), 0, self.now_ms)
            for each in self.group.regexes_to_resolve(event.topic_regex)
            if each not in self.group.state.regexes or self.group.is_stale
        }
        try:
            event = replace(event, resolved=resolved, resolved_version=self.group.topics_version)
            result, step = self.group.heartbeat(event, self.image, LIMITS, self.now_ms)
        except KafkaError as error:
            if error.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                client.epoch, client.holds, client.told = 0, frozenset(), frozenset()
                client.changes_subscription = True
            return False
        if not self.write(step) or (is_lost and not joins):
            return False
        self.learn(client, result)
        return True

    def learn(self, client: Client, result: HeartbeatResult) -> None:
        client.epoch, client.changes_subscription = result.member_epoch, False
        if result.assignment is not None:
            client.told = frozenset((topic, i) for topic, indexes in result.assignment.items() for i in indexes)
            client.holds |= client.told

    def write(self, step: Step) -> bool:
        if step.changes and self.fails:
            self.fails = False
            return False
        self.log.extend(reread(change) for change in step.changes)
        self.group.commit(step, self.now_ms)
        return True


def reread(change: Change) -> Change:
    """The change as its record's bytes say it."""
    key: Any = parse_key(consumer_key(change.key))
    return Change(key, None if change.value is None else parse_value(key, consumer_value(change.value)))


def replayed(log: list[Change]) -> ConsumerState:
    state = ConsumerState("g")
    for change in log:
        assert state.apply(change.key.kind, change.key.name, change.value)
    return state


def described(state: ConsumerState) -> Any:
    return state.epoch, state.metadata_hash, state.target_epoch, state.members, state.targets, state.regexes


TestConsumerGroupModel = ConsumerGroupModel.TestCase
TestConsumerGroupModel.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
