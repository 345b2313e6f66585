"""Whoever waits as long as it is told stays within its quota, and is never told to wait below it."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.quota.rate import WindowedRate
from headwater.logtier.quota.token_bucket import TokenBucket

WINDOWS = 11
WINDOW_MS = 1000
STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 20_000)), min_size=1, max_size=60)


@given(STEPS, st.integers(100, 10_000))
def test_a_client_that_waits_as_told_is_let_go_and_keeps_its_rate(steps: list[tuple[int, int]], limit: int) -> None:
    rate = WindowedRate(WINDOWS, WINDOW_MS)
    now_ms = 5_000
    for pause_ms, size in steps:
        now_ms += pause_ms
        rate.record(size, now_ms)
        while wait_ms := rate.wait_ms(limit, now_ms):
            assert rate.rate(now_ms) > limit
            # A burst of many windows' worth is forgotten when its windows are over.
            now_ms += min(wait_ms, WINDOWS * WINDOW_MS)
        assert rate.rate(now_ms) <= limit * 1.01


@given(STEPS)
def test_the_rate_is_that_of_a_look_at_every_value(steps: list[tuple[int, int]]) -> None:
    rate = WindowedRate(WINDOWS, WINDOW_MS)
    samples: list[list[int]] = []
    now_ms = 5_000
    for pause_ms, size in steps:
        now_ms += pause_ms
        rate.record(size, now_ms)
        if not samples or now_ms - samples[-1][0] >= WINDOW_MS:
            samples.append([now_ms, 0])
        samples[-1][1] += size
        kept = [each for each in samples if now_ms - each[0] < WINDOWS * WINDOW_MS]
        elapsed_ms = now_ms - kept[0][0]
        span_ms = elapsed_ms + max(WINDOWS - 1 - elapsed_ms // WINDOW_MS, 0) * WINDOW_MS
        assert abs(rate.rate(now_ms) - sum(total for _, total in kept) / (span_ms / 1000)) < 1e-6


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 50)), min_size=1, max_size=60), st.integers(1, 20))
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(steps: list[tuple[int, int]], limit: int) -> None:
    bucket = TokenBucket(limit, burst_s=11, now_ms=0)
    now_ms = 0
    taken = 0
    for pause_ms, tokens in steps:
        now_ms += pause_ms
        wait_ms = bucket.wait_ms(now_ms)
        now_ms += wait_ms
        assert bucket.wait_ms(now_ms) <= 1
        bucket.take(tokens, now_ms)
        taken += tokens
        assert taken <= limit * (11 + now_ms / 1000) + tokens + 1
