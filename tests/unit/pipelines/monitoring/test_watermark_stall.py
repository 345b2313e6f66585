"""Why a watermark stands still is said, with the input, the partition and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.pipelines.monitoring.progress import InputProgress, StageProgress
from headwater.pipelines.monitoring.watermark_stall import FUTURE_MS, StallWatch, WatchedInput

MINUTE = 60_000
T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
ORDERS = WatchedInput("orders", "at", 10 * MINUTE)
PAYMENTS = WatchedInput("payments", "paid_at", MINUTE)


def batch(*inputs: InputProgress, watermark: str = "2025-12-31T23:50:00.000Z", late: int = 0) -> StageProgress:
    rows = sum(each.rows for each in inputs)
    return StageProgress("s", 1, rows, 1.0, 100, watermark, late, inputs=inputs)


def brought(rows: int, latest_ms: int | None = None, **lag: int) -> InputProgress:
    return InputProgress(
        rows, lag={("t", int(name[1:])): offsets for name, offsets in lag.items()}, latest_event_ms=latest_ms
    )


def after(watch: StallWatch, *progress: StageProgress, minutes: int = 6, batches: int = 12) -> str:
    """What is said after so many batches in so many minutes, the last of them given over and over."""
    said = ""
    for number in range(batches):
        said = watch.observe(progress[min(number, len(progress) - 1)], T0 + number * minutes * MINUTE // (batches - 1))
    return said


def watch(*inputs: WatchedInput | None, **more: Any) -> StallWatch:
    return StallWatch(inputs, **more)


def test_an_idle_input_of_a_join_is_named_with_what_to_do() -> None:
    said = after(
        watch(ORDERS, PAYMENTS), batch(brought(5, T0), brought(1, T0)), batch(brought(5, T0 + 3_600_000), brought(0))
    )
    assert "stands at 2025-12-31T23:50:00.000Z for 6 min" in said
    assert "input payments is idle (its last event time is 2026-01-01T00:00:00Z" in said
    assert "multipleWatermarkPolicy" in said


def test_an_input_that_has_brought_nothing_at_all_is_the_one_that_is_behind() -> None:
    said = after(watch(ORDERS, PAYMENTS), batch(brought(5, T0), brought(0), watermark=""))
    assert "the watermark has not begun" in said
    assert "input payments is idle (it has brought none yet" in said


def test_an_input_whose_records_are_not_read_is_behind_in_the_partitions_named() -> None:
    said = after(watch(ORDERS, PAYMENTS), batch(brought(5, T0), brought(0, None, p1=1200, p0=3)))
    assert "input payments has records that are not read (1,200 records of t-1 are not read, 3 records of t-0" in said


def test_of_two_inputs_with_rows_the_one_with_older_event_times_is_behind() -> None:
    said = after(watch(ORDERS, PAYMENTS), batch(brought(5, T0 + 9 * 3_600_000), brought(5, T0, p3=7)))
    assert "the event times of input payments are behind: its latest paid_at is 2026-01-01T00:00:00Z" in said
    assert "7 records of t-3 are not read" in said


def test_a_row_of_the_future_is_the_reason_that_all_others_are_late() -> None:
    ahead = T0 + 3 * FUTURE_MS
    said = after(watch(ORDERS), batch(brought(5, ahead), late=4))
    assert "of them late and dropped" in said
    assert "has brought a at in the future, 2026-01-01T03:00:00Z" in said


def test_a_single_input_with_old_rows_only_is_told_with_what_is_not_read() -> None:
    said = after(watch(ORDERS), batch(brought(5, T0, p2=900)))
    assert "no row of input orders has a later at than 2026-01-01T00:00:00Z (900 records of t-2 are not read)" in said


def test_an_event_time_that_is_always_null_is_told() -> None:
    said = after(watch(ORDERS), batch(brought(5), watermark=""))
    assert "no row of input orders has a value in at, its event time" in said


def test_with_the_policy_max_the_input_that_is_ahead_is_looked_at() -> None:
    said = after(watch(ORDERS, PAYMENTS, policy="max"), batch(brought(5, T0), brought(0)))
    assert "no row of input orders has a later at" in said
    assert "multipleWatermarkPolicy=max" in said


@pytest.mark.parametrize(("minutes", "batches"), [(4, 30), (60, 9)])
def test_a_watermark_may_stand_for_some_minutes_or_some_batches(minutes: int, batches: int) -> None:
    assert after(watch(ORDERS), batch(brought(5, T0)), minutes=minutes, batches=batches) == ""


def test_a_watermark_that_moves_again_is_no_longer_told() -> None:
    one = watch(ORDERS)
    assert after(one, batch(brought(5, T0)))
    assert one.observe(batch(brought(5, T0), watermark="2026-01-01T00:00:00.000Z"), T0 + 7 * MINUTE) == ""


def test_partitions_whose_event_times_are_behind_are_named_after_a_closer_look() -> None:
    one = watch(ORDERS)
    assert after(one, batch(brought(5, T0 + 2 * FUTURE_MS), watermark="2026-01-01T01:50:00.000Z"))
    one.learn([{("t", 0): T0 + 2 * FUTURE_MS, ("t", 1): T0 + 2 * FUTURE_MS - 5_000, ("t", 3): T0}])
    said = one.explanation(T0 + 6 * FUTURE_MS)
    assert "(the last records of t-3 are of 2026-01-01T00:00:00Z, while t-0 has come to 2026-01-01T02:00:00Z)" in said


def test_what_was_learnt_is_forgotten_when_the_watermark_moves() -> None:
    one = watch(ORDERS)
    one.observe(batch(brought(5, T0)), T0)
    one.learn([{("t", 0): T0, ("t", 3): 0}])
    one.observe(batch(brought(5, T0), watermark="2026-01-01T00:00:00.000Z"), T0)
    moved = batch(brought(5, T0), watermark="2026-01-01T00:00:00.000Z")
    assert "t-3" not in after(one, moved, minutes=60, batches=20)


def test_without_rows_nothing_stands_still() -> None:
    assert after(watch(ORDERS), batch(brought(0))) == ""


def test_a_stage_without_a_watermark_is_not_watched() -> None:
    assert after(watch(None), batch(brought(5), watermark="")) == ""
