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

from headwater.pipelines.datasource.filters import Narrowing
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


def test_only_a_lower_bound_of_the_timestamp_says_where_to_begin() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 0, 1500, UTC)
    column = ("timestamp",)
    for one in (GreaterThan(column, moment), GreaterThanOrEqual(column, moment), EqualTo(column, moment)):
        assert Narrowing.of([one]).timestamp_low_ms == 1_767_225_600_001
    assert Narrowing.of([LessThan(column, moment)]).timestamp_low_ms is None


def test_columns_that_must_not_be_null_are_known_and_others_are_passed_over() -> None:
    filters = [IsNotNull(("headers",)), IsNotNull(("Key",)), IsNotNull(OFFSET), Not(IsNotNull(("value",)))]
    assert Narrowing.of(filters).present == {"headers", "key"}
    assert Narrowing.of([IsNotNull(("value", "field"))]).present == frozenset()
