from __future__ import annotations

import pytest

from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.progress_marks import (
    LastPublish,
    PublishState,
    Unfinished,
    batch_of,
    state_of,
    unfinished,
)
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import Batch, Fence


def test_a_publish_begins_continues_and_is_finished() -> None:
    assert state_of(None, "a", None).state is PublishState.BEGIN
    half = state_of(batch_of("a", 0, 3, 90, "d1"), "a", None)
    assert (half.state, half.done, half.parts, half.rows) == (PublishState.CONTINUE, 1, 3, 90)
    assert half.division == "d1", "which rows each transaction has is compared when it continues"
    assert state_of(batch_of("a", 2, 3, 90), "a", None).state is PublishState.FINISHED
    assert state_of(batch_of("a", 0, 1, 0), "a", "own").state is PublishState.FINISHED


def test_the_fence_survives_its_encoding() -> None:
    batch = batch_of("a", 1, 3, 90)
    assert Fence.decode(Fence(batch).encode()).batch == batch


def test_an_id_of_another_publish_is_refused() -> None:
    with pytest.raises(PublishRefused, match="'own' is that of another publish"):
        state_of(batch_of("a", 0, 1, 9), "b", "own")


@pytest.mark.parametrize("offsets", [(), ({},), ({"parts": "many", "rows": 1},), (5,), ({"parts": 1, "rows": 1}, 2)])
def test_a_fence_of_something_else_is_refused(offsets: tuple[object, ...]) -> None:
    with pytest.raises(PublishRefused, match="cannot be read"):
        state_of(Batch("a", 0, offsets), "a", None)


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"[]", b'{"version":2}', b'{"version":1}', b'{"version":1,"name":1}']
)
def test_a_mark_that_is_not_understood_is_none(value: bytes | None) -> None:
    assert LastPublish.decode(value) is None


OWN = "headwater.publish.own"


def mark(part: int, parts: int, transactional_id: str = "headwater.publish.other") -> LastPublish:
    return LastPublish("a", transactional_id, part, parts)


@pytest.mark.parametrize(
    ("committed", "undecided", "expected"),
    [
        (None, None, None),
        (mark(0, 3), None, Unfinished(mark(0, 3), 1, is_open=False)),
        (mark(2, 3), None, None),
        (mark(0, 1), None, None),
        (mark(0, 3, OWN), None, None),
        # The same contents under another id begin at the first transaction: its name says nothing.
        (LastPublish("own", "headwater.publish.id.x", 0, 3), None,
         Unfinished(LastPublish("own", "headwater.publish.id.x", 0, 3), 1, is_open=False)),
        # A live publish is found while its first transaction is open, and while a later one is.
        (None, mark(0, 3), Unfinished(mark(0, 3), 0, is_open=True)),
        (mark(0, 3), mark(1, 3), Unfinished(mark(1, 3), 1, is_open=True)),
        (mark(0, 1, "headwater.publish.done"), mark(2, 3), Unfinished(mark(2, 3), 2, is_open=True)),
        (None, mark(0, 1), None),
        (mark(1, 3), mark(0, 1, "headwater.publish.third"), Unfinished(mark(1, 3), 2, is_open=False)),
        (None, mark(0, 3, OWN), None),
    ],
)  # fmt: skip
def test_an_unfinished_publish_is_one_of_several_transactions_under_another_id(
    committed: LastPublish | None, undecided: LastPublish | None, expected: Unfinished | None
) -> None:
    assert unfinished(committed, undecided, OWN) == expected
