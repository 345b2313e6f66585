"""What an archive's group has passed trails the table by the grace, and is not forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.trailing_offsets import COMMITTED_AGAIN_S, TrailingOffsets

GRACE_S = 600.0


def test_nothing_is_due_before_a_version_is_as_old_as_the_grace() -> None:
    trailing = TrailingOffsets(GRACE_S)
    trailing.committed({0: 5}, 0.0)
    assert trailing.due(GRACE_S - 1) is None
    assert trailing.due(GRACE_S) == {0: 5}


def test_what_was_committed_is_due_again_before_the_brokers_forget_it() -> None:
    trailing = TrailingOffsets(GRACE_S)
    trailing.committed({0: 5}, 0.0)
    assert trailing.due(GRACE_S) == {0: 5}
    trailing.acknowledged(GRACE_S)
    assert trailing.due(GRACE_S + 1) is None
    assert trailing.due(GRACE_S + COMMITTED_AGAIN_S) == {0: 5}


def test_what_could_not_be_committed_is_due_at_once() -> None:
    trailing = TrailingOffsets(GRACE_S)
    trailing.committed({0: 5}, 0.0)
    assert trailing.due(GRACE_S) == trailing.due(GRACE_S + 1) == {0: 5}


@given(st.lists(st.floats(0.1, 400), min_size=1, max_size=80))
def test_the_group_never_passes_what_the_table_had_a_grace_ago_and_comes_close(pauses: list[float]) -> None:
    trailing = TrailingOffsets(GRACE_S)
    versions: list[tuple[float, int]] = []
    now_s = passed = 0.0
    for number, pause_s in enumerate(pauses):
        now_s += pause_s
        versions.append((now_s, number + 1))
        trailing.committed({0: number + 1}, now_s)
        ends = trailing.due(now_s)
        old = max((end for at_s, end in versions if at_s <= now_s - GRACE_S), default=0)
        if ends is not None:
            passed = ends[0]
            trailing.acknowledged(now_s)
        assert passed <= old
        nearly_old = max((end for at_s, end in versions if at_s <= now_s - 1.05 * GRACE_S), default=0)
        assert passed >= nearly_old, "versions in quick succession count as one, within a small part of the grace"
    last = trailing.due(now_s + 2 * GRACE_S)
    assert last is None or last == {0: len(pauses)}
    assert (passed if last is None else last[0]) == len(pauses)


def test_where_a_table_begins_is_due_at_once_and_what_another_had_is_not_due_any_more() -> None:
    trailing = TrailingOffsets(GRACE_S)
    trailing.committed({0: 5}, 0.0)
    trailing.begin({0: 2})
    assert trailing.due(0.0) == trailing.due(2 * GRACE_S) == {0: 2}
    trailing.forget()
    assert trailing.due(2 * GRACE_S + COMMITTED_AGAIN_S) is None
