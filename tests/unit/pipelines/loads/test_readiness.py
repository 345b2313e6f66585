"""When an interval may be loaded: by records, and for idle partitions by the clock."""

from __future__ import annotations

from dataclasses import replace

from headwater.pipelines.loads.offsets.readiness import PartitionEnds, unready

QUIET = PartitionEnds("flights", 3, False, 7, 7)


def reasons(*looks: list[PartitionEnds]) -> list[str]:
    return [each.reason for each in unready(*looks)]


def test_a_record_of_the_time_is_enough() -> None:
    assert unready([replace(QUIET, has_passed=True)]) == []


def test_before_the_clock_has_passed_an_idle_partition_waits() -> None:
    assert reasons([QUIET]) == ["has no record that late"]


def test_an_idle_partition_passes_by_the_clock() -> None:
    assert unready([QUIET], [QUIET]) == []


def test_a_partition_that_is_written_to_is_not_idle() -> None:
    assert reasons([QUIET], [replace(QUIET, stable_end=8, end=8)]) == ["has new records, none that late"]


def test_a_record_that_comes_between_the_looks_passes() -> None:
    assert unready([QUIET], [replace(QUIET, has_passed=True, stable_end=8, end=8)]) == []


def test_an_open_transaction_may_hold_records_of_the_interval() -> None:
    looks = [replace(QUIET, end=9)]
    assert reasons(looks, looks) == ["has an open transaction at offset 7"]


def test_each_partition_is_named() -> None:
    first = [QUIET, replace(QUIET, partition=4, has_passed=True), replace(QUIET, topic="weather", partition=0)]
    assert [str(each) for each in unready(first)] == [
        "flights-3 has no record that late",
        "weather-0 has no record that late",
    ]
