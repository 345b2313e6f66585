"""Which records of a watched topic become events, and what the event says."""

from __future__ import annotations

from headwater_hints import hint


class Message:
    """A record, as librdkafka gives it."""

    def __init__(self, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._headers = headers

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers

    def topic(self) -> str:
        return "done"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 47

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_357_020_000_000

    def value(self) -> bytes:
        raise AssertionError("an event says nothing of a record's value")


def test_an_event_names_the_record() -> None:
    event = {"topic": "done", "partition": 3, "offset": 47, "timestamp_ms": 1_357_020_000_000}
    assert hint(Message()) == event
    assert hint(Message([("batch", b"1")]), header="batch") == event


def test_a_record_without_the_header_is_none() -> None:
    assert hint(Message([("other", b"")]), header="batch") is None
    assert hint(Message(), header="batch") is None
