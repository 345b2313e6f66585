"""The administrator's view of transactions while coordinators and leaders move: asked again at the new one."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.client import cluster as cluster_module
from headwater.logtier.client import transactions as module
from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.client.messages import CLIENT_VERSIONS
from headwater.logtier.client.transactions import OpenTransaction, TransactionAdmin, TransactionDescription

NOT_LEADER, NOT_COORDINATOR, LOADING = 6, 16, 14
OPEN = OpenTransaction("flights", 0, 7, 1, 3, 40, 1_000)


class Moving:
    """Node 1 answers as scripted, or breaks its connection; afterwards node 2 is in charge."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = deque(answers)
        self.nodes: list[int] = []
        self.in_charge = deque([1])
        cluster: Any = ClusterClient(ClientConfig((("scripted", 1),)))
        cluster._metadata.brokers = {1: ("scripted", 1), 2: ("scripted", 2)}
        cluster.refresh_metadata = lambda topics: None
        cluster.connection = self._connection
        cluster.leader = lambda topic, partition: self._node()
        self.cluster = cluster
        monkeypatch.setattr(module, "find_coordinator", lambda cluster, kind, key: self._node())
        monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))

    def _node(self) -> int:
        return self.in_charge.popleft() if self.in_charge else 2

    def _connection(self, node: int) -> Any:
        self.nodes.append(node)
        return SimpleNamespace(version=newest, call=self._call)

    def _call(self, _request: Any) -> Any:
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


def newest(api_key: int) -> int:
    return CLIENT_VERSIONS[api_key][1]


def producers(code: int) -> Any:
    active = SimpleNamespace(
        producer_id=7, producer_epoch=1, coordinator_epoch=3, current_txn_start_offset=40, last_timestamp=1_000
    )
    part = SimpleNamespace(partition_index=0, error_code=code, active_producers=[] if code else [active])
    return SimpleNamespace(topics=[SimpleNamespace(name="flights", partitions=[part])])


def markers(code: int) -> Any:
    part = SimpleNamespace(error_code=code)
    return SimpleNamespace(markers=[SimpleNamespace(topics=[SimpleNamespace(partitions=[part])])])


@pytest.mark.parametrize("first", [[(NOT_COORDINATOR, None)], [(LOADING, None)], BrokerConnectionError("gone")])
def test_a_description_is_asked_for_at_the_new_coordinator(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    described = TransactionDescription("tx", -1, "Ongoing", 7, 1, 60_000, 5, (("flights", 0),))
    moving = Moving(monkeypatch, first, [(0, described)])
    found = TransactionAdmin(moving.cluster).describe("tx")
    assert found is not None
    assert (found.coordinator, found.state, moving.nodes) == (2, "Ongoing", [1, 2])


@pytest.mark.parametrize("first", [producers(NOT_LEADER), BrokerConnectionError("gone")])
def test_open_transactions_are_asked_for_at_the_new_leader(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(monkeypatch, first, producers(0))
    assert TransactionAdmin(moving.cluster).open_transactions([("flights", 0)]) == [OPEN]
    assert moving.nodes == [1, 2]


@pytest.mark.parametrize("first", [markers(NOT_LEADER), BrokerConnectionError("gone")])
def test_a_hanging_transaction_is_aborted_at_the_new_leader(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(monkeypatch, first, markers(0))
    TransactionAdmin(moving.cluster).abort(OPEN)
    assert moving.nodes == [1, 2]
