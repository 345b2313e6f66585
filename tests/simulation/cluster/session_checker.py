"""No broker serves as what it was in a session that it knows to be over, or that ended while it was frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headwater.logtier.cluster.session_knowledge import PAUSES_PER_SESSION
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.network.server import ClientConnection
from headwater.logtier.replication.fetches import Fetches
from headwater.logtier.replication.replica_manager import ReplicaManager
from tests.simulation.history import InvariantError
from tests.simulation.node import SESSION_MS, SimulatedNode
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel

#: Pauses from this length on are noticed, also by a broker whose clock runs a hundredth too slowly.
PAUSE_S = SESSION_MS / 1000 / PAUSES_PER_SESSION * 1.02


class SessionChecker:
    """Observes the appends, reads and requests of all brokers.

    - A broker that knows that its session is over appends nothing, and answers no consumer.
    - One whose session ended while it was frozen begins no request and appends nothing before it knows; but if
      ZooKeeper cannot be reached, for a session time only. That holds for pauses that can end a session: an
      administrator may end one during a shorter pause, too, which no broker can know at once. And it holds for what
      leads: one that is not registered anew after the end of an earlier session, or stops, refuses what it is asked.

    Attributes:
        appended_without_store: Appends while the connection to ZooKeeper was lost: a run shows by it what it tried.
    """

    def __init__(self, loop: VirtualLoop, nodes: Mapping[int, SimulatedNode], zookeeper: ZooKeeperModel) -> None:
        self.appended_without_store = 0
        self._loop = loop
        self._nodes = nodes
        self._zookeeper = zookeeper
        #: Sessions that ended while their broker was frozen, and until when the broker may not serve within them.
        self._unnoticed: dict[int, tuple[int, float]] = {}
        self._violations: list[str] = []
        for node in nodes.values():
            node.on_thaw = self._thawing(node)
        loop.checks.append(self._after_step)

    def _thawing(self, node: SimulatedNode) -> Callable[[float], None]:
        def thawing(frozen_s: float) -> None:
            store = node.store
            if frozen_s < PAUSE_S:
                return
            if store is not None and store.session_id and store.session_id not in self._zookeeper.session_ids():
                self._unnoticed[node.node_id] = store.session_id, self._loop.time() + SESSION_MS / 1000 * 0.9

        return thawing

    def appended(self, broker_id: int) -> None:
        """A leader has appended."""
        store = self._nodes[broker_id].store
        if store is not None and store.state is SessionState.SUSPENDED:
            self.appended_without_store += 1
        self.answered(broker_id, "appended")
        self.began(broker_id, "appended")

    def answered(self, broker_id: int, what: str) -> None:
        """A broker has acted as leader."""
        node = self._nodes[broker_id]
        if node.serving is not None and node.store is not None and node.store.state is SessionState.LOST:
            self._violate(f"broker {broker_id} {what} although it knows that its session is over")

    def began(self, broker_id: int, what: str) -> None:
        """A broker has begun to process a request."""
        store = self._nodes[broker_id].store
        session_id, until_s = self._unnoticed.get(broker_id, (0, 0.0))
        if store is not None and store.session_id == session_id != 0 and self._loop.time() < until_s:
            self._violate(f"broker {broker_id} {what} in a session that ended while it was frozen")

    def _violate(self, what: str) -> None:
        self._violations.append(what)
        self._loop.is_touched = True

    def _after_step(self) -> None:
        if self._violations:
            raise InvariantError(self._violations[0])


@contextmanager
def observed_serving(checker: SessionChecker) -> Iterator[None]:
    """Let the checker see what brokers append and read, and which requests they begin."""
    append, fetch, dispatch = ReplicaManager.append, Fetches.fetch, Dispatcher._dispatch

    def observed_append(self: ReplicaManager, *arguments: Any, **options: Any) -> Any:
        info = append(self, *arguments, **options)
        checker.appended(self._broker_id)
        return info

    def observed_fetch(self: Fetches, *arguments: Any, **options: Any) -> Any:
        fetched = fetch(self, *arguments, **options)
        if (
            options.get("follower") is None
            and isinstance(fetched, list)
            and any(not each.error_code for each in fetched)
        ):
            checker.answered(self._throttles.leader._broker_id, "answered a consumer")
        return fetched

    def observed_dispatch(self: Dispatcher, frame: memoryview, connection: ClientConnection) -> Any:
        response = dispatch(self, frame, connection)
        if not self._services.replica_manager.partition_replication._is_fenced:
            checker.began(self._services.replica_manager._broker_id, "began a request")
        return response

    ReplicaManager.append = observed_append  # type: ignore[method-assign]
    Fetches.fetch = observed_fetch  # type: ignore[method-assign]
    Dispatcher._dispatch = observed_dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReplicaManager.append = append  # type: ignore[method-assign]
        Fetches.fetch = fetch  # type: ignore[method-assign]
        Dispatcher._dispatch = dispatch  # type: ignore[method-assign]
