"""One classic consumer group as a pure state machine: events in, instructions out.

    Empty --a member joins--> PreparingRebalance --all have joined, or the timeout--> CompletingRebalance
    CompletingRebalance --the leader's assignment is in the log--> Stable
    Stable, CompletingRebalance --a member rejoins, leaves, times out, or sends no SyncGroup--> PreparingRebalance
    PreparingRebalance --no member remains--> Empty
    any --the group is deleted--> Dead

The generation grows by one at each end of PreparingRebalance. The group rejects requests of other generations, which
fences a member after its session timeout.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headwater.logtier.group.classic.core import AssignmentWrite, GroupCore, StaticMemberWrite
from headwater.logtier.group.classic.member import Member
from headwater.logtier.group.events import (
    UNKNOWN_MEMBER_ID,
    Explain,
    GroupMetadata,
    GroupState,
    Instruction,
    Join,
    JoinResult,
    LeavingMember,
    RespondJoin,
    RespondSync,
    Sync,
    SyncResult,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

#: Maximum wait of a new member for its first generation (Kafka's fixed value). The member does not know its id, so only
#: this limit removes a member whose client has gone or has joined again under another id.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
)


class Group(GroupCore):
    """A classic group and all its decisions.

    Invariants: in CompletingRebalance and Stable every member supports `protocol_name`; while members wait for each
    other, a deadline is set. Only the coordinator calls this class. `now_ms` is monotonic time.
    """

    # ---- events ----

    def restore(self, metadata: GroupMetadata, now_ms: int) -> list[Instruction]:
        """Load the group from the log and begin its members' sessions."""
        self.read(metadata)
        return self.begin_sessions(now_ms)

    def read(self, metadata: GroupMetadata) -> None:
        """Load the group from the log; no session expires before `begin_sessions`."""
        self._has_begun = False
        self.generation_id = metadata.generation_id
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol_name
        self.current_state_timestamp_ms = metadata.current_state_timestamp_ms
        for written in metadata.members:
            self.members.add(Member.from_metadata(written, metadata.protocol_name))
        if self.members:
            self.state = _STABLE
            if metadata.leader in self.members:
                self.members.leader_id = metadata.leader
        self._read_subscriptions()

    def begin_sessions(self, now_ms: int) -> list[Instruction]:
        """Begin a session for each member of a loaded group that has none, and arm the timer. Idempotent.

        A member whose request came earlier has a deadline, but no timer yet.
        """
        if self._has_begun:
            return []
        self._has_begun = True
        for member in self.members:
            if member.deadline_ms is None and not member.is_waiting:
                member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state is _STABLE and len(self.members) > self._limits.max_size:
            self._prepare_rebalance(
                f"{len(self.members)} members were loaded, more than group.max.size={self._limits.max_size}", now_ms
            )
        self._arm_next()
        return self._drain()

    def join(self, event: Join, now_ms: int) -> list[Instruction]:
        """Process a JoinGroup request."""
        if not self._accepts(event.member_id):
            if event.member_id in self.members:
                self._forget(event.member_id)
            self._refuse_join(event, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER_ID)
            self._maybe_complete_join(now_ms)
        elif self.state is _DEAD:
            self._refuse_join(event, ErrorCode.coordinator_not_available)
        elif not self._supports(event.protocol_type, event.protocols):
            self._refuse_join(event, ErrorCode.inconsistent_group_protocol)
        elif event.member_id != UNKNOWN_MEMBER_ID:
            self._join_known(event, now_ms)
        elif event.group_instance_id is None and event.requires_known_member_id:
            self.pending_joins[event.new_member_id] = now_ms + event.session_timeout_ms
            self._arm(now_ms + event.session_timeout_ms)
            self._refuse_join(event, ErrorCode.member_id_required, event.new_member_id)
        elif event.group_instance_id is not None and self.members.owner_of(event.group_instance_id) is not None:
            self._replace_static(event, now_ms)
        else:
            self._add_member(event, event.new_member_id, now_ms)
        return self._drain()

    def sync(self, event: Sync) -> list[Instruction]:
        """Process a SyncGroup request; the leader's request carries every member's assignment."""
        error = self._sync_error(event)
        if error is not ErrorCode.none:
            self._out.append(RespondSync(event.token, SyncResult(error)))
            return self._drain()
        member = self.members[event.member_id]
        self._synced(event.member_id)
        if self.state is _STABLE:
            self._out.append(RespondSync(event.token, self._assigned(member)))
            return self._drain()
        self._answer_sync(member, SyncResult(ErrorCode.rebalance_in_progress))
        member.sync_token = event.token
        if event.member_id == self.members.leader_id:
            assignments = {each.member_id: event.assignments.get(each.member_id, b"") for each in self.members}
            self._persist(AssignmentWrite(self.generation_id, assignments), assignments)
        return self._drain()

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int) -> ErrorCode:
        """Extend a member's session; return `rebalance_in_progress` if the member must rejoin."""
        if self.state is _DEAD:
            return ErrorCode.coordinator_not_available
        error = self.members.error_for(member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.illegal_generation
        # Without a timer: a heartbeat only moves a deadline later; `begin_sessions` arms for the first deadlines.
        member = self.members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms
        return ErrorCode.rebalance_in_progress if self.state is _PREPARING else ErrorCode.none

    def leave(self, leaving: Iterable[LeavingMember], now_ms: int) -> tuple[list[ErrorCode], list[Instruction]]:
        """Process a LeaveGroup request of members or of an administrator; one error code for each member."""
        errors: list[ErrorCode] = []
        causes: list[str] = []
        for one in leaving:
            member_id = one.member_id
            if member_id == UNKNOWN_MEMBER_ID and one.group_instance_id is not None:
                member_id = self.members.owner_of(one.group_instance_id) or UNKNOWN_MEMBER_ID
            error = ErrorCode.none
            if member_id in self.pending_joins:
                del self.pending_joins[member_id]
            else:
                error = self.members.error_for(member_id, one.group_instance_id)
                if error is ErrorCode.none:
                    self._forget(member_id)
            errors.append(error)
            if error is ErrorCode.none:
                causes.append(f"member {member_id} left{f' ({one.reason})' if one.reason else ''}")
        if causes:
            if self.state in (_STABLE, _COMPLETING):
                for cause in causes[:-1]:
                    self._explanation.add(cause)
                self._prepare_rebalance(causes[-1], now_ms)
            else:
                for cause in causes:
                    self._explanation.add(cause)
                self._maybe_complete_join(now_ms)
        return errors, self._drain()

    def persisted(self, persist_id: int, error: ErrorCode, now_ms: int) -> list[Instruction]:
        """Process the outcome of a write of this group."""
        write = self._writes.pop(persist_id, None)
        if isinstance(write, AssignmentWrite):
            # Another member may have joined meanwhile: then the assignment is obsolete.
            if self.state is _COMPLETING and write.generation_id == self.generation_id:
                if error is ErrorCode.none:
                    self._settle(write.assignments, now_ms)
                else:
                    self._prepare_rebalance(
                        f"the assignment could not be written ({error.name})", now_ms, sync_error=error
                    )
        elif isinstance(write, StaticMemberWrite):
            self._finish_static(write, error, now_ms)
        return self._drain()

    def timer_expired(self, now_ms: int) -> list[Instruction]:
        """Process due deadlines and arm the timer for the next; deadlines may have moved since the timer was armed."""
        self._armed_ms = None
        for member_id in [name for name, deadline in self.pending_joins.items() if deadline <= now_ms]:
            del self.pending_joins[member_id]
            self._maybe_complete_join(now_ms)
        for member in self.members:
            is_due = member.deadline_ms is not None and member.deadline_ms <= now_ms
            if is_due and self.members.get(member.member_id) is member:
                self._session_expired(member, now_ms)
        if self.join_deadline_ms is not None and self.join_deadline_ms <= now_ms:
            self._join_time_is_up(now_ms)
        if self.sync_deadline_ms is not None and self.sync_deadline_ms <= now_ms:
            self._sync_time_is_up(now_ms)
        self._arm_next()
        return self._drain()

    def resume(self, now_ms: int) -> list[Instruction]:
        """Begin sessions or arm the timer again: while the group was unregistered, either may have had no effect."""
        return [*self.begin_sessions(now_ms), *self.timer_expired(now_ms)]

    def adopt(
        self, metadata: GroupMetadata, protocols: Mapping[str, Mapping[str, bytes]], cause: str, now_ms: int
    ) -> list[Instruction]:
        """Take over the members of a downgraded consumer group (KIP-848); they must rejoin."""
        instructions = self.restore(metadata, now_ms)
        for member in self.members:
            member.protocols = dict(protocols[member.member_id])
        self._prepare_rebalance(cause, now_ms)
        return [*instructions, *self._drain()]

    def delete(self, error: ErrorCode = ErrorCode.not_coordinator) -> list[Instruction]:
        """End a deleted, resigned or upgraded group; waiting requests get this error."""
        self.state = _DEAD
        for member in self.members:
            self._answer_join(member, JoinResult(member.member_id, error))
            self._answer_sync(member, SyncResult(error))
        self.members.clear()
        self.pending_joins.clear()
        self.pending_syncs.clear()
        self.join_deadline_ms = self.sync_deadline_ms = None
        return self._drain()

    # ---- questions ----

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
        *,
        api_version: int = 9,  # noqa: ARG002 (of a consumer group's members)
        is_transactional: bool = False,
    ) -> None:
        """Check that a commit has the current generation; extend the session, except for a transaction's commit.

        A transactional producer without the group's metadata (before KIP-447) may commit, also during a rebalance: the
        commit is part of its transaction.

        Raises:
            KafkaError: `unknown_member_id`, `fenced_instance_id`, `illegal_generation`, `rebalance_in_progress`, or
                `coordinator_not_available` for a dead group.
        """
        if self.state is _DEAD:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if generation_id < 0 and self.state is _EMPTY:
            return  # a consumer without group management, or an administrator
        if generation_id < 0 and member_id == UNKNOWN_MEMBER_ID and group_instance_id is None:
            if is_transactional:
                return
            raise KafkaError(ErrorCode.unknown_member_id, f"group {self.group_id} has members: commit as one of them")
        error = self.members.error_for(member_id, group_instance_id)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        if generation_id != self.generation_id:
            raise KafkaError(ErrorCode.illegal_generation)
        if is_transactional:
            return
        if self.state is _COMPLETING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        member = self.members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms

    # ---- joining ----

    def _accepts(self, member_id: str) -> bool:
        """Whether the group has room. A rebalance counts members that have joined: the last ones are rejected."""
        if self.state is _PREPARING:
            member = self.members.get(member_id)
            waiting = self.members.waiting_to_join()
            return (member is not None and member.join_token is not None) or waiting < self._limits.max_size
        if self.state in (_COMPLETING, _STABLE):
            return member_id in self.members or len(self.members) < self._limits.max_size
        return True

    def _supports(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether all members, including this one, have a common protocol."""
        names = [name for name, _ in protocols]
        if self.state is _EMPTY or not self.members:
            return bool(protocol_type and names)
        return protocol_type == self.protocol_type and not self.members.common_protocols().isdisjoint(names)

    def _join_known(self, event: Join, now_ms: int) -> None:
        """Join a member with an id: a pending id, a rejoin, or a retry after a lost response."""
        if event.member_id in self.pending_joins and event.group_instance_id is None:
            self._add_member(event, event.member_id, now_ms)
            return
        error = self.members.error_for(event.member_id, event.group_instance_id)
        if error is not ErrorCode.none or self.state is _EMPTY:
            self._refuse_join(event, error if error is not ErrorCode.none else ErrorCode.unknown_member_id)
            return
        member = self.members[event.member_id]
        is_same = member.protocols == dict(event.protocols)
        is_leader = event.member_id == self.members.leader_id
        # A leader of a stable group may force a rebalance after changes that only the leader sees (new partitions).
        if self.state is _PREPARING or not is_same or (self.state is _STABLE and is_leader):
            if self.state is _PREPARING:
                cause = f"member {event.member_id} rejoined"
            elif not is_same:
                cause = f"member {event.member_id} changed its subscription"
            else:
                cause = f"leader {event.member_id} asked for it"
            self._update(member, event)
            self._rebalance_or_complete(cause, now_ms, event.reason)
        else:
            shown = self._members_for_leader() if is_leader else ()
            self._out.append(RespondJoin(event.token, self._joined(event.member_id, shown)))

    def _add_member(self, event: Join, member_id: str, now_ms: int) -> None:
        if self.state is _PREPARING and self._previous_state is _EMPTY:
            self._new_member_added = True
        if not self.members:
            self.protocol_type = event.protocol_type
        self.pending_joins.pop(member_id, None)
        member = Member(
            member_id,
            event.group_instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            dict(event.protocols),
            join_token=event.token,
            deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
        )
        self._arm(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.members.add(member)
        instance = "" if event.group_instance_id is None else f", group.instance.id {event.group_instance_id}"
        cause = f"member {member_id} joined from {event.client_host}{instance}"
        self._rebalance_or_complete(cause, now_ms, event.reason)

    def _update(self, member: Member, event: Join) -> None:
        member.protocols = dict(event.protocols)
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.session_timeout_ms = event.session_timeout_ms
        # A client that repeats a request has given up the first one and ignores its response.
        self._answer_join(member, JoinResult(member.member_id, ErrorCode.rebalance_in_progress))
        member.join_token = event.token

    def _replace_static(self, event: Join, now_ms: int) -> None:
        """Replace a static member by its new incarnation, and fence the old member id (KIP-345)."""
        assert event.group_instance_id is not None
        old_id = self.members.owner_of(event.group_instance_id)
        assert old_id is not None
        old = self.members[old_id]
        old_leader = self.members.leader_id or ""
        self._answer_join(old, JoinResult(old.member_id, ErrorCode.fenced_instance_id))
        self._answer_sync(old, SyncResult(ErrorCode.fenced_instance_id))
        member = replace(old, member_id=event.new_member_id, is_new=False)
        self._swap(old, member)
        self._extend_session(member, now_ms)
        self._update(member, event)
        cause = f"static member {event.group_instance_id} came back as {member.member_id}"
        if self.state is _STABLE:
            if self.members.vote() == self.protocol_name:
                # No change for the other members: the assignment remains, without rebalance.
                self._out.append(
                    Explain(f"group {self.group_id}: no rebalance in generation {self.generation_id}: {cause}")
                )
                write = StaticMemberWrite(event, member.member_id, old_leader, old)
                self._persist(write, self.members.assignments())
            else:
                self._prepare_rebalance(f"{cause} with other protocols", now_ms, event.reason)
        elif self.state is _COMPLETING:
            # The leader may be assigning partitions to the old id now.
            self._prepare_rebalance(cause, now_ms, event.reason)
        else:
            self._explanation.add(cause)
            self._maybe_complete_join(now_ms)

    def _finish_static(self, write: StaticMemberWrite, error: ErrorCode, now_ms: int) -> None:
        member = self.members.get(write.new_member_id)
        # After another rebalance or replacement meanwhile, that one answers the request.
        if self.state is not _STABLE or member is None or member.join_token != write.event.token:
            return
        if error is not ErrorCode.none:
            member.join_token = None
            self._refuse_join(write.event, error, UNKNOWN_MEMBER_ID)
            self._swap(member, write.old)
            self._extend_session(write.old, now_ms)
            return
        is_leader = member.member_id == self.members.leader_id
        if write.event.supports_skipping_assignment:
            shown = self._members_for_leader() if is_leader else ()
            result = replace(self._joined(member.member_id, shown), skip_assignment=is_leader)
        else:
            # An older client would assign as leader: its response names the leader's old id (KAFKA-12890).
            result = replace(self._joined(member.member_id, ()), leader=write.old_leader)
        self._answer_join(member, result)

    def _swap(self, old: Member, new: Member) -> None:
        self.members.swap(old, new)
        if old.member_id in self.pending_syncs:
            self.pending_syncs.discard(old.member_id)
            self.pending_syncs.add(new.member_id)

    # ---- rebalancing ----

    def _rebalance_or_complete(self, cause: str, now_ms: int, reason: str = "") -> None:
        if self.state in (_EMPTY, _STABLE, _COMPLETING):
            self._prepare_rebalance(cause, now_ms, reason)
        else:
            self._explanation.add(cause, reason)
            self._maybe_complete_join(now_ms)

    def _prepare_rebalance(
        self, cause: str, now_ms: int, reason: str = "", sync_error: ErrorCode = ErrorCode.rebalance_in_progress
    ) -> None:
        """Begin a rebalance: all members must rejoin, and waiting SyncGroup requests get no assignment."""
        if self.state is _COMPLETING:
            for member in self.members:
                member.assignment = b""
                if member.sync_token is not None:
                    self._answer_sync(member, SyncResult(sync_error))
                    self._extend_session(member, now_ms)
        self.pending_syncs.clear()
        self.sync_deadline_ms = None
        self._explanation.add(cause, reason)
        self._explanation.begin(now_ms)
        is_first = self.state is _EMPTY
        self._enter(_PREPARING)
        if is_first:
            # More members are likely to join soon: one rebalance for all of them.
            delay_ms = self._limits.initial_rebalance_delay_ms
            self.initial_delay_left_ms = max(self.members.rebalance_timeout_ms() - delay_ms, 0)
            self._new_member_added = False
            self._set_join_deadline(now_ms + delay_ms)
        elif self._all_joined():
            self._complete_join(now_ms)
        else:
            self._set_join_deadline(now_ms + self.members.rebalance_timeout_ms())

    def _maybe_complete_join(self, now_ms: int) -> None:
        # Only its delay ends the first rebalance.
        if self.state is _PREPARING and self._previous_state is not _EMPTY and self._all_joined():
            self._complete_join(now_ms)

    def _all_joined(self) -> bool:
        return not self.pending_joins and self.members.waiting_to_join() == len(self.members)

    def _join_time_is_up(self, now_ms: int) -> None:
        left_ms = self.initial_delay_left_ms
        if left_ms and self._new_member_added:
            self._new_member_added = False
            delay_ms = min(self._limits.initial_rebalance_delay_ms, left_ms)
            self.initial_delay_left_ms = left_ms - delay_ms
            self._set_join_deadline(now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Complete the joins: members that have joined, and all static members, are the next generation."""
        self.join_deadline_ms = None
        self.initial_delay_left_ms = None
        for member in self.members:
            if member.join_token is None and member.group_instance_id is None:
                waited_ms = self._explanation.elapsed_ms(now_ms)
                self._explanation.add(f"member {member.member_id} did not rejoin within {waited_ms} ms")
                self._forget(member.member_id)
        if self.members and not self.members.elect_leader():
            # Only absent static members: wait until their sessions time out.
            self._set_join_deadline(now_ms + self.members.rebalance_timeout_ms())
            return
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self._read_subscriptions()
            self._enter(_EMPTY)
            self._explain(now_ms)
            self._persist(None, {})
            return
        self.protocol_name = self.members.vote()
        self._read_subscriptions()
        self._enter(_COMPLETING)
        self._explain(now_ms)
        for member in self.members:
            shown = self._members_for_leader() if member.member_id == self.members.leader_id else ()
            self._answer_join(member, self._joined(member.member_id, shown))
            member.is_new = False
            self._extend_session(member, now_ms)
            self.pending_syncs.add(member.member_id)
        self.sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms()
        self._arm(self.sync_deadline_ms)

    def _settle(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self._enter(_STABLE)
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                self._answer_sync(member, self._assigned(member))
                self._extend_session(member, now_ms)

    # ---- syncing ----

    def _sync_error(self, event: Sync) -> ErrorCode:
        if self.state is _DEAD:
            return ErrorCode.coordinator_not_available
        error = self.members.error_for(event.member_id, event.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if event.generation_id != self.generation_id:
            return ErrorCode.illegal_generation
        if event.protocol_type not in (None, self.protocol_type) or event.protocol_name not in (
            None,
            self.protocol_name,
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if self.state is _PREPARING else ErrorCode.none

    def _synced(self, member_id: str) -> None:
        self.pending_syncs.discard(member_id)
        if not self.pending_syncs:
            self.sync_deadline_ms = None

    def _sync_time_is_up(self, now_ms: int) -> None:
        self.sync_deadline_ms = None
        absent = sorted(self.pending_syncs)
        if not absent or self.state not in (_COMPLETING, _STABLE):
            return
        timeout_ms = self.members.rebalance_timeout_ms()
        for member_id in absent:
            self._forget(member_id)
        self._prepare_rebalance(f"no SyncGroup within {timeout_ms} ms from {', '.join(absent)}", now_ms)

    # ---- sessions ----

    def _session_expired(self, member: Member, now_ms: int) -> None:
        if member.is_waiting and not member.is_new:
            member.deadline_ms = None  # no session timeout while its request waits; the response restarts it
            return
        if member.is_new:
            cause = f"new member {member.member_id} waited longer than {NEW_MEMBER_JOIN_TIMEOUT_MS} ms"
        else:
            cause = f"member {member.member_id} timed out: nothing heard for {member.session_timeout_ms} ms"
        self._forget(member.member_id)
        if self.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(cause, now_ms)
        else:
            self._explanation.add(cause)
            self._maybe_complete_join(now_ms)

    def _extend_session(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms
        self._arm(member.deadline_ms)

    def _forget(self, member_id: str) -> None:
        """Remove a member; its waiting requests get unknown_member_id, so that a live client rejoins."""
        member = self.members.remove(member_id)
        self._answer_join(member, JoinResult(UNKNOWN_MEMBER_ID, ErrorCode.unknown_member_id))
        self._answer_sync(member, SyncResult(ErrorCode.unknown_member_id))
        self.pending_syncs.discard(member_id)
