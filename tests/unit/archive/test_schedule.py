"""Rounds begin when half of a topic's time is over, within the places there are, and every archive has its turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.pipelines.archive.schedule import LONG_AT_ONCE, LONG_S, RETRY_S_MAX, TopicProgress, due, to_open

NOW_S = 1000.0


def opened(freshness_s: float = 60.0, round_offsets: int = 100, archived: int = -1, ends: int = 0) -> TopicProgress:
    """An archive whose lock this driver has."""
    return TopicProgress(freshness_s, round_offsets, archived, ends, is_open=True)


def live(waited_s: float = 60.0, freshness_s: float = 60.0) -> TopicProgress:
    """An archive that has caught up, with records that wait for so long."""
    progress = opened(freshness_s, 1_000_000, 10, 20)
    progress.pending_s = NOW_S - waited_s
    return progress


def behind(began_s: float = 0.0) -> TopicProgress:
    progress = opened(60.0, 100, 100, 10_000)
    progress.pending_s, progress.is_behind, progress.began_s = began_s, True, began_s
    return progress


def running(progress: TopicProgress) -> TopicProgress:
    progress.began(NOW_S)
    return progress


def places_of(chosen: Iterable[TopicProgress], topics: Sequence[TopicProgress]) -> list[int]:
    """The positions of archives: equal ones are not the same."""
    return [next(place for place, each in enumerate(topics) if each is one) for one in chosen]


# -- when a round is due -----------------------------------------------------------------------------------------------


def test_an_archive_whose_offsets_are_not_known_yet_is_due_at_once() -> None:
    progress = opened()
    assert progress.is_due(0.0)
    progress.seen(50, 0.0)
    assert progress.is_due(0.0)
    progress.began(0.0)
    progress.succeeded(50, 0)
    assert not progress.is_due(1e9)


@pytest.mark.parametrize("freshness_s", [1.0, 60.0, 3600.0])
def test_a_round_is_due_when_half_of_the_time_is_over(freshness_s: float) -> None:
    progress = opened(freshness_s, 100, 10, 10)
    progress.seen(11, NOW_S)
    assert not progress.is_due(NOW_S + freshness_s / 2 - 0.01)
    assert progress.is_due(NOW_S + freshness_s / 2)


def test_later_records_do_not_put_off_a_round() -> None:
    progress = opened(60.0, 100, 10, 10)
    for second in range(30):
        progress.seen(11 + second, NOW_S + second)
        assert not progress.is_due(NOW_S + second)
    progress.seen(60, NOW_S + 30)
    assert progress.is_due(NOW_S + 30)


def test_a_round_is_due_as_soon_as_there_are_enough_offsets_for_it() -> None:
    progress = opened(3600.0, 100, 10, 10)
    progress.seen(109, NOW_S)
    assert not progress.is_due(NOW_S)
    progress.seen(110, NOW_S)
    assert progress.is_due(NOW_S)


def test_an_archive_without_new_records_is_never_due() -> None:
    progress = opened(1.0, 1, 10, 10)
    progress.seen(10, NOW_S)
    assert not progress.is_due(NOW_S + 1e9)


def test_a_log_that_is_shorter_than_its_table_is_looked_at_by_a_round() -> None:
    """A topic that was made anew, or has lost records: nothing else finds out."""
    progress = opened(60.0, archived=1_000, ends=1_000)
    progress.seen(900, 100.0)
    assert not progress.is_due(129.0)
    progress.seen(1_000, 129.0)  # the first look was older than the last round
    assert not progress.is_due(1e9)
    progress.seen(900, 200.0)
    progress.seen(950, 220.0)
    assert progress.is_due(230.0)
    progress.forget()
    progress.seen(950, 231.0)
    assert (progress.archived, progress.pending_s) == (-1, 231.0)


def test_what_a_round_has_left_is_pending_whatever_the_last_look_has_told() -> None:
    progress = opened()
    progress.began(5.0)
    progress.succeeded(100, 50)
    assert (progress.ends, progress.pending_s) == (150, 5.0)


def test_an_archive_has_one_round_at_a_time() -> None:
    for progress in (opened(), live(1e6), behind()):
        assert progress.is_due(NOW_S)
        progress.began(NOW_S)
        assert not progress.is_due(NOW_S)


def test_after_a_round_that_took_everything_the_next_one_waits_for_new_records() -> None:
    progress = running(live())
    progress.seen(20, NOW_S)
    progress.succeeded(20, 0)
    assert not progress.is_due(NOW_S + 1e9)
    progress.seen(21, NOW_S + 50)
    assert not progress.is_due(NOW_S + 79)
    assert progress.is_due(NOW_S + 80)


def test_an_archive_that_left_offsets_behind_is_due_at_once_until_it_has_caught_up() -> None:
    progress = running(live())
    progress.seen(500, NOW_S)
    progress.succeeded(120, 380)
    assert progress.is_due(NOW_S + 5)
    progress.began(NOW_S + 5)
    progress.succeeded(500, 0)
    assert not progress.is_due(NOW_S + 10)


def test_offsets_first_seen_during_a_round_wait_from_then_on() -> None:
    """Else a record waits for the rest of that round, half of its time, and its own round: longer than it may."""
    progress = running(live(30))
    progress.seen(25, NOW_S + 1)
    progress.succeeded(20, 0)
    assert not progress.is_due(NOW_S + 25)
    assert progress.is_due(NOW_S + 31)


def test_what_is_seen_before_the_first_round_has_ended_is_pending_from_then_on() -> None:
    progress = TopicProgress(60.0, 100)
    progress.seen(0, NOW_S)
    while_empty = progress.pending_s
    progress.seen(5, NOW_S + 1)
    progress.opened()
    progress.began(NOW_S + 2)
    progress.seen(9, NOW_S + 3)
    assert (while_empty, progress.pending_s) == (None, NOW_S + 1)
    progress.succeeded(9, 0)
    assert progress.pending_s is None


def test_nothing_is_pending_for_an_archive_that_another_driver_has() -> None:
    progress = live()
    progress.held()
    progress.failed(NOW_S, 15.0)
    progress.seen(30, NOW_S + 1)
    assert (progress.archived, progress.pending_s) == (-1, None)
    progress.opened()
    progress.seen(30, NOW_S + 20)
    assert progress.pending_s == NOW_S + 20
    assert progress.is_due(NOW_S + 20)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_failures_in_a_row_wait_longer_each_time_and_no_longer_than_the_maximum() -> None:
    progress, now_s, waits = live(), NOW_S, []
    for _ in range(40):
        progress.began(now_s)
        waits.append(progress.failed(now_s))
        assert not progress.is_due(now_s + waits[-1] - 0.01)
        now_s += waits[-1]
        assert progress.is_due(now_s)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[RETRY_S_MAX] * 31]


@pytest.mark.parametrize("kind", ["new", "caught up", "behind"])
def test_a_failed_round_is_tried_again_whether_or_not_there_are_new_records(kind: str) -> None:
    known = {
        "new": opened(),
        "caught up": opened(60.0, 100, 20, 20),
        "behind": behind(),
    }
    progress = running(known[kind])
    wait_s = progress.failed(NOW_S)
    assert due([progress], NOW_S, 4) == []
    assert due([progress], NOW_S + wait_s, 4) == [progress]


def test_enough_offsets_do_not_shorten_the_wait_after_a_failure() -> None:
    progress = running(live())
    progress.failed(NOW_S)
    progress.seen(10_000_000, NOW_S)
    assert not progress.is_due(NOW_S + 0.5)


def test_a_round_that_succeeds_ends_the_series_of_failures() -> None:
    progress = live()
    for _ in range(5):
        progress.failed(NOW_S)
    progress.succeeded(20, 0)
    assert progress.failed(NOW_S) == 1


# -- the places --------------------------------------------------------------------------------------------------------


def test_live_archives_come_by_the_share_of_their_time_that_is_over() -> None:
    topics = [live(40), live(9, 10), live(1000, 3600), live(31), live(600, 1000)]
    assert places_of(due(topics, NOW_S, 4), topics) == [1, 0, 4, 3]
    topics[4].freshness_s = 1300.0
    assert places_of(due(topics, NOW_S, 4), topics) == [1, 0, 3]


def test_rounds_that_run_take_places() -> None:
    topics = [running(live()), live(50), running(behind()), live(55), live(59)]
    assert places_of(due(topics, NOW_S, 4), topics) == [4, 3]
    assert places_of(due(topics, NOW_S, 3), topics) == [4]
    assert due(topics, NOW_S, 2) == due(topics, NOW_S, 1) == []


def test_archives_that_are_behind_do_not_take_the_last_place() -> None:
    topics = [behind() for _ in range(5)]
    assert len(due(topics, NOW_S, 4)) == 3
    assert len(due([*topics, running(live())], NOW_S, 4)) == 2
    assert due([*topics, *(running(live()) for _ in range(3))], NOW_S, 4) == []


def test_live_archives_come_before_those_that_are_behind_and_take_the_last_place() -> None:
    topics = [behind(), behind(), behind(), live(), live()]
    assert places_of(due(topics, NOW_S, 4), topics) == [3, 4, 0]
    topics += [live(), live()]
    assert places_of(due(topics, NOW_S, 4), topics) == [3, 4, 5, 6]


def test_a_single_place_is_for_those_behind_too() -> None:
    topics = [behind(), live()]
    assert places_of(due(topics, NOW_S, 1), topics) == [1]
    assert places_of(due(topics[:1], NOW_S, 1), topics) == [0]


def test_archives_that_are_behind_take_turns() -> None:
    topics = [behind(30), behind(10), behind(20), behind(40)]
    assert places_of(due(topics, NOW_S, 3), topics) == [1, 2]
    topics[1].began(50)
    topics[1].succeeded(200, 9000)
    assert places_of(due(topics, NOW_S, 3), topics) == [2, 0]


def failing(waited_s: float = 0.0, count: int = 1) -> TopicProgress:
    """An archive whose last rounds have failed, and which has waited for so long since it may be tried again."""
    progress = live(1e6)
    progress.failures, progress.not_before_s = count, NOW_S - waited_s
    return progress


def test_archives_that_are_failing_never_have_all_places() -> None:
    topics = [failing(), failing(), failing(), failing()]
    assert len(due(topics, NOW_S, 4)) == 3
    assert due([running(failing()), running(behind()), running(failing()), failing()], NOW_S, 4) == []
    # Others' rounds end soon: it need not wait until two places are free.
    topics = [running(live()), running(live()), running(live()), failing()]
    assert places_of(due(topics, NOW_S, 4), topics) == [3]


def test_a_single_place_is_for_those_that_are_failing_too() -> None:
    topics = [failing()]
    assert places_of(due(topics, NOW_S, 1), topics) == [0]


def test_an_archive_that_is_failing_comes_by_the_time_since_it_may_be_tried_again() -> None:
    topics = [failing(1), live(31), failing(50), opened()]
    assert places_of(due(topics, NOW_S, 4), topics) == [3, 2, 1, 0]
    assert places_of(due(topics, NOW_S, 3), topics) == [3, 2, 1]


def test_rounds_that_run_for_long_take_no_place_as_long_as_they_are_few() -> None:
    hanging = [running(live()) for _ in range(LONG_AT_ONCE + 4)]
    topics = [*hanging, live()]
    assert due(topics[-5:], NOW_S + LONG_S - 1, 4) == []
    assert due(topics[-5:], NOW_S + LONG_S, 4) == [topics[-1]]
    assert due(topics, NOW_S + LONG_S, 4) == []
    assert due(topics[1:], NOW_S + LONG_S, 4) == [topics[-1]]
    # Those of archives that end are among them.
    assert due(topics[-1:], NOW_S + LONG_S - 1, 4, hanging[:4]) == []
    assert due(topics[-1:], NOW_S + LONG_S, 4, hanging[:4]) == [topics[-1]]
    assert due(topics[-1:], NOW_S + LONG_S, 4, hanging) == []


# -- the locks ---------------------------------------------------------------------------------------------------------


def test_no_round_begins_without_the_archives_lock() -> None:
    for progress in (opened(), live(1e6), behind()):
        progress.lost()
        assert due([progress], NOW_S, 4) == []
        progress.is_opening = True
        assert due([progress], NOW_S, 4) == []
        progress.opened()
        assert due([progress], NOW_S, 4) == [progress]


def test_locks_are_taken_in_order_as_many_at_a_time_as_there_are_places() -> None:
    topics = [TopicProgress(60.0, 100) for _ in range(6)]
    topics[1].opened()
    topics[2].is_opening = True
    assert places_of(to_open(topics, NOW_S, 3), topics) == [0, 3]
    assert places_of(to_open(topics, NOW_S, 9), topics) == [0, 3, 4, 5]
    assert to_open(topics, NOW_S, 1) == to_open(topics, NOW_S, 0) == []


def test_a_lock_that_was_not_taken_is_tried_again_after_its_time() -> None:
    progress = TopicProgress(60.0, 100, is_opening=True)
    assert progress.failed(NOW_S, 15.0) == 15
    assert to_open([progress], NOW_S + 14.9, 4) == []
    assert to_open([progress], NOW_S + 15, 4) == [progress]


def test_a_lock_that_was_lost_is_taken_again() -> None:
    progress = running(live())
    progress.lost()
    wait_s = progress.failed(NOW_S)
    assert to_open([progress], NOW_S + wait_s - 0.1, 4) == []
    assert to_open([progress], NOW_S + wait_s, 4) == [progress]
    progress.opened()
    assert due([progress], NOW_S + wait_s, 4) == [progress]


PROGRESS = st.builds(
    TopicProgress,
    freshness_s=st.sampled_from([1.0, 10.0, 3600.0]),
    round_offsets=st.sampled_from([1, 100]),
    archived=st.sampled_from([-1, 0, 50]),
    ends=st.integers(0, 200),
    pending_s=st.none() | st.floats(NOW_S - 5000, NOW_S),
    is_behind=st.booleans(),
    is_open=st.sampled_from([True, True, False]),
    is_opening=st.booleans(),
    is_running=st.booleans(),
    began_s=st.sampled_from([float("-inf"), NOW_S - LONG_S, NOW_S - 100, NOW_S - 1]),
    failures=st.integers(0, 3),
    not_before_s=st.sampled_from([float("-inf"), NOW_S, NOW_S + 1]),
)


@given(st.lists(PROGRESS, max_size=12), st.integers(1, 6))
def test_chosen_are_due_within_the_places_and_leave_the_last_one_to_live_archives(
    topics: list[TopicProgress], places: int
) -> None:
    chosen = due(topics, NOW_S, places)
    assert len(set(map(id, chosen))) == len(chosen)
    assert all(each.is_due(NOW_S) for each in chosen)
    running_now = [each for each in topics if each.is_running and not each.is_long(NOW_S)]
    free = places - len(running_now)
    assert len(chosen) <= max(free, 0)
    if places > 1 and any(each.is_behind for each in chosen):
        assert len(chosen) < free
    failing = [each for each in chosen if each.failures and not each.is_behind]
    if places > 1 and failing:
        assert sum(each.is_late for each in (*running_now, *failing)) < places
    waiting = [each for each in topics if each.is_due(NOW_S) and not each.is_behind]
    sound = sum(not each.failures for each in waiting)
    assert min(sound, max(free, 0)) <= sum(not each.is_behind for each in chosen) <= min(len(waiting), max(free, 0))
    assert all(each.is_open for each in chosen)
    opening = to_open(topics, NOW_S, places)
    assert len(opening) <= max(places - sum(each.is_opening for each in topics), 0)
    assert not any(each.is_open or each.is_opening or each.not_before_s > NOW_S for each in opening)


# -- many rounds -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Simulated:
    """An archive whose rounds take some seconds; its log grows by some offsets each second."""

    progress: TopicProgress
    round_s: int
    growth: int
    ends_s: int = -1
    planned: int = 0
    starts: list[int] = field(default_factory=list)

    @classmethod
    def caught_up(cls, freshness_s: float, round_s: int) -> Simulated:
        return cls(opened(freshness_s, 1_000_000, 0), round_s, 1)

    @classmethod
    def far_behind(cls, round_s: int) -> Simulated:
        progress = opened(60.0, 10, 0, 1 << 40)
        progress.pending_s, progress.is_behind = 0.0, True
        return cls(progress, round_s, 10)

    @classmethod
    def started(cls, round_s: int) -> Simulated:
        """One that nothing is known of yet."""
        return cls(opened(60.0, 1_000_000), round_s, 1)

    def pass_to(self, second: int) -> None:
        """End a round whose time is over, and look at the log."""
        progress = self.progress
        if progress.is_running and second >= self.ends_s:
            progress.succeeded(self.planned, 1 if progress.is_behind else 0)
        progress.seen(progress.ends + self.growth, second)

    def begin(self, second: int) -> None:
        self.starts.append(second)
        self.ends_s = second + self.round_s
        progress = self.progress
        self.planned = progress.archived + progress.round_offsets if progress.is_behind else progress.ends
        progress.began(second)


def simulate(topics: Sequence[Simulated], places: int, seconds: int) -> None:
    """Begin and end rounds as a driver does that looks each second."""
    for second in range(seconds):
        for topic in topics:
            topic.pass_to(second)
        for progress in due([topic.progress for topic in topics], second, places):
            next(topic for topic in topics if topic.progress is progress).begin(second)
        assert sum(topic.progress.is_running for topic in topics) <= places


def longest_pause(topic: Simulated, seconds: int) -> int:
    """The longest time without a beginning of a round."""
    moments = [0, *topic.starts, seconds]
    return max(after - before for before, after in itertools.pairwise(moments))


LIVE = st.builds(Simulated.caught_up, st.sampled_from([1.0, 5.0, 10.0]), st.integers(1, 5))
BEHIND = st.builds(Simulated.far_behind, st.integers(1, 5))
SECONDS = 400


@given(st.lists(LIVE, min_size=1, max_size=7), st.integers(1, 4))
def test_no_live_archive_starves_however_long_the_rounds_of_others_take(topics: list[Simulated], places: int) -> None:
    simulate(topics, places, SECONDS)
    for topic in topics:
        # All seven may take five seconds each in one place, and one may have ten times as long as the others.
        assert longest_pause(topic, SECONDS) <= 360
        assert len(topic.starts) >= 2


@given(st.lists(BEHIND, min_size=1, max_size=7), st.lists(LIVE, max_size=2), st.integers(1, 4))
@example([Simulated.far_behind(3), Simulated.far_behind(3)], [], 2)
def test_no_archive_that_is_behind_starves_beside_others_that_are(
    late: list[Simulated], caught_up: list[Simulated], places: int
) -> None:
    """Live archives leave a place beside the last one: they may take all that there are."""
    topics = [*late, *caught_up[: max(places - 2, 0)]]
    simulate(topics, places, SECONDS)
    for topic in topics:
        assert longest_pause(topic, SECONDS) <= 100


def test_an_archive_whose_first_round_failed_does_not_starve_beside_live_ones_that_want_every_place() -> None:
    topics = [*(Simulated.caught_up(1.0, 3) for _ in range(2)), Simulated.started(3)]
    topics[-1].progress.failed(0)
    simulate(topics, 1, SECONDS)
    assert topics[-1].starts, "it was not tried again"


def test_archives_whose_rounds_hang_and_fail_stop_no_other() -> None:
    """As many as a name node has that keeps silent: a round of theirs ends after ten minutes."""
    hanging = [Simulated.started(600) for _ in range(8)]
    sound = [Simulated.started(2) for _ in range(4)]
    seconds = 6_000
    for second in range(seconds):
        for topic in hanging:
            if topic.progress.is_running and second >= topic.ends_s:
                topic.progress.failed(second)
            topic.progress.seen(second, second)
        for topic in sound:
            topic.pass_to(second)
        for progress in due([topic.progress for topic in (*hanging, *sound)], second, 4):
            next(topic for topic in (*hanging, *sound) if topic.progress is progress).begin(second)
        assert sum(topic.progress.is_running for topic in hanging) <= 4 + LONG_AT_ONCE
    # At first nobody knows of them that they hang: all places are theirs twice.
    assert [longest_pause(topic, seconds) for topic in sound] == [pytest.approx(2 * LONG_S, abs=30)] * 4
    for topic in sound:
        topic.starts = [each for each in topic.starts if each > 400]
        assert len(topic.starts) >= (seconds - 400) // 40
    assert all(len(topic.starts) >= 4 for topic in hanging)


def test_every_archive_of_a_run_begins_even_if_the_first_ones_want_every_place_again() -> None:
    """In four places, eighty rounds of three seconds take as long as the records of an archive may wait."""
    topics = [Simulated.started(3) for _ in range(200)]
    simulate(topics, 4, SECONDS)
    assert [place for place, topic in enumerate(topics) if not topic.starts] == []
