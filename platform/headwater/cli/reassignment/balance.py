"""Plans a balance: racks first, then bytes, replica counts, log folders and leaders. Pure.

The plan is the end of a search whose every step lowers one imbalance and raises none of a higher rank:

1. racks: racks that a partition's replicas lack;
2. bytes of brokers outside of the band around the mean;
3. replica counts of brokers outside of the band;
4. bytes of the log folders of each broker outside of the band;
5. counts of preferred leaders, then their bytes.

So the search ends, and where it ended no step is left: a plan for the cluster that a plan has made is empty. No step
of rank 2 to 4 raises the difference between the brokers with the most and the fewest bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice
from typing import Final

from headwater.cli.reassignment.assignment import AssignmentDraft
from headwater.cli.reassignment.band import BalanceBand, Band
from headwater.cli.reassignment.leaders import balance_leaders
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["balance_plan"]

#: Replicas of one broker that are tried for one step of counts, the smallest first. Larger ones harm the bytes more,
#: and a search among 100,000 for one that fits takes longer than its evenness is worth.
COUNT_CANDIDATES_MAX: Final = 1_000


def balance_plan(snapshot: ClusterSnapshot, band: BalanceBand | None = None) -> ReassignmentPlan:
    """Return the plan; it is empty if nothing can be improved. Replicas of brokers that are away stay."""
    draft = AssignmentDraft(snapshot)
    if draft.receivers:
        _Search(draft, band or BalanceBand()).run()
    return draft.plan(elections=_elections(draft))


def _elections(draft: AssignmentDraft) -> tuple[TopicPartition, ...]:
    """Return the partitions that keep their assignment, and whose preferred leader is in sync and does not lead."""
    parts = draft.snapshot.partitions
    return tuple(
        key
        for key, replicas in draft.replicas.items()
        if tuple(replicas) == parts[key].replicas
        and replicas[0] != parts[key].leader
        and replicas[0] in parts[key].isr
        and replicas[0] in draft.snapshot.brokers
    )


class _Search:
    """The search, rank by rank from the start until no rank has a step."""

    def __init__(self, draft: AssignmentDraft, band: BalanceBand) -> None:
        self._draft = draft
        self._band = band
        brokers = draft.receivers
        # Brokers keep the sum of their bytes and replicas: the bands are constant.
        self._bytes = band.of_bytes(draft.sizes[each] for each in brokers)
        self._counts = band.of_counts(draft.counts[each] for each in brokers)
        #: Pairs without a step, with the versions of both brokers at that time.
        self._barren: dict[tuple[str, int, int], tuple[int, int]] = {}
        #: By pair, where the last search for a step of counts ended: replicas before it seldom fit later.
        self._passed: dict[tuple[int, int], tuple[int, TopicPartition]] = {}

    def run(self) -> None:
        while True:
            if self._spread_racks() or self._even_out("bytes") or self._even_out("counts"):
                continue
            if not self._even_out_dirs():
                break
        balance_leaders(self._draft, self._band)

    # -- racks -------------------------------------------------------------------------------------------------------

    def _spread_racks(self) -> bool:
        draft, has_moved = self._draft, False
        for key in draft.replicas:
            while draft.spread(key) < min(len(draft.replicas[key]), draft.rack_count):
                steps = [
                    (draft.sizes[target], draft.counts[target], target, -draft.sizes[source], source)
                    for source in draft.replicas[key]
                    for target in draft.receivers
                    if source in draft.snapshot.brokers
                    and draft.may_move(key, source, target)
                    and draft.spread_after(key, source, target) > draft.spread(key)
                ]
                if not steps:
                    break
                _, _, target, _, source = min(steps)
                draft.move(key, source, target)
                has_moved = True
        return has_moved

    # -- bytes and counts of brokers ---------------------------------------------------------------------------------

    def _even_out(self, rank: str) -> bool:
        """Make steps of a rank until there is none; return whether there was one."""
        has_moved = False
        while self._step(rank):
            has_moved = True
        if has_moved:
            return True
        # What is remembered may be out of date where other replicas of a partition moved.
        self._barren.clear()
        self._passed.clear()
        return self._step(rank)

    def _step(self, rank: str) -> bool:
        draft = self._draft
        loads = draft.sizes if rank == "bytes" else draft.counts
        ascending = sorted(draft.receivers, key=lambda each: (loads[each], each))
        for source in reversed(ascending):
            for target in ascending:
                if target == source or loads[target] >= loads[source]:
                    break
                versions = (draft.versions[source], draft.versions[target])
                if self._barren.get((rank, source, target)) == versions:
                    continue
                search = self._step_of_bytes if rank == "bytes" else self._step_of_counts
                key = search(source, target)
                if key is not None:
                    draft.move(key, source, target)
                    return True
                self._barren[rank, source, target] = versions
        return False

    def _step_of_bytes(self, source: int, target: int) -> TopicPartition | None:
        """Return the replica that brings both brokers closest to the mean, if it lowers the excess."""
        draft, band = self._draft, self._bytes
        high, low = draft.sizes[source], draft.sizes[target]
        if high <= band.high and low >= band.low:
            return None
        for size, key in _by_fit(draft.sorted_of[source], high, low, band):
            if band.change(high, low, size) < 0 and draft.may_move(key, source, target):
                return key
        return None

    def _step_of_counts(self, source: int, target: int) -> TopicPartition | None:
        """Return the smallest replica that lowers the excess of counts, and harms no bytes."""
        draft = self._draft
        if self._counts.change(draft.counts[source], draft.counts[target], 1) >= 0:
            return None
        high, low = draft.sizes[source], draft.sizes[target]
        present = [draft.sizes[each] for each in draft.receivers]
        most, least = max(present), min(present)
        ascending = draft.sorted_of[source]
        start = bisect_left(ascending, self._passed[source, target]) if (source, target) in self._passed else 0
        tried = 0
        for sized in islice(ascending, start, None):
            size, key = self._passed[source, target] = sized
            if target in draft.replicas[key]:
                continue
            tried += 1
            if tried > COUNT_CANDIDATES_MAX:
                break
            is_harmless = low + size <= most and high - size >= least and self._bytes.change(high, low, size) <= 0
            if is_harmless and draft.may_move(key, source, target):
                return key
        return None

    # -- log folders -------------------------------------------------------------------------------------------------

    def _even_out_dirs(self) -> bool:
        has_moved = False
        for broker_id in self._draft.receivers:
            sizes = self._draft.dir_sizes[broker_id]
            if len(sizes) > 1:
                of_dir: dict[str, list[tuple[int, TopicPartition]]] = {path: [] for path in sizes}
                for each in self._draft.sorted_of[broker_id]:
                    path = self._draft.dir_of.get((each[1], broker_id))
                    if path is not None:
                        of_dir[path].append(each)
                band = self._band.of_bytes(sizes.values())
                while self._step_of_dirs(broker_id, of_dir, band):
                    has_moved = True
        return has_moved

    def _step_of_dirs(self, broker_id: int, of_dir: dict[str, list[tuple[int, TopicPartition]]], band: Band) -> bool:
        draft = self._draft
        sizes = draft.dir_sizes[broker_id]
        ascending = sorted(sizes, key=lambda path: (sizes[path], path))
        for source in reversed(ascending):
            for target in ascending:
                high, low = sizes[source], sizes[target]
                if low >= high:
                    break
                for size, key in _by_fit(of_dir[source], high, low, band):
                    if band.change(high, low, size) < 0 and draft.dir_room[broker_id][target] >= size:
                        draft.move_dir(key, broker_id, target)
                        del of_dir[source][bisect_left(of_dir[source], (size, key))]
                        insort(of_dir[target], (size, key))
                        return True
        return False


def _by_fit(
    ascending: list[tuple[int, TopicPartition]], high: int, low: int, band: Band
) -> Iterable[tuple[int, TopicPartition]]:
    """Yield (size, partition) in the order of a step's preference: of few replicas, and of no more bytes than needed.

    First come those that bring neither value past the mean, large ones first; then larger ones, small ones first. An
    empty replica changes nothing, and one as large as the difference would swap both values.
    """
    wanted = min(high - band.mean, band.mean - low)
    if wanted <= 0:
        wanted = max(high - band.high, band.low - low)
    first = _position(ascending, 1)
    middle = min(max(_position(ascending, wanted + 1), first), len(ascending))
    last = max(_position(ascending, high - low), middle)
    yield from reversed(ascending[first:middle])
    yield from ascending[middle:last]


def _position(ascending: list[tuple[int, TopicPartition]], size: int) -> int:
    """Return the number of replicas smaller than a size."""
    return bisect_left(ascending, size, key=lambda each: each[0])
