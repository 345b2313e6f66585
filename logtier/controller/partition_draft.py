"""The next state of one partition: who leaves and joins the ISR and the ELR, and who leads. Pure.

The rules are those of KIP-966 (eligible leader replicas). While the ISR is below the effective minimum, the replicas
that left it are eligible leaders: the high watermark stands still meanwhile, and so each of them has every committed
record.

A reassignment of replicas (KIP-455) is completed by the first change that makes it possible, in that change.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage, Reassignment


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
    the partition epoch grows by one, and by one the leader epoch if there was an election or a replica left. A replica
    that is removed while it may be needed stays until the ISR has the effective minimum of members without it.
    """

    def __init__(self, partition: PartitionImage, min_insync_replicas: int, candidates: Candidates) -> None:
        self._before = partition
        self._min_insync_replicas = min_insync_replicas
        self._replicas = partition.replicas
        self._reassignment = partition.reassignment
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
        Of any replicas those that a reassignment adds come last: they may have next to nothing.
        """
        if self._leader != NO_BROKER:
            return
        if (leader := self._first_of(self._isr)) != NO_BROKER:
            self._lead(leader, self._isr)
        elif not self._isr and (leader := self._first_of(self._elr)) != NO_BROKER:
            self._lead(leader, (leader,))
        elif not self._isr and not self._elr and self._is_candidate(self._last_known_leader):
            self._lead_uncleanly(self._last_known_leader)
        elif unclean and (leader := self._first_of_any()) != NO_BROKER:
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
        self._set_isr(tuple(replica for replica in self._replicas if replica in isr))
        self._is_recovering = is_recovering

    def reassign(self, target: Sequence[int]) -> None:
        """Begin to move the partition to other replicas, the preferred leader first, or replace what is under way.

        Replicas that an earlier reassignment was to add go at once, unless they may be needed: then they are removed as
        those are that the partition had before.
        """
        former = self._replicas if self._reassignment is None else self._reassignment.former
        needed = {*former, *self._isr, *self._elr, self._leader, self._last_known_leader}
        removing = tuple(each for each in self._replicas if each in needed and each not in target)
        adding = tuple(each for each in target if each not in former)
        self._replicas = (*target, *removing)
        self._reassignment = Reassignment(adding, removing, former) if adding or removing else None
        self._set_isr(tuple(each for each in self._replicas if each in self._isr))

    def result(self) -> PartitionImage:
        """Return the new state; the state before if nothing has changed."""
        self._complete()
        before = self._before
        # A replica that left deletes its log. Assigned again, it must not join the ISR by a fetch from before that: the
        # leader refuses a fetch in an older epoch, and the broker knows the new one only with its removal.
        is_new_epoch = self._is_elected or not {*before.replicas}.issubset(self._replicas)
        after = PartitionImage(
            self._leader,
            before.leader_epoch + is_new_epoch,
            before.partition_epoch,
            self._replicas,
            self._isr,
            self._elr,
            self._last_known_leader,
            self._is_recovering,
            self._directories(),
            self._reassignment,
        )
        return before if after == before else replace(after, partition_epoch=before.partition_epoch + 1)

    def _complete(self) -> None:
        """End the reassignment if the added replicas are in sync, and nothing that may be needed goes.

        A leader that is removed hands over to a member of the ISR that stays, in the same change. Without a leader
        nothing is known of who has what: the replicas stay.
        """
        change = self._reassignment
        if change is None or self._leader == NO_BROKER:
            return
        isr = tuple(each for each in self._isr if each not in change.removing)
        target = change.target(self._replicas)
        if not {*change.adding}.issubset(isr):
            return
        is_one_needed = not {*self._isr, *self._elr}.isdisjoint(change.removing)
        if is_one_needed and len(isr) < min(self._min_insync_replicas, len(target)):
            return
        leader = self._leader
        if leader in change.removing and (leader := self._first_of(isr)) == NO_BROKER:
            return
        self._replicas = target
        self._reassignment = None
        if leader == self._leader:
            self._set_isr(isr)
        else:
            self._lead(leader, isr)

    def _directories(self) -> tuple[str, ...]:
        """The log folders of the replicas; those of added ones are not known yet."""
        before = self._before
        if not before.directories or self._replicas == before.replicas:
            return before.directories
        known = dict(zip(before.replicas, before.directories, strict=True))
        return tuple(known.get(each, "") for each in self._replicas)

    @property
    def _min_isr(self) -> int:
        """The effective minimum: min.insync.replicas, at most the number of replicas before and after."""
        change, replicas = self._reassignment, self._replicas
        factor = len(replicas) if change is None else change.least_replication_factor(replicas)
        return min(self._min_insync_replicas, factor)

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
        self._is_recovering = len(self._replicas) > 1

    def _set_isr(self, isr: tuple[int, ...]) -> None:
        if len(isr) >= self._min_isr:
            self._elr = ()
        else:
            eligible = {*self._isr, *self._elr} - {*isr}
            self._elr = tuple(replica for replica in self._replicas if replica in eligible)
        self._isr = isr

    def _is_candidate(self, broker_id: int) -> bool:
        if broker_id == NO_BROKER or broker_id in self._lost:
            return False
        return self._candidates.is_candidate(broker_id, self._directory_of(broker_id))

    def _has_room(self, broker_id: int) -> bool:
        return self._candidates.has_room(broker_id, self._directory_of(broker_id))

    def _directory_of(self, broker_id: int) -> str:
        before = self._before
        return before.directory_of(broker_id) if broker_id in before.replicas else ""

    def _first_of(self, among: Sequence[int]) -> int:
        able = [each for each in self._replicas if each in among and self._is_candidate(each)]
        return next((each for each in able if self._has_room(each)), able[0] if able else NO_BROKER)

    def _first_of_any(self) -> int:
        added = () if self._reassignment is None else self._reassignment.adding
        leader = self._first_of([each for each in self._replicas if each not in added])
        return self._first_of(added) if leader == NO_BROKER else leader


def _without(members: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != broker_id)
