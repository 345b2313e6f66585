"""The members of a classic group, their leader and their common protocols."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from headwater.logtier.group.classic.member import Member
from headwater.logtier.group.events import JoinedMember, MemberMetadata
from headwater.logtier.protocol.errors import ErrorCode


class Membership:
    """Members by id, in the order of joining.

    Invariants: a group with members has a leader, which is a member; every instance id belongs to exactly one member.
    Only the `Group` changes the membership.
    """

    __slots__ = ("_by_id", "_id_by_instance", "leader_id")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._id_by_instance: dict[str, str] = {}
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        """Return the member of an id, if any."""
        return self._by_id.get(member_id)

    def owner_of(self, group_instance_id: str) -> str | None:
        """Return the member id of an instance id, if any."""
        return self._id_by_instance.get(group_instance_id)

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self._id_by_instance[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member; the longest member succeeds a leader."""
        member = self._by_id.pop(member_id)
        if member.group_instance_id is not None:
            del self._id_by_instance[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._by_id), None)
        return member

    def swap(self, old: Member, new: Member) -> None:
        """Replace a static member's id in its place."""
        was_leader = self.leader_id == old.member_id
        self.remove(old.member_id)
        self.add(new)
        if was_leader:
            self.leader_id = new.member_id

    def clear(self) -> None:
        """Remove all members."""
        self._by_id.clear()
        self._id_by_instance.clear()
        self.leader_id = None

    def error_for(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return `unknown_member_id`, `fenced_instance_id`, or `none` if a request's ids belong to a member."""
        if group_instance_id is not None:
            owner = self._id_by_instance.get(group_instance_id)
            if owner is None:
                return ErrorCode.unknown_member_id
            if owner != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._by_id else ErrorCode.unknown_member_id

    def waiting_to_join(self) -> int:
        """Number of members that have joined the present rebalance."""
        return sum(1 for member in self._by_id.values() if member.join_token is not None)

    def elect_leader(self) -> bool:
        """Keep the leader if it joined, else elect the first member that joined; return False if none did."""
        leader = self._by_id.get(self.leader_id or "")
        if leader is None or leader.join_token is None:
            joined = next((member for member in self._by_id.values() if member.join_token is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        known = [set(member.protocols) for member in self._by_id.values()]
        return set.intersection(*known) if known else set()

    def vote(self) -> str:
        """Return the common protocol that most members prefer; the earliest vote wins a tie."""
        candidates = self.common_protocols()
        return Counter(member.vote(candidates) for member in self._by_id.values()).most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def deadlines_ms(self) -> Iterable[int]:
        """Return the members' deadlines."""
        return [member.deadline_ms for member in self._by_id.values() if member.deadline_ms is not None]

    def assignments(self) -> dict[str, bytes]:
        """Return the assignment of each member."""
        return {member_id: member.assignment for member_id, member in self._by_id.items()}

    def as_joined(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members for the leader's JoinGroup response."""
        return tuple([member.as_joined(protocol_name) for member in self._by_id.values()])

    def as_metadata(self, protocol_name: str | None, assignments: Mapping[str, bytes]) -> tuple[MemberMetadata, ...]:
        """Return the members' metadata for the log, with these assignments."""
        return tuple(
            [member.as_metadata(protocol_name, assignments.get(name, b"")) for name, member in self._by_id.items()]
        )
