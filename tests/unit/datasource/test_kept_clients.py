from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.logtier.client.cluster import ClientConfig
from headwater.pipelines.datasource import kept_clients
from headwater.pipelines.datasource.kept_clients import close_kept_clients, kept_client


class Client:
    """In place of a ClusterClient: counts those that are open."""

    open = 0

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        Client.open += 1

    def close(self) -> None:
        Client.open -= 1


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept_clients, "ClusterClient", Client)
    monkeypatch.setattr(kept_clients, "_idle", {})
    Client.open = 0
    yield
    close_kept_clients()
    assert Client.open == 0


def config(number: int) -> ClientConfig:
    return ClientConfig((("broker", number),))


def test_the_next_task_gets_the_client_of_the_last_one() -> None:
    with kept_client(config(1)) as first:
        pass
    with kept_client(config(1)) as second:
        assert second is first
    with kept_client(config(2)) as other:
        assert other is not first


def test_two_readers_in_one_task_have_a_client_each() -> None:
    with kept_client(config(1)) as one, kept_client(config(1)) as two:
        assert one is not two
    assert Client.open == 1


def test_a_client_is_closed_after_an_error() -> None:
    with pytest.raises(KeyError), kept_client(config(1)):
        raise KeyError
    assert Client.open == 0


def test_a_task_that_reads_only_the_beginning_closes_its_client() -> None:
    def rows() -> Iterator[Any]:
        with kept_client(config(1)):
            yield 1
            yield 2

    reading = rows()
    assert next(reading) == 1
    reading.close()  # type: ignore[attr-defined]
    assert Client.open == 0


def test_no_more_are_kept_than_the_limit() -> None:
    for number in range(kept_clients.CLIENTS_MAX + 3):
        with kept_client(config(number)):
            pass
    assert Client.open == kept_clients.CLIENTS_MAX
