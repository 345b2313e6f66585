"""A member of a classic group whose leader matters, not its partitions: elections, and locks with a known holder.

The coordinator keeps a group's leader while it stays a member, and drops a member whose heartbeats end. So the leader
is unique among live members, and everyone can ask who it is. Blocking; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.coordinators import ask_group_coordinator
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey

__all__ = ["GroupMember", "MemberDescription", "describe_members", "remove_member"]

ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
GROUP_ID_NOT_FOUND: Final = 69
MEMBER_ID_REQUIRED: Final = 79
#: The member must join again, with its id or without.
_REJOIN: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS})
#: Rounds of joining before a member gives up: each is caused by another member's joining or leaving.
_ROUNDS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A live member, as the coordinator describes it. `metadata` is empty while the group rebalances."""

    member_id: str
    client_id: str
    client_host: str
    metadata: bytes


class GroupMember:
    """One membership.

    Args:
        protocol: Type and name of the group's protocol; members of another type are refused.
        metadata: Shown to all who describe the group.
        session_timeout_ms: Time without heartbeats after which the coordinator removes the member.
    """

    def __init__(
        self, cluster: ClusterClient, group: str, protocol: str, metadata: bytes, *, session_timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._protocol = protocol
        self._metadata = metadata
        self._session = timedelta(milliseconds=session_timeout_ms)
        self._member_id = ""
        self._generation = -1

    @property
    def member_id(self) -> str:
        """The id that the coordinator assigned; empty before `join`."""
        return self._member_id

    def join(self) -> bool:
        """Joins the group, or joins it again, and returns whether this member leads. Raises BrokerError.

        Into an empty group this takes `group.initial.rebalance.delay.ms` of the broker, 3 s by default (KIP-134).
        """
        for _ in range(_ROUNDS_MAX):
            answer = self._join_once()
            if answer is None:
                continue
            is_leader = str(answer.leader) == self._member_id
            if self._sync(answer, is_leader=is_leader):
                return is_leader
        raise broker_error(REBALANCE_IN_PROGRESS, f"joining group {self._group!r}")

    def _join_once(self) -> Any | None:
        answer = self._ask(
            "joining",
            ApiKey.JOIN_GROUP,
            {
                "group_id": self._group,
                "session_timeout": self._session,
                "rebalance_timeout": self._session,
                "member_id": self._member_id,
                "group_instance_id": None,
                "protocol_type": self._protocol,
                "protocols": ({"name": self._protocol, "metadata": self._metadata},),
                "reason": None,
            },
            lambda answer: int(answer.error_code),
            {MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID},
        )
        if answer.error_code == UNKNOWN_MEMBER_ID:
            self._member_id = ""
            return None
        self._member_id = str(answer.member_id)
        if answer.error_code == MEMBER_ID_REQUIRED:
            return None
        self._generation = int(answer.generation_id)
        return answer

    def _sync(self, joined: Any, *, is_leader: bool) -> bool:
        members = tuple({"member_id": each.member_id, "assignment": b""} for each in joined.members)
        answer = self._ask(
            "synchronising with",
            ApiKey.SYNC_GROUP,
            {
                "group_id": self._group,
                "generation_id": self._generation,
                "member_id": self._member_id,
                "group_instance_id": None,
                "protocol_type": self._protocol,
                "protocol_name": self._protocol,
                "assignments": members if is_leader else (),
            },
            lambda answer: int(answer.error_code),
            _REJOIN,
        )
        return not answer.error_code

    def heartbeat(self) -> bool:
        """Shows that the member lives; False if it must `join` again. Raises BrokerError."""
        answer = self._ask(
            "heartbeat of",
            ApiKey.HEARTBEAT,
            {
                "group_id": self._group,
                "generation_id": self._generation,
                "member_id": self._member_id,
                "group_instance_id": None,
            },
            lambda answer: int(answer.error_code),
            _REJOIN,
        )
        return not answer.error_code

    def leave(self) -> None:
        """Leaves the group, if this member has joined."""
        if self._member_id:
            remove_member(self._cluster, self._group, self._member_id)
            self._member_id = ""

    def _ask(
        self,
        what: str,
        api_key: int,
        values: Mapping[str, Any],
        code_of: Callable[[Any], int],
        expected: frozenset[int] | set[int],
    ) -> Any:
        return ask_group_coordinator(
            self._cluster, self._group, f"{what} group {self._group!r}", api_key, values, code_of, expected
        )


def describe_members(cluster: ClusterClient, group: str) -> Sequence[MemberDescription]:
    """Returns a group's live members; empty for a group that does not exist. Raises BrokerError."""
    values = {"groups": (group,), "include_authorized_operations": False}
    answer = ask_group_coordinator(
        cluster,
        group,
        f"describing group {group!r}",
        ApiKey.DESCRIBE_GROUPS,
        values,
        lambda answer: int(answer.groups[0].error_code),
        {GROUP_ID_NOT_FOUND},
    )
    return [
        MemberDescription(
            str(each.member_id), str(each.client_id), str(each.client_host), bytes(each.member_metadata or b"")
        )
        for each in answer.groups[0].members
    ]


def remove_member(cluster: ClusterClient, group: str, member_id: str) -> None:
    """Removes a member, whoever it is; without effect if it is gone already (KIP-345). Raises BrokerError."""
    values = {"group_id": group, "members": ({"member_id": member_id, "group_instance_id": None, "reason": None},)}

    def code_of(answer: Any) -> int:
        return int(answer.error_code) or next((int(each.error_code) for each in answer.members), 0)

    what = f"removing a member of group {group!r}"
    ask_group_coordinator(
        cluster, group, what, ApiKey.LEAVE_GROUP, values, code_of, {UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND}
    )
