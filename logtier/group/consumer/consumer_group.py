"""One consumer group (KIP-848) and its decisions: events in, steps out, which the caller writes and commits.

    Empty --a member joins--> Assigning --new target assignment--> Reconciling --every member has its target--> Stable
    any --a member joins, leaves or resubscribes; a topic grows, appears or is deleted--> Assigning (epoch + 1)
    any --the last member leaves--> Empty

Three epochs: the group epoch grows with every change that requires a new assignment; the assignment epoch is the group
epoch for which the target assignment was computed; a member's epoch is the assignment epoch that the member has
reached. A member first revokes partitions and confirms by its next heartbeat; only then does another member get them.
So no partition ever has two owners, and a member never stops consuming partitions that it keeps.
"""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from headwater.logtier.group.assignors.assignor import Subscriber
from headwater.logtier.group.consumer.consumer_member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    MemberState,
    is_subset,
    partition_count,
    without_empty,
)
from headwater.logtier.group.consumer.consumer_records import (
    EpochValue,
    RecordKind,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from headwater.logtier.group.consumer.consumer_state import ConsumerGroupState, ConsumerState, metadata_hash
from headwater.logtier.group.consumer.consumer_step import (
    ConsumerGroupLimits,
    Deadline,
    Heartbeat,
    HeartbeatResult,
    Step,
)
from headwater.logtier.group.consumer.migration import successor
from headwater.logtier.group.consumer.reconciliation import reconcile
from headwater.logtier.group.events import UNKNOWN_MEMBER_ID
from headwater.logtier.group.explanation import Explanation
from headwater.logtier.group.partitions import NO_PARTITIONS
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

#: First version of OffsetCommit with a member epoch; earlier versions carry a generation.
_COMMIT_WITH_EPOCH_FROM = 9


class ConsumerGroup:
    """A group whose assignment and reconciliation the broker decides.

    A decision raises KafkaError, or returns a Step (and a response) without changing the group; the caller writes the
    step and passes it to `commit`. Decisions of one group are sequential: the caller commits or drops a step before the
    next decision. `now_ms` is monotonic time.
    """

    protocol_type = "consumer"

    def __init__(self, group_id: str, state: ConsumerState | None = None) -> None:
        self.group_id = group_id
        self.state = state or ConsumerState(group_id)
        # Number of changes of topics. A step decided before a change must not mark the group as up to date.
        self._topics_version = 1
        self._seen_topics_version = 0
        self._deadlines: dict[tuple[str, Deadline], tuple[int, int]] = {}
        self._explanation = Explanation()
        self._is_explaining = False
        #: Last assignment epoch that all members have reached.
        self._settled_epoch = -1

    # ---- events ----

    @property
    def topics_version(self) -> int:
        """Number of changes of topics so far; `Heartbeat.resolved_version` refers to it."""
        return self._topics_version

    @property
    def is_stale(self) -> bool:
        """Whether topics have changed since the group's last check; the next heartbeat checks again."""
        return self._seen_topics_version < self._topics_version

    def topics_changed(self) -> None:
        """Count a change of topics, also between a step's decision and its commit."""
        self._topics_version += 1

    def restore(self, limits: ConsumerGroupLimits, now_ms: int) -> None:
        """Load the group from the log and begin its members' sessions."""
        self.read()
        self.begin_sessions(limits, now_ms)

    def read(self) -> None:
        """Load the group from the log; no session expires before `begin_sessions`."""
        if self.state.phase is ConsumerGroupState.STABLE:
            self._settled_epoch = self.state.target_epoch

    def begin_sessions(self, limits: ConsumerGroupLimits, now_ms: int) -> None:
        """Begin a session for each member of a loaded group that has none."""
        for member_id, member in self.state.members.items():
            session_ms = limits.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
            self._deadlines.setdefault((member_id, Deadline.SESSION), (now_ms + session_ms, 0))
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                late_ms = now_ms + member.rebalance_timeout_ms
                kind = Deadline.REBALANCE if member.classic is None else Deadline.CLASSIC_JOIN
                self._deadlines.setdefault((member_id, kind), (late_ms, member.member_epoch))

    def heartbeat(
        self, beat: Heartbeat, image: MetadataImage, limits: ConsumerGroupLimits, now_ms: int
    ) -> tuple[HeartbeatResult, Step]:
        """Process a member's heartbeat (join, owned partitions, subscription); respond with epoch and assignment."""
        step = Step(self.state)
        self.check_room(beat.member_id, limits)
        before, is_new = self._member_of(step, beat)
        after = replace(
            before,
            instance_id=beat.instance_id if beat.instance_id is not None else before.instance_id,
            rack_id=beat.rack_id if beat.rack_id is not None else before.rack_id,
            rebalance_timeout_ms=beat.rebalance_timeout_ms
            if beat.rebalance_timeout_ms != -1
            else before.rebalance_timeout_ms,
            topic_names=beat.topic_names if beat.topic_names is not None else before.topic_names,
            topic_regex=(beat.topic_regex or None) if beat.topic_regex is not None else before.topic_regex,
            server_assignor=beat.server_assignor if beat.server_assignor is not None else before.server_assignor,
            client_id=beat.client_id,
            client_host=beat.client_host,
            classic=None,
        )
        member = self.advance(step, before, after, beat, image, limits, now_ms, is_new=is_new)
        step.set_deadline(member.member_id, Deadline.SESSION, now_ms + limits.session_timeout_ms)
        tells = beat.member_epoch == JOIN_EPOCH or beat.is_full or member.assigned != before.assigned
        result = HeartbeatResult(
            member.member_id,
            member.member_epoch,
            limits.heartbeat_interval_ms,
            member.assigned if tells else None,
        )
        return result, step

    def leave(
        self,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        image: MetadataImage,
        limits: ConsumerGroupLimits,
    ) -> tuple[HeartbeatResult, Step]:
        """Remove a member, or mark a static member as temporarily away; the latter keeps its partitions."""
        step = Step(self.state)
        if instance_id is None:
            member = self._existing(member_id)
        else:
            member = self.static_member_of(member_id, instance_id)
            if member_epoch == LEAVE_STATIC_EPOCH:
                step.put_current(replace(member, member_epoch=LEAVE_STATIC_EPOCH, revoking=NO_PARTITIONS))
                step.clear_deadline(member.member_id, Deadline.REBALANCE)
                return HeartbeatResult(member.member_id, LEAVE_STATIC_EPOCH), step
        self.remove(step, [member], f"member {member.member_id} left", image, limits)
        return HeartbeatResult(member.member_id, member_epoch), step

    def expire(self, image: MetadataImage, limits: ConsumerGroupLimits, now_ms: int) -> Step:
        """Remove the members whose deadlines have passed."""
        step = Step(self.state)
        late: dict[str, Deadline] = {}
        for (member_id, kind), (deadline_ms, epoch) in self._deadlines.items():
            member = self.state.members.get(member_id)
            if deadline_ms > now_ms:
                continue
            is_over = kind is Deadline.REBALANCE and (member is None or member.member_epoch != epoch)
            if member is None or is_over:
                step.clear_deadline(member_id, kind)
            else:
                late.setdefault(member_id, kind)
        if late:
            members = [self.state.members[member_id] for member_id in late]
            causes = "; ".join(f"member {member_id} {kind.value} in time" for member_id, kind in late.items())
            self.remove(step, members, causes, image, limits)
        return step

    def commit(self, step: Step, now_ms: int) -> list[str]:
        """Apply a step that is in the log; return lines for the broker's log."""
        self.state = step.state
        self._seen_topics_version = max(self._seen_topics_version, step.topics_version)
        for key, deadline in step.deadlines.items():
            if deadline is None:
                self._deadlines.pop(key, None)
            else:
                self._deadlines[key] = deadline
        return self._explain(step, now_ms) if step.changes else []

    # ---- questions ----

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None without deadlines."""
        return min((deadline_ms for deadline_ms, _ in self._deadlines.values()), default=None)

    def has_deadline(self, member_id: str, kind: Deadline) -> bool:
        """Whether a member has a deadline of this kind."""
        return (member_id, kind) in self._deadlines

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to this topic."""
        return any(topic in self.state.topics_of(member) for member in self.state.members.values())

    def regexes_to_resolve(self, topic_regex: str | None) -> list[str]:
        """Return the regular expressions of the members, and a new one."""
        known = {member.topic_regex for member in self.state.members.values()} | {topic_regex}
        return sorted(regex for regex in known if regex)

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,  # noqa: ARG002 (of a classic group's members)
        *,
        api_version: int = _COMMIT_WITH_EPOCH_FROM,
        is_transactional: bool = False,
    ) -> None:
        """Check that a commit has its member's current epoch.

        Raises:
            KafkaError: `unknown_member_id`, `stale_member_epoch` (`illegal_generation` for a member of the classic
                protocol and in a transaction), `unsupported_version`.
        """
        if generation_id < 0 and not self.state.members:
            return  # a consumer without group management, or an administrator
        if is_transactional and generation_id < 0 and member_id == UNKNOWN_MEMBER_ID and group_instance_id is None:
            return  # a producer without the group's metadata (before KIP-447); the transaction fences it
        member = self._existing(member_id)
        if not is_transactional and member.classic is None and api_version < _COMMIT_WITH_EPOCH_FROM:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "OffsetCommit version 9 or above must be used by members using the modern group protocol",
            )
        self._check_epoch_of_offsets(member, generation_id, is_transactional=is_transactional)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check the epoch of a member that reads the group's offsets.

        Raises:
            KafkaError: `unknown_member_id`, `stale_member_epoch`, `illegal_generation`.
        """
        if member_id is None and member_epoch < 0:
            return
        self._check_epoch_of_offsets(self._existing(member_id or ""), member_epoch)

    # ---- parts that members of the classic protocol share (headwater.logtier.group.consumer.mixed_group) ----

    def check_room(self, member_id: str, limits: ConsumerGroupLimits) -> None:
        """Raise KafkaError group_max_size_reached if a new member exceeds the maximum group size."""
        if len(self.state.members) >= limits.max_size and member_id not in self.state.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {limits.max_size} members.",
            )

    def static_member_of(self, member_id: str, instance_id: str) -> ConsumerMember:
        """Return the static member of an instance id; raise KafkaError if it has another member id."""
        member = self.state.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
            )
        return member

    def replace_static(self, step: Step, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a static member by its new incarnation, which has another member id."""
        member = replace(old, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
        target = self.state.target_of(old.member_id)
        step.remove_member(old.member_id)
        step.put_told(member)
        step.put(RecordKind.TARGET, member_id, TargetValue(target))
        step.put_current(member)
        return member

    def advance(
        self,
        step: Step,
        before: ConsumerMember,
        after: ConsumerMember,
        beat: Heartbeat,
        image: MetadataImage,
        limits: ConsumerGroupLimits,
        now_ms: int,
        *,
        is_new: bool,
    ) -> ConsumerMember:
        """Apply a member's heartbeat, compute a new target if necessary, and reconcile the member with its target."""
        bumps = self.state.epoch == 0
        if is_new or after != before:
            step.put_told(after)
            if is_new:
                instance = "" if after.instance_id is None else f", group.instance.id {after.instance_id}"
                protocol = "" if after.classic is None else ", classic protocol"
                step.causes.append(
                    f"member {after.member_id} (client {after.client_id}) joined from {after.client_host}"
                    f"{instance}{protocol}"
                )
                bumps = True
            elif after.topic_names != before.topic_names or after.topic_regex != before.topic_regex:
                step.causes.append(f"member {after.member_id} changed its subscription")
                bumps = True
        bumps |= self._resolve(step, beat.resolved)
        self._forget_unused_regexes(step)
        if bumps or self.is_stale:
            self._refresh(step, beat, image, bumps=bumps)
        if step.state.epoch > step.state.target_epoch:
            self._assign(step, image, limits)
        member = reconcile(
            step.state.members.get(after.member_id, after),
            step.state.target_epoch,
            step.state.target_of(after.member_id),
            beat.owned,
            step.state.owner_of,
        )
        if member != step.state.members.get(after.member_id):
            step.put_current(member)
            if member.classic is None:
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    late_ms = now_ms + member.rebalance_timeout_ms
                    step.set_deadline(member.member_id, Deadline.REBALANCE, late_ms, member.member_epoch)
                else:
                    step.clear_deadline(member.member_id, Deadline.REBALANCE)
        return member

    def remove(
        self, step: Step, members: list[ConsumerMember], cause: str, image: MetadataImage, limits: ConsumerGroupLimits
    ) -> None:
        """Remove members. The others get their partitions, or become a classic group if all use that protocol."""
        step.causes.append(cause)
        gone = {member.member_id for member in members}
        left = [member for member in self.state.members.values() if member.member_id not in gone]
        # Only if a member of the consumer protocol leaves: a departing classic member causes no downgrade.
        if (
            limits.allows_downgrade
            and 0 < len(left) <= limits.classic_max_size
            and all(member.classic is not None for member in left)
            and any(member.classic is None for member in members)
        ):
            step.successor = successor(self.state, left, image, cause)
            if step.successor is not None:
                step.changes.extend(self.state.tombstones())
                return
        for member in members:
            step.remove_member(member.member_id)
        self._forget_unused_regexes(step)
        hashed = metadata_hash(step.state.subscribed_topics(), image)
        step.put(RecordKind.EPOCH, "", EpochValue(step.state.epoch + 1, hashed))

    # ---- small parts ----

    def _existing(self, member_id: str) -> ConsumerMember:
        member = self.state.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _member_of(self, step: Step, beat: Heartbeat) -> tuple[ConsumerMember, bool]:
        """Return the member of a heartbeat, and whether it is new."""
        joins = beat.member_epoch == JOIN_EPOCH
        if beat.instance_id is None:
            known = self.state.members.get(beat.member_id)
            if joins:
                # A fenced member rejoins under its id without partitions (KAFKA-19233).
                return known or ConsumerMember(beat.member_id), known is None
            member = self._existing(beat.member_id)
            _check_epoch(member, beat)
            return member, False
        if not joins:
            member = self.static_member_of(beat.member_id, beat.instance_id)
            _check_epoch(member, beat)
            return member, False
        old = self.state.static_member(beat.instance_id)
        if old is None:
            known = self.state.members.get(beat.member_id)
            return known or ConsumerMember(beat.member_id), known is None
        if old.classic is None and old.member_epoch != LEAVE_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group because the "
                f"instance id is owned by {old.member_id} member.",
            )
        return self.replace_static(step, old, beat.member_id), False

    def _resolve(self, step: Step, resolved: Mapping[str, RegexValue]) -> bool:
        """Apply the matches of regular expressions; return whether the subscribed topics change."""
        changed = False
        for regex, matched in resolved.items():
            known = step.state.regexes.get(regex)
            if known is not None and known.topics == matched.topics:
                continue
            step.put(RecordKind.REGEX, regex, matched)
            if known is not None:
                step.causes.append(f"other topics match {regex}")
            changed = True
        return changed

    def _forget_unused_regexes(self, step: Step) -> None:
        if step.state.regexes:
            used = {member.topic_regex for member in step.state.members.values()}
            for regex in [each for each in step.state.regexes if each not in used]:
                step.put(RecordKind.REGEX, regex, None)

    def _refresh(self, step: Step, beat: Heartbeat, image: MetadataImage, *, bumps: bool) -> None:
        """Check the topics; begin a new epoch if they have changed or `bumps` is set."""
        if not step.state.regexes:
            step.topics_version = self._topics_version
        elif step.state.regexes.keys() <= beat.resolved.keys():
            # The names were matched in an earlier turn: topics may have been created since.
            step.topics_version = beat.resolved_version
        hashed = metadata_hash(step.state.subscribed_topics(), image)
        if hashed != step.state.metadata_hash and not bumps:
            step.causes.append("its topics changed")
            bumps = True
        if bumps:
            step.put(RecordKind.EPOCH, "", EpochValue(step.state.epoch + 1, hashed))

    def _assign(self, step: Step, image: MetadataImage, limits: ConsumerGroupLimits) -> None:
        """Compute a target assignment for the group epoch (KIP-848)."""
        state = step.state
        name = state.preferred_assignor(limits.default_assignor)
        step.assignor = name if name in limits.assignors else limits.default_assignor
        counts: dict[UUID, int] = {}
        ids_by_names: dict[frozenset[str], frozenset[UUID]] = {}
        members = {}
        for member_id, member in state.members.items():
            names = state.topics_of(member)
            ids = ids_by_names.get(names)
            if ids is None:
                topics = [topic for topic in map(image.topic, names) if topic is not None]
                counts.update((topic.topic_id, len(topic.partitions)) for topic in topics)
                ids = ids_by_names[names] = frozenset(topic.topic_id for topic in topics)
            members[member_id] = Subscriber(member.instance_id, ids, state.target_of(member_id))
        for member_id, partitions in limits.assignors[step.assignor].assign(members, counts).items():
            target = without_empty(partitions)
            if state.targets.get(member_id) != target:
                step.put(RecordKind.TARGET, member_id, TargetValue(target))
        step.put(RecordKind.TARGET_EPOCH, "", TargetEpochValue(state.epoch))

    def _check_epoch_of_offsets(self, member: ConsumerMember, epoch: int, *, is_transactional: bool = False) -> None:
        if epoch == member.member_epoch:
            return
        is_generation = member.classic is not None or is_transactional
        raise KafkaError(
            ErrorCode.illegal_generation if is_generation else ErrorCode.stale_member_epoch,
            f"The received member epoch {epoch} does not match the expected member epoch {member.member_epoch}.",
        )

    def _explain(self, step: Step, now_ms: int) -> list[str]:
        """Return a line for each new target, and one when all members have reached it."""
        for cause in step.causes:
            if not self._is_explaining:
                self._explanation.begin(now_ms)
                self._is_explaining = True
            self._explanation.add(cause)
        lines = []
        count = len(self.state.members)
        noun = "member" if count == 1 else "members"
        if step.assignor is not None or (step.causes and not count):
            shared = sum(partition_count(target) for target in self.state.targets.values())
            outcome = f"{count} {noun}, assignor {step.assignor}, {shared} partitions" if count else "no members"
            head = f"group {self.group_id}: epoch {self.state.epoch} with {outcome}"
            lines.append(self._explanation.finish(head, now_ms))
            self._is_explaining = False
        epoch = self.state.target_epoch
        if epoch > self._settled_epoch and self.state.phase is ConsumerGroupState.STABLE:
            self._settled_epoch = epoch
            lines.append(f"group {self.group_id}: epoch {epoch} is reached by all of its {count} {noun}")
        return lines


def _check_epoch(member: ConsumerMember, beat: Heartbeat) -> None:
    """Fence a member with another epoch than the group's record of it.

    The previous epoch is accepted if the member owns no more than its assignment: the response with the new epoch was
    lost.
    """
    epoch = beat.member_epoch
    if epoch == member.member_epoch:
        return
    if epoch > member.member_epoch:
        compared = "greater"
    elif epoch == member.previous_member_epoch and beat.owned is not None and is_subset(beat.owned, member.assigned):
        return
    else:
        compared = "smaller"
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {compared} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )
