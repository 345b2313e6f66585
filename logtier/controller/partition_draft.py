"""The next state of one partition: who leaves and joins the ISR and the ELR, and who leads. Pure.

The rules are those of KIP-966 (eligible leader replicas). While the ISR is below the effective minimum, the replicas
that left it are eligible leaders: the high watermark stands still meanwhile, and so each of them has every committed
record.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage


class Candidates(Protocol):
    """What an election must know of brokers and of the log folders in which their replicas are."""

    def is_candidate(self, broker_id: int, directory: str, /) -> bool:
        """Whether the broker is alive, is not shutting down, and has the log folder online; empty: it is not known."""

    def has_room(self, broker_id: int, directory: str, /) -> bool:
        """Whether the broker can append: the log folder is not full."""


class PartitionDraft:
    """Collects changes of one partition; `result` gives them their epochs.

    Invariants: the ISR and the ELR are disjoint subsets of the replicas; a leader is a member of the ISR; the ELR is
    empty while the ISR has the effective minimum of members. All changes of a draft are one change of the partition:
    the partition epoch grows by one, and by one the leader epoch if there was an election.
    """

    def __init__(self, partition: PartitionImage, min_insync_replicas: int, candidates: Candidates) -> None:
        self._before = partition
        self._min_isr = min(min_insync_replicas, len(partition.replicas))
        self._candidates = candidates
        self._leader = partition.leader
        self._isr = partition.isr
        self._elr = partition.elr
        self._last_known_leader = partition.last_known_leader
        self._is_recovering = partition.is_recovering
        self._is_elected = False
        self._lost: set[int] = set()

    def lose(self, broker_id: int) -> None:
        """Take out a broker that died, shuts down, or lost the partition's log folder; another one is elected."""
        self._lost.add(broker_id)
        self._set_isr(_without(self._isr, broker_id))
        if self._leader == broker_id:
            self._leader = NO_BROKER
            self._last_known_leader = broker_id
            self._is_elected = True
            self.elect()

    def come_back(self, broker_id: int, *, is_clean: bool) -> None:
        """Note that a broker was away, however short the absence, and is back; `elect` may follow.

        Args:
            is_clean: Whether it stopped cleanly. If not, the end of its log may be gone: it leaves the ELR, too.
        """
        self.lose(broker_id)
        self._lost.discard(broker_id)
        if not is_clean:
            self._elr = _without(self._elr, broker_id)

    def elect(self, *, unclean: bool = False) -> None:
        """Elect a leader where there is none.

        The ISR comes first, then the ELR, then the last known leader; `unclean` allows any replica, which may lack
        committed records. Within each, a broker with room precedes the others, then the order of the assignment counts.
        """
        if self._leader != NO_BROKER:
            return
        if (leader := self._first_of(self._isr)) != NO_BROKER:
            self._lead(leader, self._isr)
        elif not self._isr and (leader := self._first_of(self._elr)) != NO_BROKER:
            self._lead(leader, (leader,))
        elif not self._isr and not self._elr and self._is_candidate(self._last_known_leader):
            self._lead_uncleanly(self._last_known_leader)
        elif unclean and (leader := self._first_of(self._before.replicas)) != NO_BROKER:
            self._lead_uncleanly(leader)

    def give_way(self) -> None:
        """Move the leadership from a leader that cannot append to a member of the ISR that can, if there is one."""
        with_room = [each for each in self._isr if each != self._leader and self._has_room(each)]
        if self._leader != NO_BROKER and (leader := self._first_of(with_room)) != NO_BROKER:
            self._lead(leader, self._isr)

    def prefer(self, preferred: int) -> None:
        """Give the leadership to a replica, if it is in the ISR and can append (KIP-460 for the first replica)."""
        is_able = self._is_candidate(preferred) and self._has_room(preferred)
        if preferred != self._leader and preferred in self._isr and is_able:
            self._lead(preferred, self._isr)

    def alter(self, isr: Sequence[int], *, is_recovering: bool) -> None:
        """Take over the ISR that the leader has decided (AlterPartition)."""
        self._set_isr(tuple(replica for replica in self._before.replicas if replica in isr))
        self._is_recovering = is_recovering

    def result(self) -> PartitionImage:
        """Return the new state; the state before if nothing has changed."""
        before = self._before
        leader_epoch = before.leader_epoch + 1 if self._is_elected else before.leader_epoch
        after = PartitionImage(
            self._leader,
            leader_epoch,
            before.partition_epoch,
            before.replicas,
            self._isr,
            self._elr,
            self._last_known_leader,
            self._is_recovering,
            before.directories,
        )
        return before if after == before else replace(after, partition_epoch=before.partition_epoch + 1)

    def _lead(self, leader: int, isr: tuple[int, ...]) -> None:
        self._leader = leader
        self._last_known_leader = NO_BROKER
        self._is_elected = True
        self._set_isr(isr)

    def _lead_uncleanly(self, leader: int) -> None:
        """Elect a replica that may lack committed records: they are lost, and the others are cut to its log.

        The leader recovers first, unless no other replica could tell the difference (KIP-704).
        """
        self._elr = ()
        self._isr = ()
        self._lead(leader, (leader,))
        self._is_recovering = len(self._before.replicas) > 1

    def _set_isr(self, isr: tuple[int, ...]) -> None:
        if len(isr) >= self._min_isr:
            self._elr = ()
        else:
            eligible = {*self._isr, *self._elr} - {*isr}
            self._elr = tuple(replica for replica in self._before.replicas if replica in eligible)
        self._isr = isr

    def _is_candidate(self, broker_id: int) -> bool:
        if broker_id == NO_BROKER or broker_id in self._lost:
            return False
        return self._candidates.is_candidate(broker_id, self._before.directory_of(broker_id))

    def _has_room(self, broker_id: int) -> bool:
        return self._candidates.has_room(broker_id, self._before.directory_of(broker_id))

    def _first_of(self, among: Sequence[int]) -> int:
        able = [each for each in self._before.replicas if each in among and self._is_candidate(each)]
        return next((each for each in able if self._has_room(each)), able[0] if able else NO_BROKER)


def _without(members: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != broker_id)
