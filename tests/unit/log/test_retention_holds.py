"""Holds of groups: what is asked before a pass, what is deleted and cleaned after it, and when the broker warns."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.retention import RetentionHold
from headwater.logtier.log.retention_holds import (
    ALARM_INTERVAL_MS,
    UNKNOWN_MS_MAX,
    CommittedOffsets,
    HoldAlarm,
    HoldState,
    RetentionHolds,
    WantedOffsets,
    alarm_of,
    hold_of,
)
from headwater.logtier.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from tests.unit.log.conftest import LogFolder, MakeBatch

TP = TopicPartition("flights", 0)
NOW_MS = 1_000_000
HELD = TopicConfig(retention_hold_groups=("a", "b"), retention_hold_max_bytes=500)


@dataclass
class FakeGroups:
    """What groups have committed in partition 0 of flights; `meanwhile` happens while they are asked."""

    offsets: dict[str, int] = field(default_factory=dict)
    meanwhile: Callable[[], None] = lambda: None
    asked: list[WantedOffsets] = field(default_factory=list)
    error: Exception | None = None

    async def committed(self, wanted: WantedOffsets) -> CommittedOffsets:
        self.asked.append(wanted)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return {group_id: {TP: self.offsets[group_id]} for group_id in wanted if group_id in self.offsets}


class ManualClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class World:
    """A log of expired segments, and the holds of its broker."""

    def __init__(self, folder: LogFolder, make_batch: MakeBatch, **configs: object) -> None:
        for _ in range(40):
            folder.append(make_batch(1, timestamp_ms=1_000))
        folder.configure(retention_ms=1, **configs)
        self.log = folder.log
        self.bases = [segment.base_offset for segment in self.log.segments]
        self.bytes = [segment.size for segment in self.log.segments]
        self.clock = ManualClock()
        self.holds = RetentionHolds(self.clock)
        self.groups = FakeGroups()
        self.holds.groups = self.groups
        self.logs = {TP: self.log}

    def apply(self) -> int:
        """Run a pass; return where the log begins."""
        asyncio.run(self.holds.apply_retention(self.logs, lambda _: self.log.log_end_offset))
        return self.log.log_start_offset


@pytest.fixture
def world(small_segments: LogFolder, make_batch: MakeBatch) -> World:
    return World(small_segments, make_batch, retention_hold_groups=("archive",))


@pytest.mark.parametrize(
    ("committed", "offset", "reason"),
    [
        ({"a": {TP: 7}, "b": {TP: 9}}, 7, "group 'a' has not passed offset 7"),
        ({"a": {TP: 7}}, 0, "no valid offset of group 'b' is known"),
        ({"a": {TP: 7}, "b": {TopicPartition("flights", 1): 9}}, 0, "no valid offset of group 'b' is known"),
        ({"a": {TP: 11}, "b": {TP: 9}}, 0, "offset 11 of group 'a' is beyond the log's end, 10"),
    ],
)
def test_the_slowest_group_holds_and_doubt_holds_all(committed: CommittedOffsets, offset: int, reason: str) -> None:
    hold = hold_of(HELD, TP, 10, committed)
    assert (hold.offset, hold.reason, hold.is_known) == (offset, reason, offset > 0)
    assert hold.bytes_max == 500


@pytest.mark.parametrize(
    ("held_bytes", "given_up_bytes", "is_known", "expected"),
    [
        (399, 0, True, None),
        (400, 0, True, HoldAlarm.NEAR_LIMIT),
        (500, 1, True, HoldAlarm.LIMIT_REACHED),
        (399, 0, False, HoldAlarm.UNKNOWN),
        (0, 0, False, None),
    ],
)
def test_the_alarm_comes_before_the_limit_and_at_it(
    held_bytes: int, given_up_bytes: int, is_known: bool, expected: HoldAlarm | None
) -> None:
    state = HoldState(held_bytes, unknown_since_ms=None if is_known else 0)
    hold = RetentionHold(0, 500, is_known=is_known)
    assert alarm_of(state, hold, given_up_bytes, UNKNOWN_MS_MAX + 1) is expected


def test_an_offset_that_is_unknown_for_a_moment_is_no_alarm() -> None:
    state = HoldState(100, unknown_since_ms=0)
    assert alarm_of(state, RetentionHold(0, is_known=False), 0, UNKNOWN_MS_MAX) is None


def test_a_pass_deletes_what_the_group_has_passed(world: World) -> None:
    assert world.apply() == 0
    world.groups.offsets["archive"] = world.bases[2] + 1
    assert world.apply() == world.bases[2]
    assert world.holds.states[TP].held_bytes == sum(world.bytes[2:])
    assert world.groups.asked == [{"archive": {TP: world.log.topic_id}}] * 2


def test_the_maintenance_of_logs_deletes_nothing_that_groups_may_hold(world: World) -> None:
    assert world.log.delete_old_segments(NOW_MS, world.log.log_end_offset) == 0
    world.log.delete_records_before(world.bases[1], world.log.log_end_offset)
    assert world.log.delete_old_segments(NOW_MS, world.log.log_end_offset) == 1


def test_without_an_answer_all_records_stay(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.groups.offsets["archive"] = world.log.log_end_offset
    world.groups.error = RuntimeError("a fault")
    assert world.apply() == 0
    assert "asking for the offsets of the groups that hold records failed" in caplog.text
    world.holds.groups = None
    assert world.apply() == 0


def test_an_answer_counts_for_its_topic_and_its_pass_only(world: World) -> None:
    world.groups.offsets["archive"] = world.log.log_end_offset

    def recreate() -> None:
        world.log.topic_id = uuid.UUID(int=99)

    world.groups.meanwhile = recreate
    assert world.apply() == 0
    world.groups.meanwhile = lambda: None
    world.groups.offsets.clear()
    assert world.apply() == 0, "the last answer is not used again"


def test_a_group_that_is_added_while_others_are_asked_holds_all(world: World) -> None:
    world.groups.offsets["archive"] = world.log.log_end_offset

    def add() -> None:
        world.log.configure(dataclasses.replace(world.log.config, retention_hold_groups=("archive", "late")))

    world.groups.meanwhile = add
    assert world.apply() == 0


def test_a_log_that_is_deleted_while_groups_are_asked_is_left_alone(world: World) -> None:
    world.groups.offsets["archive"] = world.log.log_end_offset
    world.groups.meanwhile = world.logs.clear
    assert world.apply() == 0


def test_others_have_a_turn_before_each_log_and_may_delete_it(world: World) -> None:
    world.groups.offsets["archive"] = world.log.log_end_offset

    def in_the_next_turn() -> None:
        asyncio.get_running_loop().call_soon(world.logs.clear)

    world.groups.meanwhile = in_the_next_turn
    assert world.apply() == 0
    assert world.logs == {}


def test_without_groups_nobody_is_asked(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    world = World(small_segments, make_batch)
    assert world.apply() == 0
    assert world.groups.asked == []
    assert world.log.delete_old_segments(NOW_MS, world.log.log_end_offset) > 0


def test_a_full_hold_gives_up_its_oldest_segments_and_warns_once_an_hour(
    small_segments: LogFolder, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(small_segments, make_batch, retention_hold_groups=("archive",))
    world.log.configure(dataclasses.replace(world.log.config, retention_hold_max_bytes=sum(world.bytes[2:])))
    assert world.apply() == world.bases[2]
    state = world.holds.states[TP]
    assert (state.held_bytes, state.given_up_bytes) == (sum(world.bytes[2:]), sum(world.bytes[:2]))
    for _ in range(3):
        assert world.apply() == world.bases[2]
    messages = [record.getMessage() for record in caplog.records]
    assert [("is reached" in each, "the oldest are" in each) for each in messages] == [(True, False), (False, True)]
    assert "flights-0: retention.hold.max.bytes" in messages[0]
    assert "although no valid offset of group 'archive' is known" in messages[0]
    world.clock.ms += ALARM_INTERVAL_MS
    world.apply()
    assert len(caplog.records) == 3


def test_a_group_without_an_offset_is_reported_after_a_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.apply()
    assert caplog.records == []
    world.clock.ms += UNKNOWN_MS_MAX + 1
    world.apply()
    assert "stay because no valid offset of group 'archive' is known; let the group commit offsets" in caplog.text


def test_a_log_without_groups_has_no_state_any_longer(world: World) -> None:
    world.apply()
    assert TP in world.holds.states
    world.log.configure(dataclasses.replace(world.log.config, retention_hold_groups=()))
    world.apply()
    assert world.holds.states == {}


def test_a_topic_that_is_created_anew_inherits_no_state(world: World) -> None:
    world.apply()
    world.holds.states[TP].given_up_bytes = 7
    world.apply()
    assert world.holds.states[TP].given_up_bytes == 7
    world.log.topic_id = uuid.UUID(int=99)
    world.apply()
    assert world.holds.states[TP].given_up_bytes == 0
