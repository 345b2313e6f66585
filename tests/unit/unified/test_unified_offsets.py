"""A statement's state of an archived topic: table and log share every committed record once, or it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import OnGap, plan_round
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.table_offsets import TableOffsets
from headwater.pipelines.unified.unified_frames import LOOKS_MAX, present_offsets
from headwater.pipelines.unified.unified_offsets import UnifiedOffsets, decide

TABLE = "/lake/flights"


def spec(on_gap: OnGap = "fail") -> TopicArchiveSpec:
    return TopicArchiveSpec("flights", TABLE, parse_position("earliest"), on_gap=on_gap)


def table(version: int, *ends: int, topic_id: str = "t", mode: str = "append") -> TableOffsets:
    return TableOffsets(version, "flights", topic_id, 0, dict(enumerate(ends)), mode)


def log(*bounds: tuple[int, int], topic_id: str = "t") -> LogState:
    parts = dict(enumerate(bounds))
    return LogState("flights", topic_id, {p: b[0] for p, b in parts.items()}, {p: b[1] for p, b in parts.items()})


def test_the_log_is_read_from_the_tables_offsets_and_where_it_has_more_only() -> None:
    found = decide(spec(), table(7, 40, 5, 0), log((30, 99), (5, 5), (0, 2)))
    assert found == UnifiedOffsets("flights", "t", TABLE, 7, {0: (40, 99), 2: (0, 2)}, starts={0: 40, 1: 5, 2: 0})


def test_without_a_table_the_whole_log_is_read() -> None:
    assert decide(spec(), None, log((3, 9), (4, 4))) == UnifiedOffsets(
        "flights", "t", TABLE, -1, {0: (3, 9)}, starts={0: 3, 1: 4}
    )


def test_a_table_without_offsets_yet_has_the_whole_log_behind_it() -> None:
    assert decide(spec(), table(0), log((3, 9))).tail == {0: (3, 9)}


def test_a_partition_that_was_added_begins_with_its_log() -> None:
    assert decide(spec(), table(7, 4), log((0, 4), (0, 6))).tail == {1: (0, 6)}
    with pytest.raises(ArchiveError, match="the offsets 0 to 1 of flights-1 were deleted by retention"):
        decide(spec(), table(7, 4), log((0, 4), (2, 6)))


def test_a_gap_by_retention_is_refused_unless_it_is_recorded() -> None:
    with pytest.raises(ArchiveError, match="the offsets 4 to 8 of flights-0 were deleted by retention"):
        decide(spec(), table(7, 4), log((9, 12)))
    assert decide(spec("record"), table(7, 4), log((9, 12))).tail == {0: (9, 12)}


def test_a_table_beyond_the_logs_end_is_refused() -> None:
    with pytest.raises(ArchiveFailed, match="the table is at offset 40 of flights-0, which ends at 39"):
        decide(spec(), table(7, 40), log((0, 39)))


def test_a_table_of_another_topic_or_mode_is_refused_with_both_ids() -> None:
    with pytest.raises(ArchiveError, match=f"{TABLE} is the archive of topic flights with the id old, .* has the id t"):
        decide(spec(), table(7, 4, topic_id="old"), log((0, 4)))
    with pytest.raises(ArchiveError, match=f"{TABLE} is an archive of the mode other"):
        decide(spec(), table(7, 4, mode="other"), log((0, 4)))
    assert decide(spec(), table(7, 4, mode="upsert"), log((0, 6))).mode == "upsert"


# -- two looks -------------------------------------------------------------------------------------------------------


class Looks:
    """What each look at table and log finds; the last answer stays."""

    def __init__(self, tables: Sequence[TableOffsets | None], logs: Sequence[LogState]) -> None:
        self.tables, self.logs = list(tables), list(logs)
        self.pauses: list[float] = []
        self.order: list[str] = []

    def table(self) -> TableOffsets | None:
        self.order.append("table")
        return self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]

    def log(self) -> LogState:
        self.order.append("log")
        return self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]

    def decided(self) -> UnifiedOffsets:
        return present_offsets(spec(), self.table, self.log, self.pauses.append)


def test_the_table_is_asked_before_the_log() -> None:
    looks = Looks([table(7, 4)], [log((0, 9))])
    assert looks.decided().tail == {0: (4, 9)}
    assert looks.order == ["table", "log"]


def test_retention_that_follows_a_commit_between_the_looks_is_no_gap() -> None:
    looks = Looks([table(7, 4), table(8, 10)], [log((10, 12))])
    assert (looks.decided().version, looks.pauses) == (8, [])


def test_a_gap_that_stays_is_refused_at_once() -> None:
    looks = Looks([table(7, 4)], [log((9, 12))])
    with pytest.raises(ArchiveError):
        looks.decided()
    assert looks.pauses == []


def test_an_end_that_a_new_leader_learns_a_moment_later_is_waited_for() -> None:
    looks = Looks([table(7, 40)], [log((0, 39)), log((0, 41))])
    assert looks.decided().tail == {0: (40, 41)}
    looks = Looks([table(7, 40)], [log((0, 39))])
    with pytest.raises(ArchiveFailed):
        looks.decided()
    assert len(looks.pauses) == LOOKS_MAX - 1


# -- a model -----------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.sampled_from(["write", "round", "expire"]), st.integers(0, 1), st.integers(1, 9)))


@given(STEPS, STEPS, STEPS, st.sampled_from(["fail", "record"]))
def test_whatever_happens_between_two_looks_each_record_is_read_once(
    before: list[tuple[str, int, int]],
    between: list[tuple[str, int, int]],
    behind: list[tuple[str, int, int]],
    on_gap: OnGap,
) -> None:
    """Writers, rounds and a retention that stops at what the archive has committed: before, between, behind."""
    first, end = [0, 0], [0, 0]
    versions: list[dict[int, int]] = []

    def log_now() -> LogState:
        return log(*zip(first, end, strict=True))

    def run(steps: list[tuple[str, int, int]]) -> None:
        for what, partition, number in steps:
            if what == "write":
                end[partition] += number
            elif what == "round":
                state = ArchiveState(versions[-1] if versions else {})
                plan = plan_round(state, log_now(), {0: 0, 1: 0}, on_gap="fail", offsets_max=number)
                versions.append({**state.ends, **plan.ends})
            elif versions:
                archived = versions[-1].get(partition, 0)
                first[partition] = max(min(archived, first[partition] + number), first[partition])

    def table_now() -> TableOffsets | None:
        if not versions:
            return None
        return TableOffsets(len(versions) - 1, "flights", "t", 0, versions[-1])

    looks = 0

    def log_later() -> LogState:
        nonlocal looks
        looks += 1
        if looks == 1:
            run(between)
        return log_now()

    run(before)
    written = list(end)
    found = present_offsets(spec(on_gap), table_now, log_later, lambda _: None)
    least = list(end)
    run(behind)
    archived = versions[found.version] if found.version >= 0 else {}
    for partition in range(2):
        seam = archived.get(partition, 0)
        start, stop = found.tail.get(partition, (seam, seam))
        assert start == seam
        assert max(stop, seam) == least[partition] >= written[partition]
