"""Which machines may lose power: a schedule of faults that replication is made to survive."""

from __future__ import annotations

from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.metadata_checker import Replicated
from tests.simulation.history import History


class PowerLosses:
    """Counts the replicas of each partition that lost power since its ISR was full.

    Replication survives power losses of fewer replicas than `min.insync.replicas`: an acknowledged record is then on
    another one.
    """

    def __init__(self, checker: ClusterChecker, history: History, min_isr: int, *, beyond: bool) -> None:
        """`beyond`: whether machines lose power all the same; what was lost is relied on no more."""
        self._checker = checker
        self._history = history
        self._min_isr = min_isr
        self._beyond = beyond
        self._struck: dict[Replicated, set[int]] = {}
        checker.on_state = self._forgive

    def strike(self, broker_id: int) -> bool:
        """Note that a machine is about to lose power; return whether it may."""
        overdue = [
            replicated
            for replicated, state in self._checker.metadata.all()
            if broker_id in state.replicas
            and len(self._struck.get(replicated, set()) | {broker_id}) >= min(self._min_isr, len(state.replicas))
        ]
        if overdue and not self._beyond:
            return False
        for replicated, state in self._checker.metadata.all():
            if broker_id in state.replicas:
                self._struck.setdefault(replicated, set()).add(broker_id)
                if self._history.may_lose and replicated in overdue:
                    self._checker.lost.add(replicated)
        self._checker.lost_power(broker_id)
        if self._history.may_lose and overdue:
            self._history.lose()
            if any(each.topic_partition.topic in INTERNAL_TOPICS for each in overdue):
                self._history.lose_groups()
        return True

    def _forgive(self) -> None:
        """A full ISR has every committed record again, apart from members that are yet to be taken out of it."""
        for replicated, struck in list(self._struck.items()):
            state = self._checker.metadata.state(replicated)
            if state is None:
                del self._struck[replicated]
            elif len(state.isr) == len(state.replicas):
                struck.intersection_update(self._checker.lacking.get(replicated, set()))
