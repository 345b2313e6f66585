from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headwater.pipelines.datasource.filters import Narrowing, is_exact
from headwater.pipelines.datasource.offsets import OffsetRange

TOPIC, PARTITION, OFFSET = ("topic",), ("partition",), ("Offset",)


@pytest.mark.parametrize(
    ("one", "admitted"),
    [
        (EqualTo(PARTITION, 2), {2}),
        (EqualNullSafe(PARTITION, 2), {2}),
        (In(PARTITION, (0, 3, None)), {0, 3}),
        (LessThan(PARTITION, 2), {0, 1}),
        (LessThanOrEqual(PARTITION, 2), {0, 1, 2}),
        (GreaterThan(PARTITION, 2), {3}),
        (GreaterThanOrEqual(PARTITION, 2), {2, 3}),
        (Not(EqualTo(PARTITION, 2)), {0, 1, 3}),
        (Not(In(PARTITION, (0, 1))), {2, 3}),
        (Not(LessThan(PARTITION, 2)), {0, 1, 2, 3}),
        (IsNotNull(PARTITION), {0, 1, 2, 3}),
        (EqualTo(("value", "partition"), 2), {0, 1, 2, 3}),
    ],
)
def test_a_filter_on_the_partition_leaves_those_it_can_hold_for(one: Filter, admitted: set[int]) -> None:
    narrowing = Narrowing.of([one])
    assert {partition for partition in range(4) if narrowing.admits("t", partition)} == admitted


@pytest.mark.parametrize(
    ("one", "admitted"),
    [
        (EqualTo(TOPIC, "orders"), {"orders"}),
        (In(TOPIC, ("orders", "other")), {"orders"}),
        (Not(EqualTo(TOPIC, "orders")), {"flights", "flights_late"}),
        (Not(In(TOPIC, ("orders", "flights"))), {"flights_late"}),
        (StringStartsWith(TOPIC, "flights"), {"flights", "flights_late"}),
        (StringEndsWith(TOPIC, "s"), {"orders", "flights"}),
        (StringContains(TOPIC, "s_l"), {"flights_late"}),
        (Not(StringContains(TOPIC, "s_l")), {"orders", "flights", "flights_late"}),
    ],
)
def test_a_filter_on_the_topic_leaves_those_it_can_hold_for(one: Filter, admitted: set[str]) -> None:
    narrowing = Narrowing.of([one])
    assert {topic for topic in ("orders", "flights", "flights_late") if narrowing.admits(topic, 0)} == admitted


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThan(OFFSET, 10), LessThan(OFFSET, 20)], (11, 20)),
        ([GreaterThanOrEqual(OFFSET, 10), LessThanOrEqual(OFFSET, 20)], (10, 21)),
        ([EqualTo(OFFSET, 7)], (7, 8)),
        ([In(OFFSET, (90, 5))], (5, 91)),
        ([EqualTo(OFFSET, 7), EqualTo(OFFSET, 9)], None),
        ([GreaterThan(OFFSET, 200)], None),
        ([Not(EqualTo(OFFSET, 7))], (0, 100)),
    ],
)
def test_filters_on_the_offset_cut_the_range(filters: list[Filter], bounds: tuple[int, int] | None) -> None:
    part = Narrowing.of(filters).narrow(OffsetRange("t", 0, 0, 100))
    assert ((part.start, part.end) if part.size else None) == bounds


def test_bounds_of_the_timestamp_are_whole_milliseconds_as_records_have_them() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 0, 1500, UTC)
    whole_ms = 1_767_225_600_001
    column = ("timestamp",)

    def bounds(*filters: Filter) -> tuple[int | None, int | None]:
        narrowing = Narrowing.of(filters)
        return narrowing.timestamp_low_ms, narrowing.timestamp_high_ms

    assert bounds(GreaterThan(column, moment)) == bounds(GreaterThanOrEqual(column, moment)) == (whole_ms, None)
    assert bounds(LessThan(column, moment)) == bounds(LessThanOrEqual(column, moment)) == (None, whole_ms)
    assert bounds(EqualTo(column, moment)) == (whole_ms, whole_ms)
    at_ms = moment.replace(microsecond=1000)
    assert bounds(LessThan(column, at_ms)) == (None, whole_ms - 1)
    assert bounds(LessThanOrEqual(column, at_ms), LessThan(column, moment)) == (None, whole_ms)
    later = moment.replace(year=2027)
    assert bounds(In(column, (later, moment, None))) == (whole_ms, 1_798_761_600_001)
    before_epoch = datetime(1960, 1, 1, tzinfo=UTC)
    assert bounds(GreaterThan(column, before_epoch)) == (None, None)
    assert bounds(LessThan(column, before_epoch)) == (None, -315_619_200_001)
    assert bounds(LessThan(column, moment.replace(tzinfo=None)), Not(LessThan(column, moment))) == (None, None)


@pytest.mark.parametrize(
    ("one", "exact"),
    [
        (EqualTo(PARTITION, 2), True),
        (In(PARTITION, (1, None)), True),
        (Not(In(PARTITION, (1, 2))), True),
        (Not(In(PARTITION, (1, None))), False),
        (Not(LessThan(PARTITION, 2)), False),
        (EqualNullSafe(PARTITION, None), False),
        (GreaterThan(OFFSET, 2), True),
        (EqualTo(OFFSET, 2), True),
        (In(OFFSET, (1, 3)), False),
        (Not(EqualTo(OFFSET, 2)), False),
        (IsNotNull(OFFSET), True),
        (IsNotNull(("key",)), False),
        (EqualTo(TOPIC, "flights"), False),
        (LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)), False),
        (EqualTo(("value", "offset"), 2), False),
    ],
)
def test_spark_evaluates_what_narrowing_does_not_decide(one: Filter, exact: bool) -> None:
    assert is_exact(one) is exact


def test_columns_that_must_not_be_null_are_known_and_others_are_passed_over() -> None:
    filters = [IsNotNull(("headers",)), IsNotNull(("Key",)), IsNotNull(OFFSET), Not(IsNotNull(("value",)))]
    assert Narrowing.of(filters).present == {"headers", "key"}
    assert Narrowing.of([IsNotNull(("value", "field"))]).present == frozenset()
