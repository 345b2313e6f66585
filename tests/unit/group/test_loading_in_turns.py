"""Loading a partition with very many groups lets others in, and is right whatever comes in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.logtier.group.classic.core import GroupLimits
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_step import Heartbeat
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.events import ArmTimer, GroupMetadata, GroupState, Join, MemberMetadata
from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.records import group_key, group_value, offset_key, offset_value
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.state_topic import writes
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import STEPS_PER_TURN
from tests.unit.group.conftest import World
from tests.unit.state_topic.surroundings import settle

KEY = TopicPartition("t", 0)
COUNT = 3 * STEPS_PER_TURN
SESSION_MS = 10_000


def names(partition: int, count: int, prefix: str = "g") -> list[str]:
    """Groups of one partition of four."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"{prefix}{number}"
        if partition_for(name, 4) == partition:
            found.append(name)
        number += 1
    return found


def stable() -> GroupMetadata:
    member = MemberMetadata("m", None, "client", "/h", 60_000, SESSION_MS, b"", b"all")
    return GroupMetadata("custom", 1, "p", "m", (member,), 5)


def store(world: World, partition: int, records: list[Record]) -> None:
    world.replicas.log(TopicPartition(OFFSETS_TOPIC, partition)).append(build_batch(records))


def store_groups(world: World, partition: int, group_ids: list[str]) -> None:
    store(world, partition, [Record(group_key(group_id), group_value(stable()), 0) for group_id in group_ids])


class Turns:
    """What others see of a coordinator, turn by turn."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.seen: list[Any] = []
        self._look = look
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.seen.append(self._look())
            await asyncio.sleep(0)

    async def until(self, is_true: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(20):
            while not (self.seen and is_true(self.seen[-1])):  # noqa: ASYNC110 (turn by turn)
                await asyncio.sleep(0)

    def stop(self) -> None:
        self._task.cancel()


def code_of(groups: GroupCoordinator, group_id: str) -> ErrorCode:
    try:
        groups.group(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


@pytest.fixture
def world() -> World:
    world = World()
    world.metadata.add(OFFSETS_TOPIC, 4)
    return world


def test_others_have_turns_while_groups_are_made_and_while_their_sessions_begin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_ids = names(0, COUNT)
    store_groups(world, 0, group_ids)

    async def scenario() -> None:
        made: list[str] = []
        begun: list[str] = []

        class Counted(Group):
            def __init__(self, group_id: str, limits: GroupLimits) -> None:
                made.append(group_id)
                super().__init__(group_id, limits)

        monkeypatch.setattr("headwater.logtier.group.classic_groups.Group", Counted)
        monkeypatch.setattr(world.groups._classic, "_arm", lambda group, _: begun.append(group.group_id))
        await world.groups.start()
        turns = Turns(lambda: (len(made), code_of(world.groups, group_ids[0]), len(begun)))
        await turns.until(lambda seen: seen[2] == COUNT)
        turns.stop()
        for position in (0, 2):
            steps = [later[position] - earlier[position] for earlier, later in itertools.pairwise(turns.seen)]
            assert max(steps) <= STEPS_PER_TURN
        # Either all groups are there, or whoever asks is told to come again.
        assert {each[1] for each in turns.seen if each[0] < COUNT} == {ErrorCode.coordinator_load_in_progress}
        assert {each[1] for each in turns.seen if each[2]} == {ErrorCode.none}
        group = world.groups.group(group_ids[-1])
        assert group is not None
        assert group.state is GroupState.STABLE

    run(scenario)


def test_a_partition_that_is_resigned_while_its_groups_are_made_leaves_none_of_them(world: World) -> None:
    group_ids = names(0, COUNT)
    store_groups(world, 0, group_ids)

    async def scenario() -> None:
        made: list[str] = []
        classic = world.groups._classic
        restored = classic.restored

        def restored_and_noted(group_id: str, metadata: GroupMetadata | None) -> Group:
            made.append(group_id)
            return restored(group_id, metadata)

        classic.restored = restored_and_noted  # type: ignore[method-assign]
        await world.groups.start()
        turns = Turns(lambda: len(made))
        await turns.until(lambda count: count > 0)
        assert len(made) < COUNT
        turns.stop()
        world.replicas.elsewhere.add(0)
        world.metadata.move(OFFSETS_TOPIC, 0, leader=2, leader_epoch=1)
        await settle()
        assert world.groups.groups() == []
        assert code_of(world.groups, group_ids[0]) is ErrorCode.not_coordinator
        # It comes back, with one group less.
        store(world, 0, [Record(group_key(group_ids[0]), None, 0)])
        world.replicas.elsewhere.clear()
        world.metadata.move(OFFSETS_TOPIC, 0, leader=1, leader_epoch=2)
        loaded = Turns(lambda: world.groups._loader.is_busy)
        await settle()
        await loaded.until(lambda is_busy: not is_busy)
        loaded.stop()
        assert {group.group_id for group in world.groups.groups()} == set(group_ids[1:])

    run(scenario)


def test_a_partition_that_is_led_anew_while_its_groups_are_made_is_read_anew(world: World) -> None:
    """What was made of the log in the epoch before counts for nothing."""
    group_ids = names(0, COUNT)
    store_groups(world, 0, group_ids)
    store(world, 0, [Record(offset_key(group_ids[0], KEY), offset_value(CommittedOffset(1)), 0)])

    async def scenario() -> None:
        await world.groups.start()
        states: list[bool] = []
        original = world.groups._log.load

        async def load(partition: int, restoring: Any, add_groups: Callable[[], None]) -> writes.Wait | None:
            def interrupted(replay: Any) -> Iterator[None]:
                for number, step in enumerate(restoring(replay)):
                    if number == 10 and not states and partition == 0:
                        store(world, 0, [Record(offset_key(group_ids[0], KEY), offset_value(CommittedOffset(2)), 0)])
                        world.metadata.move(OFFSETS_TOPIC, 0, leader=1, leader_epoch=1)
                        world.groups.leadership_changed()
                        states.append(True)
                    yield step

            return await original(partition, interrupted, add_groups)

        world.groups._log.load = load  # type: ignore[method-assign]
        turns = Turns(lambda: world.groups._loader.is_busy)
        await turns.until(lambda is_busy: not is_busy)
        turns.stop()
        assert states
        assert len(world.groups.groups()) == COUNT
        committed = world.groups.committed(group_ids[0]).get(KEY)
        assert committed is not None
        assert committed.offset == 2

    run(scenario)


def test_sessions_begin_when_their_groups_can_be_reached(world: World) -> None:
    """However long the groups before took: the members' heartbeats were answered, and counted for nothing."""
    [group_id] = names(0, 1)
    store_groups(world, 0, [group_id])

    async def scenario() -> None:
        classic = world.groups._classic
        restored = classic.restored

        def slowly(group_id: str, metadata: GroupMetadata | None) -> Group:
            group = restored(group_id, metadata)
            world.clock.ms += 2 * SESSION_MS
            return group

        classic.restored = slowly  # type: ignore[method-assign]
        await world.groups.start()
        await settle()
        group = world.groups.group(group_id)
        assert group is not None
        classic.resume(group)  # type: ignore[arg-type]
        assert [member.member_id for member in group.members] == ["m"]  # type: ignore[union-attr]
        world.clock.ms += SESSION_MS
        classic.resume(group)  # type: ignore[arg-type]
        assert not group.members  # type: ignore[union-attr]

    run(scenario)


def test_whoever_comes_before_the_sessions_of_its_group_begin_is_not_in_the_way() -> None:
    """A group can be reached a moment before its time begins: nobody is late until then."""
    members = tuple(MemberMetadata(name, None, "c", "/h", 60_000, SESSION_MS, b"", b"") for name in ("m", "n", "o"))
    group = Group("g", GroupLimits())
    group.read(GroupMetadata("custom", 1, "p", "m", members, 5))
    assert group.timer_expired(10**9) == []
    assert group.heartbeat("n", None, 1, 1_000) is ErrorCode.none
    join = Join(1, "m", "new", None, "c", "/h", SESSION_MS, 60_000, "custom", (("p", b"other"),), True, True, "")
    group.join(join, 1_500)
    assert group.state is GroupState.PREPARING_REBALANCE
    group.begin_sessions(2_000)
    deadlines = {member.member_id: member.deadline_ms for member in group.members}
    assert deadlines == {"m": None, "n": 1_000 + SESSION_MS, "o": 2_000 + SESSION_MS}


@pytest.mark.parametrize("is_heard_by_a_commit", [False, True])
def test_a_group_whose_members_were_all_heard_of_before_its_sessions_begin_has_a_timer(
    is_heard_by_a_commit: bool,
) -> None:
    members = tuple(MemberMetadata(name, None, "c", "/h", 60_000, SESSION_MS, b"", b"") for name in ("m", "n"))
    group = Group("g", GroupLimits())
    group.read(GroupMetadata("custom", 1, "p", "m", members, 5))
    for name, now_ms in (("m", 1_200), ("n", 1_000)):
        if is_heard_by_a_commit:
            group.check_offset_commit(name, None, 1, now_ms)
        else:
            assert group.heartbeat(name, None, 1, now_ms) is ErrorCode.none
    assert group.begin_sessions(1_500) == [ArmTimer(1_000 + SESSION_MS)]
    assert group.begin_sessions(1_600) == []


def test_sessions_of_a_group_that_was_out_of_reach_when_they_should_have_begun_begin_when_it_is_back() -> None:
    member = MemberMetadata("m", None, "c", "/h", 60_000, SESSION_MS, b"", b"")
    group = Group("g", GroupLimits())
    group.read(GroupMetadata("custom", 1, "p", "m", (member,), 5))
    assert ArmTimer(1_000 + SESSION_MS) in group.resume(1_000)
    assert group.begin_sessions(2_000) == [], "its turn comes later"
    group.resume(1_000 + SESSION_MS)
    assert not group.members


def test_a_member_that_was_heard_of_at_once_and_then_dies_is_put_out(world: World) -> None:
    group_ids = names(0, COUNT)
    store_groups(world, 0, group_ids)

    async def scenario() -> None:
        await world.groups.start()
        turns = Turns(lambda: code_of(world.groups, group_ids[-1]))
        await turns.until(lambda code: code is ErrorCode.none)
        assert world.groups.heartbeat(group_ids[-1], "m", None, 1) is ErrorCode.none
        assert group_ids[-1] not in world.groups._classic._timers, "its sessions have not begun"
        turns.stop()
        await settle()
        assert set(world.groups._classic._timers) == set(group_ids)

    run(scenario)


def test_sessions_begin_although_an_upgrade_was_under_way_that_came_to_nothing() -> None:
    world = World(properties={"group.consumer.migration.policy": "bidirectional"})
    world.metadata.add(OFFSETS_TOPIC, 4)
    world.metadata.add("t")
    subscription = bytes.fromhex("0000 00000001 0001 74 ffffffff")
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
    member = MemberMetadata("m", None, "client", "/h", 60_000, SESSION_MS, subscription, assignment)
    group_ids = names(0, COUNT)
    value = group_value(GroupMetadata("consumer", 1, "range", "m", (member,), 5))
    store(world, 0, [Record(group_key(group_id), value, 0) for group_id in group_ids])
    beat = Heartbeat("a", 0, "c", "/h", None, rebalance_timeout_ms=60_000, topic_names=frozenset({"t"}))

    async def scenario() -> None:
        await world.groups.start()
        reached = Turns(lambda: code_of(world.groups, group_ids[-1]))
        await reached.until(lambda code: code is ErrorCode.none)
        reached.stop()
        world.replicas.gate = asyncio.Event()
        upgrading = asyncio.ensure_future(world.groups.consumer_heartbeat(group_ids[-1], beat))
        await settle()
        assert isinstance(world.groups._groups[group_ids[-1]], ConsumerGroup)
        write = world.groups._log._partitions[0].writes.popleft()
        writes._refuse(write, KafkaError(ErrorCode.not_enough_replicas, "x"))
        with pytest.raises(KafkaError):
            await upgrading
        group = world.groups.group(group_ids[-1])
        assert isinstance(group, Group)
        assert [each.deadline_ms for each in group.members] == [world.clock.monotonic_ms() + SESSION_MS]
        assert group_ids[-1] in world.groups._classic._timers
        world.replicas.gate.set()
        await world.groups.stop()

    run(scenario)
