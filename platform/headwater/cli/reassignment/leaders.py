"""Balances preferred leaders among the replicas of each partition: counts first, then bytes. Pure.

A change of the preferred leader copies nothing, so counts become as even as the assignment of replicas allows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from itertools import pairwise

from headwater.cli.reassignment.assignment import AssignmentDraft
from headwater.cli.reassignment.band import BalanceBand, Band
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["balance_leaders"]

_Sized = tuple[int, TopicPartition]


def balance_leaders(draft: AssignmentDraft, even_enough: BalanceBand) -> None:
    """Change preferred leaders. A broker that is away keeps its partitions, and receives none."""
    if draft.receivers:
        table = _LeaderTable(draft)
        while table.shorten_counts():
            pass
        band = even_enough.of_bytes(table.sizes.values())
        while table.shorten_bytes(band):
            pass


class _LeaderTable:
    """Preferred leaders by broker, and which partition could be led by which other broker.

    Invariant: `_edges[a, b]` are the partitions, ascending by size, whose preferred leader is `a` and which have a
    replica on `b`, both present.
    """

    def __init__(self, draft: AssignmentDraft) -> None:
        self._draft = draft
        self._brokers = list(draft.receivers)
        self.counts = dict.fromkeys(self._brokers, 0)
        self.sizes = dict.fromkeys(self._brokers, 0)
        self._edges: defaultdict[tuple[int, int], list[_Sized]] = defaultdict(list)
        for key, replicas in draft.replicas.items():
            if replicas and replicas[0] in self.counts:
                self.counts[replicas[0]] += 1
                self.sizes[replicas[0]] += draft.size(key)
                for other in self._followers(key):
                    self._edges[replicas[0], other].append((draft.size(key), key))
        for each in self._edges.values():
            each.sort()

    def _followers(self, key: TopicPartition) -> list[int]:
        return [each for each in self._draft.replicas[key][1:] if each in self.counts]

    def _transfer(self, sized: _Sized, source: int, target: int) -> None:
        size, key = sized
        for other in self._followers(key):
            edge = self._edges[source, other]
            del edge[bisect_left(edge, sized)]
        self._draft.lead(key, target)
        for other in self._followers(key):
            insort(self._edges[target, other], sized)
        for broker_id, step in ((source, -1), (target, 1)):
            self.counts[broker_id] += step
            self.sizes[broker_id] += step * size

    def shorten_counts(self) -> bool:
        """Take one leader from a broker with many to one with two fewer, over others if need be; False if none is."""
        for source in sorted(self._brokers, key=lambda each: (-self.counts[each], each)):
            way = self._way_to_fewer(source)
            if way:
                # From the end of the way, for a transfer changes which partitions its broker leads.
                for start, end in reversed(list(pairwise(way))):
                    self._transfer(self._edges[start, end][0], start, end)
                return True
        return False

    def _way_to_fewer(self, source: int) -> list[int]:
        """Return the shortest way along which one leader each can move, to the broker with the fewest; [] if none."""
        before = {source: source}
        queue = deque([source])
        while queue:
            here = queue.popleft()
            for other in self._brokers:
                if other not in before and self._edges[here, other]:
                    before[other] = here
                    queue.append(other)
        end = min(before, key=lambda each: (self.counts[each], each))
        if self.counts[source] - self.counts[end] < 2:
            return []
        way = [end]
        while way[-1] != source:
            way.append(before[way[-1]])
        return way[::-1]

    def shorten_bytes(self, band: Band) -> bool:
        """Make one exchange that lowers the bytes outside of the band and keeps counts as even; False if none does."""
        descending = sorted(self._brokers, key=lambda each: (-self.sizes[each], each))
        for source in descending:
            for target in reversed(descending):
                if self.sizes[target] >= self.sizes[source]:
                    break
                if self.sizes[source] <= band.high and self.sizes[target] >= band.low:
                    continue
                if self._exchange(source, target, band):
                    return True
        return False

    def _exchange(self, source: int, target: int, band: Band) -> bool:
        """Give one partition, for a smaller one in return unless the source leads one partition more."""
        more, fewer = self.sizes[source], self.sizes[target]
        best: tuple[int, int, _Sized, _Sized | None] | None = None
        given, returned = self._edges[source, target], self._edges[target, source]
        half = (more - fewer) // 2
        for sized in given:
            choices: list[_Sized | None] = []
            if self.counts[source] == self.counts[target] + 1:
                choices.append(None)
            # The two in return whose difference is next to half of the brokers' difference.
            at = bisect_left(returned, sized[0] - half, key=lambda each: each[0])
            choices += returned[max(at - 1, 0) : at + 1]
            for back in choices:
                moved = sized[0] - (back[0] if back else 0)
                if 0 < moved < more - fewer:
                    choice = (band.change(more, fewer, moved), abs(half - moved), sized, back)
                    best = min(best, choice, key=_order) if best else choice
        if best is None or best[0] >= 0:
            return False
        _, _, sized, back = best
        self._transfer(sized, source, target)
        if back is not None:
            self._transfer(back, target, source)
        return True


def _order(choice: tuple[int, int, _Sized, _Sized | None]) -> tuple[int, int, _Sized, tuple[_Sized, ...]]:
    change, miss, given, returned = choice
    return change, miss, given, () if returned is None else (returned,)
