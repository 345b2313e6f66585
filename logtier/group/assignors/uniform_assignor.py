"""The `uniform` assignor: equal numbers of partitions for all members, with as few moves as possible."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from uuid import UUID

from headwater.logtier.group.assignors.assignor import Subscriber, ranked

#: Each move lowers the sum of squared loads, so levelling terminates; this limit only bounds a programming error.
_ROUNDS_MAX = 1000


class UniformAssignor:
    """Balanced and sticky.

    With equal subscriptions, the loads of two members differ by at most one partition, and a member loses a partition
    only if it has more than its share. With different subscriptions, no move of a single partition reduces the
    difference between two members.
    """

    name = "uniform"

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
    ) -> dict[str, dict[UUID, set[int]]]:
        """See Assignor."""
        plan = _Plan(members, partition_counts)
        plan.keep()
        if len({member.topic_ids for member in members.values()}) <= 1:
            plan.trim()
            plan.deal(_round_robin(plan.unassigned()))
        else:
            plan.deal(plan.by_fewest_subscribers())
            plan.level()
        return plan.result


class _Plan:
    """An assignment under construction.

    Invariants: a partition is in `result` of at most one member, its owner in `owners`; `loads` counts `result`.
    """

    def __init__(self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]) -> None:
        self.members = members
        self.ranked = ranked(members)
        self.result: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
        self.loads = dict.fromkeys(self.ranked, 0)
        self.subscribers: dict[UUID, list[str]] = {}
        for member_id in self.ranked:
            for topic_id in members[member_id].topic_ids:
                self.subscribers.setdefault(topic_id, []).append(member_id)
        self.counts = {topic_id: partition_counts[topic_id] for topic_id in sorted(self.subscribers)}
        self.owners: dict[UUID, list[str | None]] = {
            topic_id: [None] * count for topic_id, count in self.counts.items()
        }

    def keep(self) -> None:
        """Keep each member's present partitions of its subscribed topics."""
        for member_id in self.ranked:
            member = self.members[member_id]
            for topic_id in sorted(member.target):
                if topic_id in member.topic_ids:
                    owners = self.owners[topic_id]
                    for index in sorted(member.target[topic_id]):
                        if index < len(owners) and owners[index] is None:
                            self._give(member_id, topic_id, index)

    def trim(self) -> None:
        """Take partitions above their share from members; those with most partitions may keep one of the remainder."""
        if not self.ranked:
            return
        share, longer = divmod(sum(self.counts.values()), len(self.ranked))
        by_load = sorted(self.ranked, key=lambda member_id: -self.loads[member_id])
        for rank, member_id in enumerate(by_load):
            surplus = self.loads[member_id] - share - (rank < longer)
            for topic_id in sorted(self.result[member_id], reverse=True):
                for index in sorted(self.result[member_id][topic_id], reverse=True):
                    if surplus <= 0:
                        break
                    self._take(member_id, topic_id, index)
                    surplus -= 1

    def unassigned(self) -> dict[UUID, list[int]]:
        """Return unassigned partitions, by topic."""
        return {
            topic_id: [index for index, owner in enumerate(owners) if owner is None]
            for topic_id, owners in self.owners.items()
        }

    def by_fewest_subscribers(self) -> Iterator[tuple[UUID, int]]:
        """Return unassigned partitions, those of the topics with the fewest subscribers first."""
        unassigned = self.unassigned()
        for topic_id in sorted(unassigned, key=lambda each: (len(self.subscribers[each]), each)):
            for index in unassigned[topic_id]:
                yield topic_id, index

    def deal(self, partitions: Iterator[tuple[UUID, int]]) -> None:
        """Assign each partition to the subscriber with the lowest load."""
        ranks = {member_id: rank for rank, member_id in enumerate(self.ranked)}
        heaps: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        keys = {topic_id: tuple(subscribers) for topic_id, subscribers in self.subscribers.items()}
        for topic_id, index in partitions:
            heap = heaps.get(keys[topic_id])
            if heap is None:
                heap = [(self.loads[member_id], ranks[member_id]) for member_id in self.subscribers[topic_id]]
                heapify(heap)
                heaps[keys[topic_id]] = heap
            while True:
                load, rank = heappop(heap)
                member_id = self.ranked[rank]
                if load == self.loads[member_id]:
                    break
                heappush(heap, (self.loads[member_id], rank))  # the member has received a partition of another topic
            self._give(member_id, topic_id, index)
            heappush(heap, (self.loads[member_id], rank))

    def level(self) -> None:
        """Move partitions, topic by topic, from members with at least two more to those with the lowest load."""
        for _ in range(_ROUNDS_MAX):
            moved = False
            for topic_id in self.counts:
                moved |= self._level_topic(topic_id, self.subscribers[topic_id])
            if not moved:
                return

    def _level_topic(self, topic_id: UUID, subscribers: Sequence[str]) -> bool:
        moved = False
        while True:
            receiver = min(subscribers, key=self.loads.__getitem__)
            givers = [member_id for member_id in subscribers if topic_id in self.result[member_id]]
            giver = max(givers, key=self.loads.__getitem__, default=receiver)
            if self.loads[giver] - self.loads[receiver] < 2:
                return moved
            index = max(self.result[giver][topic_id])
            self._take(giver, topic_id, index)
            self._give(receiver, topic_id, index)
            moved = True

    def _give(self, member_id: str, topic_id: UUID, index: int) -> None:
        self.result[member_id].setdefault(topic_id, set()).add(index)
        self.owners[topic_id][index] = member_id
        self.loads[member_id] += 1

    def _take(self, member_id: str, topic_id: UUID, index: int) -> None:
        mine = self.result[member_id]
        mine[topic_id].remove(index)
        if not mine[topic_id]:
            del mine[topic_id]
        self.owners[topic_id][index] = None
        self.loads[member_id] -= 1


def _round_robin(unassigned: Mapping[UUID, Sequence[int]]) -> Iterator[tuple[UUID, int]]:
    """Yield one partition of each topic in turn, so that every member gets partitions of every topic."""
    topics = {topic_id: iter(indexes) for topic_id, indexes in unassigned.items() if indexes}
    while topics:
        for topic_id in list(topics):
            index = next(topics[topic_id], None)
            if index is None:
                del topics[topic_id]
            else:
                yield topic_id, index
