"""Compaction of topics whose groups hold records: what stays, who is asked and when, and what is counted."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.log.cleaning.cleaner_job import CleanerJob
from headwater.logtier.log.retention_holds import CommittedOffsets, RetentionHolds, WantedOffsets
from tests.unit.log.test_cleaner import CONFIG, OTHER, TP, World, record

HELD = dataclasses.replace(CONFIG, retention_hold_groups=("archive",))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.open()
    return world


@dataclasses.dataclass
class FakeGroups:
    """Answers that a group has passed an offset of each log."""

    offset: int | None = None
    #: Happens while the groups are asked.
    meanwhile: Callable[[], None] = lambda: None
    asked: list[WantedOffsets] = dataclasses.field(default_factory=list)

    async def committed(self, wanted: WantedOffsets) -> CommittedOffsets:
        self.asked.append(wanted)
        self.meanwhile()
        offset = self.offset
        return {} if offset is None else {group: dict.fromkeys(each, offset) for group, each in wanted.items()}


def test_no_record_and_no_tombstone_goes_before_its_group_has_passed_it(world: World) -> None:
    log, groups = world.logs[TP], FakeGroups()
    holds = RetentionHolds(world)
    holds.groups = groups
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    for key, value in ((b"a", b"v"), (b"a", None), (b"b", b"v"), (b"b", b"v")):
        world.write(record(key, value))
        world.roll()
    world.write(record(b"active"))
    everything = world.offsets()
    assert not world.clean(), "the offset is not known"
    assert (world.offsets(), holds.states[TP].held_bytes) == (everything, sum(each.size for each in log.segments[:4]))
    groups.offset = 3
    assert world.clean()
    assert world.offsets() == {1: b"a", 2: b"b", 3: b"b", 4: b"active"}
    world.ms += 10 * CONFIG.delete_retention_ms
    groups.offset = 1  # the group reads again from here
    assert not world.clean()
    assert 1 in world.offsets(), "the tombstone stays"
    groups.offset = 4
    world.dirty()
    while world.clean():
        world.ms += 10 * CONFIG.delete_retention_ms
    assert world.offsets().keys() == {3, 4, 5}


def test_a_full_hold_of_a_compacted_log_is_given_up_from_its_oldest_segment_on(world: World) -> None:
    log = world.logs[TP]
    holds = RetentionHolds(world)
    world.cleaner = world.new_cleaner(holds)
    for _ in range(4):
        world.write(record(b"a"))
        world.roll()
    size = log.segments[0].size
    limited = dataclasses.replace(HELD, retention_hold_max_bytes=2 * size)
    log.configure(limited)
    assert world.clean()
    assert world.offsets().keys() == {1, 2, 3}
    assert (holds.states[TP].held_bytes, holds.states[TP].given_up_bytes) == (2 * size, 2 * size)


@pytest.mark.parametrize("change", [{"retention_hold_groups": ("archive", "late")}, {"retention_hold_max_bytes": 900}])
def test_a_hold_that_changes_while_a_log_is_cleaned_ends_the_cleaning(world: World, change: dict[str, Any]) -> None:
    log, holds = world.logs[TP], RetentionHolds(world)
    holds.groups = FakeGroups(offset=2)
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    world.write(record(b"a"), record(b"a"))
    world.roll()

    def set_hold(job: CleanerJob) -> CleanerJob:
        log.configure(dataclasses.replace(log.config, **change))
        return job

    world.change = set_hold
    assert world.clean()
    assert world.offsets().keys() == {0, 1}
    world.change = lambda job: job
    assert world.clean(), "the new hold is obeyed, and allows it"
    assert world.offsets().keys() == {1}


def test_groups_are_asked_only_of_a_log_that_is_due_and_after_logs_without_groups(world: World) -> None:
    log, groups, holds = world.logs[TP], FakeGroups(), RetentionHolds(world)
    holds.groups = groups
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    world.write(record(b"a"))
    assert not world.clean()
    assert groups.asked == [], "only the active segment has records"
    world.roll()
    world.open(OTHER)
    world.write(record(b"a"), record(b"a"), tp=OTHER)
    world.roll(OTHER)
    assert world.clean()
    assert (list(world.offsets(OTHER)), len(groups.asked)) == ([1], 0), "the log without groups waits for nobody"
    assert not world.clean()
    assert groups.asked == [{"archive": {TP: log.topic_id}}]


def test_a_log_with_groups_that_waited_for_long_comes_before_logs_without(world: World) -> None:
    log, groups, holds = world.logs[TP], FakeGroups(offset=2), RetentionHolds(world)
    holds.groups = groups
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    world.write(record(b"a"), record(b"a"))
    world.roll()
    world.open(OTHER)
    for _ in range(2):
        world.write(record(b"a"), record(b"a"), tp=OTHER)
        world.roll(OTHER)
        assert world.clean()
        assert groups.asked == []
    world.write(record(b"a"), tp=OTHER)
    world.roll(OTHER)
    world.ms += 60_000
    assert world.clean()
    assert groups.asked == [{"archive": {TP: log.topic_id}}]
    assert list(world.offsets()) == [1]


def test_bytes_count_as_held_only_while_the_log_is_due_without_the_hold(world: World) -> None:
    log, holds = world.logs[TP], RetentionHolds(world)
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    world.write(record(b"a"), record(b"a"))
    world.roll()
    assert not world.clean()
    assert holds.states[TP].held_bytes == log.segments[0].size
    log.configure(dataclasses.replace(HELD, min_cleanable_dirty_ratio=1.0))
    assert not world.clean()
    assert holds.states[TP].held_bytes == 0


@pytest.mark.parametrize("change", ["policy", "cleaner off", "uncleanable"])
def test_a_log_that_is_not_compacted_any_longer_has_no_bytes_held_back_from_it(world: World, change: str) -> None:
    log, holds = world.logs[TP], RetentionHolds(world)
    world.cleaner = world.new_cleaner(holds)
    log.configure(HELD)
    world.write(record(b"a"), record(b"a"))
    world.roll()
    assert not world.clean()
    held_bytes = holds.states[TP].held_bytes
    assert held_bytes > 0
    if change == "policy":
        log.configure(dataclasses.replace(HELD, cleanup_policy=("delete",)))
    elif change == "cleaner off":
        world.broker_configs["log.cleaner.enable"] = "false"
    else:
        world.cleaner.counters.uncleanable[TP] = "damaged"

    async def one_round() -> None:
        world.cleaner.start()
        await asyncio.sleep(0)
        await world.cleaner.stop()

    asyncio.run(one_round())
    assert holds.states[TP].held_bytes == 0


def test_segments_that_were_given_up_count_once_when_a_full_map_ends_a_cleaning_early(world: World) -> None:
    log, holds = world.logs[TP], RetentionHolds(world)
    world.cleaner = world.new_cleaner(holds)
    world.change = lambda job: dataclasses.replace(job, dedupe_buffer_bytes=0, load_factor=2.5 / 1024)
    for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
        world.write(record(key))
        world.roll()
    given_up_bytes = sum(segment.size for segment in log.segments)
    log.configure(dataclasses.replace(HELD, retention_hold_max_bytes=0))
    cleanings = 0
    while world.clean():
        cleanings += 1
    assert cleanings > 1
    assert holds.states[TP].given_up_bytes == given_up_bytes
