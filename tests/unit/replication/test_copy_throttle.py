"""The rate of moves between log folders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.replication.copy_throttle import CopyThrottle

MIB = 1 << 20


@given(
    st.integers(1, 100 * MIB),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 64 * MIB)), min_size=1, max_size=200),
)
def test_no_more_is_copied_than_the_rate_allows(rate: int, asked: list[tuple[int, int]]) -> None:
    throttle = CopyThrottle()
    throttle.change_rate(rate, 0)
    now_ms = copied = 0
    for passed_ms, wanted in asked:
        now_ms += passed_ms
        allowed = throttle.allow(wanted, now_ms)
        assert 0 <= allowed <= wanted
        copied += allowed
        assert copied <= rate * now_ms / 1000 + 1


@given(st.integers(1, 100 * MIB), st.integers(1, 64 * MIB))
def test_whoever_waits_as_told_gets_all_of_it_at_the_rate(rate: int, size: int) -> None:
    size = min(size, 50 * rate)
    throttle = CopyThrottle()
    throttle.change_rate(rate, 0)
    now_ms = left = 0
    left = size
    while left:
        allowed = throttle.allow(left, now_ms)
        left -= allowed
        if left and not allowed:
            wait_ms = throttle.wait_ms(left, now_ms)
            assert wait_ms > 0
            now_ms += wait_ms
    assert now_ms <= size * 1000 / rate + 1_000


def test_a_rate_of_nothing_halts_and_no_rate_lets_everything_through() -> None:
    throttle = CopyThrottle()
    throttle.change_rate(0, 0)
    assert throttle.allow(1, 10_000) == 0
    assert throttle.wait_ms(1, 10_000) > 0
    throttle.change_rate(LONG_MAX, 10_000)
    assert throttle.allow(1 << 40, 10_000) == 1 << 40
    throttle.overdraw(1 << 50)
    throttle.change_rate(1_000, 20_000)
    assert throttle.allow(1_000, 21_000) == 1_000, "what was copied without a limit is not held against those after it"


def test_what_was_copied_without_being_allowed_is_waited_for() -> None:
    throttle = CopyThrottle()
    throttle.change_rate(1_000, 0)
    throttle.overdraw(5_000)
    assert throttle.allow(1_000, 5_000) == 0
    assert throttle.allow(1_000, 6_000) == 1_000
