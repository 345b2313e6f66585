"""Dead letters: which are meant, what is written back, what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.dead_letters.records import DeadLetter, DeadLetterFilter, Replayed, written_back

SAID = (
    ("trace", b"a"),
    ("trace", b"b"),
    ("headwater.error", b"the value is not JSON"),
    ("headwater.pipeline", b"shop"),
    ("headwater.stage", b"clean"),
    ("headwater.topic", b"orders"),
    ("headwater.partition", b"2"),
    ("headwater.offset", b"17"),
)


def letter(headers: tuple[tuple[str, bytes | None], ...] = SAID, **more: object) -> DeadLetter:
    values = {
        "topic": "orders.dead_letters",
        "partition": 0,
        "offset": 5,
        "timestamp_ms": 1000,
        "key": b"k",
        "value": b"\xff",
    }
    return DeadLetter(**values | more, headers=headers)  # type: ignore[arg-type]


def test_a_letter_goes_back_as_it_came_with_one_round_more() -> None:
    found = written_back(letter(), None, 3)
    assert found is not None
    assert (found.topic, found.partition, found.key, found.value) == ("orders", 2, b"k", b"\xff")
    assert found.headers == (("trace", b"a"), ("trace", b"b"), ("headwater.replayed", b"1"))
    again = written_back(letter((*SAID, ("headwater.replayed", b"4"))), None, 3)
    assert again is not None
    assert again.headers[-1] == ("headwater.replayed", b"5")


@pytest.mark.parametrize(("to", "partitions", "partition"), [(None, 2, None), ("other", 8, None), ("orders", 8, 2)])
def test_only_its_own_topic_has_the_partition_that_it_came_from(
    to: str | None, partitions: int, partition: int | None
) -> None:
    found = written_back(letter(), to, partitions)
    assert found is not None
    assert found.partition == partition


def test_a_row_that_no_longer_knew_its_record_goes_only_where_it_is_told_to() -> None:
    row = letter(SAID[:5])
    assert written_back(row, None, None) is None
    found = written_back(row, "other", 1)
    assert found is not None
    assert (found.topic, found.partition) == ("other", None)


@pytest.mark.parametrize(
    ("chosen", "takes"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(since_ms=1000), True),
        (DeadLetterFilter(since_ms=1001), False),
        (DeadLetterFilter(errors=("nothing", "NOT json")), True),
        (DeadLetterFilter(errors=("nothing",)), False),
        (DeadLetterFilter(pipeline="shop", stage="clean"), True),
        (DeadLetterFilter(pipeline="shop", stage="sums"), False),
        (DeadLetterFilter(expectation="paid"), False),
    ],
)
def test_a_filter_takes_what_fits_all_of_it(chosen: DeadLetterFilter, takes: bool) -> None:
    assert chosen.takes(letter()) is takes


def test_a_letter_is_json_whatever_its_bytes_are() -> None:
    found = letter().as_dict()
    assert found["value"] == {"base64": "/w=="}
    assert found["key"] == "k"
    assert found["source"] == {"topic": "orders", "partition": 2, "offset": 17}
    assert found["headers"] == [{"name": "trace", "value": "a"}, {"name": "trace", "value": "b"}]


def test_headers_of_somebody_else_are_no_place() -> None:
    assert letter((("headwater.topic", b"t"), ("headwater.partition", b"x"), ("headwater.offset", b"1"))).source is None
    assert letter((("headwater.replayed", None),)).rounds == 0


@given(st.integers(0, 20), st.lists(st.integers(0, 60)), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5))))
def test_what_was_replayed_is_remembered_exactly(offset: int, single: list[int], gaps: list[tuple[int, int]]) -> None:
    done = Replayed(offset)
    wanted = {*range(offset), *single}
    for one in single:
        done.add(one)
    for first, length in gaps:
        done.add(first, first + length - 1)
        wanted |= set(range(first, first + length))
    again = Replayed.decode(done.offset, done.metadata())
    for found in (done, again):
        assert {n for n in range(100) if n in found} == wanted
        assert found.offset == next(n for n in range(200) if n not in wanted)


def test_letters_in_one_row_need_no_metadata() -> None:
    done = Replayed()
    for offset in range(10_000):
        done.add(offset)
    assert (done.offset, done.metadata()) == (10_000, "")
