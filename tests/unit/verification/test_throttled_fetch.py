"""A broker whose quota is used up answers a fetch of the verification without partitions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headwater.logtier.client.errors import BrokerConnectionError, RequestTimeoutError
from headwater.logtier.client.fetch_codec import CompletedFetch
from headwater.verification import replica_source
from headwater.verification.replica_source import answer_of


class Connection:
    """Answers what a test says, one answer a request."""

    address = "localhost:9092"

    def __init__(self, *answers: list[CompletedFetch]) -> None:
        self.answers = list(answers)
        self.sent: list[object] = []
        self.is_closed = False

    def send(self, request: object) -> None:
        self.sent.append(request)

    def receive(self) -> Any:
        class Response:
            value = self.answers.pop(0)

        return Response

    def close(self) -> None:
        self.is_closed = True


def fetched(topic: str) -> CompletedFetch:
    return CompletedFetch(topic, 3, 0, 9, 9, 0, memoryview(b""))


def test_the_same_request_is_sent_again_until_the_quota_lets_it_through() -> None:
    connection, request = Connection([], [], [fetched("flights")]), object()
    assert answer_of(cast("Any", connection), cast("Any", request), "flights", 3) == fetched("flights")
    assert connection.sent == [request, request]


def test_a_quota_that_lets_nothing_through_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_source, "THROTTLED_S", 0.0)
    connection = Connection([])
    with pytest.raises(RequestTimeoutError, match="its quota holds up"):
        answer_of(cast("Any", connection), cast("Any", object()), "flights", 3)
    assert connection.is_closed


def test_an_answer_with_another_partition_is_a_broken_broker() -> None:
    connection = Connection([fetched("others")])
    with pytest.raises(BrokerConnectionError, match="without flights-3"):
        answer_of(cast("Any", connection), cast("Any", object()), "flights", 3)
    assert connection.is_closed
