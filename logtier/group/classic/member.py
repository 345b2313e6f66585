"""One member of a classic group."""

from collections.abc import Collection
from dataclasses import dataclass

from headwater.logtier.group.events import JoinedMember, MemberMetadata


@dataclass(slots=True)
class Member:
    """A member of a classic group; only its `Group` changes it.

    Attributes:
        protocols: name -> opaque metadata, in order of preference.
        assignment: The member's assignment in this generation, from the leader.
        join_token: Token of the JoinGroup request that waits for the rebalance, if any.
        sync_token: Token of the SyncGroup request that waits for the leader, if any.
        deadline_ms: End of the session. None while a request of a member that was in a generation waits: the session
            does not expire during the wait.
        is_new: The member was in no generation yet; without its id it cannot send heartbeats.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    deadline_ms: int | None = None
    is_new: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits for a response."""
        return self.join_token is not None or self.sync_token is not None

    def vote(self, candidates: Collection[str]) -> str:
        """Return the member's most preferred protocol among the candidates."""
        return next(name for name in self.protocols if name in candidates)

    def as_joined(self, protocol_name: str | None) -> JoinedMember:
        """Return the member for the leader's JoinGroup response."""
        return JoinedMember(self.member_id, self.group_instance_id, self.protocols.get(protocol_name or "", b""))

    def as_metadata(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        """Return the member's metadata for the log, with this assignment."""
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols.get(protocol_name or "", b""),
            assignment,
        )

    @classmethod
    def from_metadata(cls, metadata: MemberMetadata, protocol_name: str | None) -> "Member":
        """Restore a member from the log."""
        return cls(
            metadata.member_id,
            metadata.group_instance_id,
            metadata.client_id,
            metadata.client_host,
            metadata.session_timeout_ms,
            metadata.rebalance_timeout_ms,
            {protocol_name: metadata.subscription} if protocol_name is not None else {},
            metadata.assignment,
        )
